from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DatasetFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATASET_FORMAT_UNSPECIFIED: _ClassVar[DatasetFormat]
    DATASET_FORMAT_TEXT: _ClassVar[DatasetFormat]
    DATASET_FORMAT_TEXT_LINES: _ClassVar[DatasetFormat]
    DATASET_FORMAT_JSONL: _ClassVar[DatasetFormat]
    DATASET_FORMAT_TOKENS_NPY: _ClassVar[DatasetFormat]
DATASET_FORMAT_UNSPECIFIED: DatasetFormat
DATASET_FORMAT_TEXT: DatasetFormat
DATASET_FORMAT_TEXT_LINES: DatasetFormat
DATASET_FORMAT_JSONL: DatasetFormat
DATASET_FORMAT_TOKENS_NPY: DatasetFormat

class Dataset(_message.Message):
    __slots__ = ("version", "files", "format", "language", "text_field", "padding_token", "create_time")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_FIELD_NUMBER: _ClassVar[int]
    PADDING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    version: str
    files: _containers.RepeatedCompositeFieldContainer[DatasetFile]
    format: DatasetFormat
    language: str
    text_field: str
    padding_token: int
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, version: _Optional[str] = ..., files: _Optional[_Iterable[_Union[DatasetFile, _Mapping]]] = ..., format: _Optional[_Union[DatasetFormat, str]] = ..., language: _Optional[str] = ..., text_field: _Optional[str] = ..., padding_token: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DatasetFile(_message.Message):
    __slots__ = ("path", "digest", "size_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    digest: str
    size_bytes: int
    def __init__(self, path: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Suite(_message.Message):
    __slots__ = ("version", "tasks", "description", "create_time")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    version: str
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    description: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, version: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., description: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("name", "type", "dataset", "metrics", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    dataset: str
    metrics: _containers.RepeatedScalarFieldContainer[str]
    settings: _struct_pb2.Struct
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., dataset: _Optional[str] = ..., metrics: _Optional[_Iterable[str]] = ..., settings: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class PutDatasetRequest(_message.Message):
    __slots__ = ("parent", "dataset_id", "dataset")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    parent: str
    dataset_id: str
    dataset: Dataset
    def __init__(self, parent: _Optional[str] = ..., dataset_id: _Optional[str] = ..., dataset: _Optional[_Union[Dataset, _Mapping]] = ...) -> None: ...

class PutDatasetResponse(_message.Message):
    __slots__ = ("dataset", "created")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    created: bool
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., created: bool = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetDatasetResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_page_token")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    next_page_token: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PutSuiteRequest(_message.Message):
    __slots__ = ("parent", "suite_id", "suite", "validate_only")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SUITE_ID_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    parent: str
    suite_id: str
    suite: Suite
    validate_only: bool
    def __init__(self, parent: _Optional[str] = ..., suite_id: _Optional[str] = ..., suite: _Optional[_Union[Suite, _Mapping]] = ..., validate_only: bool = ...) -> None: ...

class PutSuiteResponse(_message.Message):
    __slots__ = ("suite", "created")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    suite: Suite
    created: bool
    def __init__(self, suite: _Optional[_Union[Suite, _Mapping]] = ..., created: bool = ...) -> None: ...

class GetSuiteRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetSuiteResponse(_message.Message):
    __slots__ = ("suite",)
    SUITE_FIELD_NUMBER: _ClassVar[int]
    suite: Suite
    def __init__(self, suite: _Optional[_Union[Suite, _Mapping]] = ...) -> None: ...

class ListSuitesRequest(_message.Message):
    __slots__ = ("parent", "page_size", "page_token")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    parent: str
    page_size: int
    page_token: str
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSuitesResponse(_message.Message):
    __slots__ = ("suites", "next_page_token")
    SUITES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    suites: _containers.RepeatedCompositeFieldContainer[Suite]
    next_page_token: str
    def __init__(self, suites: _Optional[_Iterable[_Union[Suite, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
