from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_STARTING: _ClassVar[DeviceState]
    DEVICE_STATE_IDLE: _ClassVar[DeviceState]
    DEVICE_STATE_BUSY: _ClassVar[DeviceState]
    DEVICE_STATE_LOST: _ClassVar[DeviceState]
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_STARTING: DeviceState
DEVICE_STATE_IDLE: DeviceState
DEVICE_STATE_BUSY: DeviceState
DEVICE_STATE_LOST: DeviceState

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("version", "evaluator_build", "digest_algorithms", "max_chunk_bytes", "task_types", "devices", "blob_endpoint")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_BUILD_FIELD_NUMBER: _ClassVar[int]
    DIGEST_ALGORITHMS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TASK_TYPES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    BLOB_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    version: str
    evaluator_build: str
    digest_algorithms: _containers.RepeatedScalarFieldContainer[str]
    max_chunk_bytes: int
    task_types: _containers.RepeatedCompositeFieldContainer[TaskType]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    blob_endpoint: str
    def __init__(self, version: _Optional[str] = ..., evaluator_build: _Optional[str] = ..., digest_algorithms: _Optional[_Iterable[str]] = ..., max_chunk_bytes: _Optional[int] = ..., task_types: _Optional[_Iterable[_Union[TaskType, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., blob_endpoint: _Optional[str] = ...) -> None: ...

class TaskType(_message.Message):
    __slots__ = ("name", "metrics")
    NAME_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    metrics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., metrics: _Optional[_Iterable[str]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("name", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: DeviceState
    def __init__(self, name: _Optional[str] = ..., state: _Optional[_Union[DeviceState, str]] = ...) -> None: ...
