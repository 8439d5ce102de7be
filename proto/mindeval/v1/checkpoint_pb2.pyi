from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_STATE_UNSPECIFIED: _ClassVar[CheckpointState]
    CHECKPOINT_STATE_READY: _ClassVar[CheckpointState]
    CHECKPOINT_STATE_MISSING: _ClassVar[CheckpointState]

class TensorChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_CHANGE_UNSPECIFIED: _ClassVar[TensorChange]
    TENSOR_CHANGE_VALUES: _ClassVar[TensorChange]
    TENSOR_CHANGE_SHAPE: _ClassVar[TensorChange]
    TENSOR_CHANGE_ADDED: _ClassVar[TensorChange]
    TENSOR_CHANGE_REMOVED: _ClassVar[TensorChange]
CHECKPOINT_STATE_UNSPECIFIED: CheckpointState
CHECKPOINT_STATE_READY: CheckpointState
CHECKPOINT_STATE_MISSING: CheckpointState
TENSOR_CHANGE_UNSPECIFIED: TensorChange
TENSOR_CHANGE_VALUES: TensorChange
TENSOR_CHANGE_SHAPE: TensorChange
TENSOR_CHANGE_ADDED: TensorChange
TENSOR_CHANGE_REMOVED: TensorChange

class CheckpointStep(_message.Message):
    __slots__ = ("run", "step")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    run: str
    step: int
    def __init__(self, run: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("name", "manifest", "state", "size_bytes", "own_size_bytes", "tensor_count", "pinned", "steps", "create_time", "use_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OWN_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    USE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    manifest: str
    state: CheckpointState
    size_bytes: int
    own_size_bytes: int
    tensor_count: int
    pinned: bool
    steps: _containers.RepeatedCompositeFieldContainer[CheckpointStep]
    create_time: _timestamp_pb2.Timestamp
    use_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., manifest: _Optional[str] = ..., state: _Optional[_Union[CheckpointState, str]] = ..., size_bytes: _Optional[int] = ..., own_size_bytes: _Optional[int] = ..., tensor_count: _Optional[int] = ..., pinned: bool = ..., steps: _Optional[_Iterable[_Union[CheckpointStep, _Mapping]]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., use_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TensorDifference(_message.Message):
    __slots__ = ("name", "change", "relative_change", "largest_difference", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_CHANGE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    change: TensorChange
    relative_change: float
    largest_difference: float
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., change: _Optional[_Union[TensorChange, str]] = ..., relative_change: _Optional[float] = ..., largest_difference: _Optional[float] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class CreateCheckpointRequest(_message.Message):
    __slots__ = ("parent", "manifest", "uri", "step")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    parent: str
    manifest: str
    uri: str
    step: CheckpointStep
    def __init__(self, parent: _Optional[str] = ..., manifest: _Optional[str] = ..., uri: _Optional[str] = ..., step: _Optional[_Union[CheckpointStep, _Mapping]] = ...) -> None: ...

class CreateCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint", "created")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    created: bool
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., created: bool = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token", "run")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    run: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., run: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "next_page_token")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    next_page_token: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PinCheckpointRequest(_message.Message):
    __slots__ = ("name", "pinned")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    name: str
    pinned: bool
    def __init__(self, name: _Optional[str] = ..., pinned: bool = ...) -> None: ...

class PinCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ...) -> None: ...

class DeleteCheckpointRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteCheckpointResponse(_message.Message):
    __slots__ = ("freed_bytes",)
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    freed_bytes: int
    def __init__(self, freed_bytes: _Optional[int] = ...) -> None: ...

class DiffCheckpointsRequest(_message.Message):
    __slots__ = ("base", "other", "with_values")
    BASE_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    WITH_VALUES_FIELD_NUMBER: _ClassVar[int]
    base: str
    other: str
    with_values: bool
    def __init__(self, base: _Optional[str] = ..., other: _Optional[str] = ..., with_values: bool = ...) -> None: ...

class DiffCheckpointsResponse(_message.Message):
    __slots__ = ("differences", "equal_count", "different_count")
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    EQUAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIFFERENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    differences: _containers.RepeatedCompositeFieldContainer[TensorDifference]
    equal_count: int
    different_count: int
    def __init__(self, differences: _Optional[_Iterable[_Union[TensorDifference, _Mapping]]] = ..., equal_count: _Optional[int] = ..., different_count: _Optional[int] = ...) -> None: ...
