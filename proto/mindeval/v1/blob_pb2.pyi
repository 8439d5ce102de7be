from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Upload(_message.Message):
    __slots__ = ("name", "digest", "size_bytes", "committed_offset", "complete", "expire_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    size_bytes: int
    committed_offset: int
    complete: bool
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., committed_offset: _Optional[int] = ..., complete: bool = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class FindMissingBlobsRequest(_message.Message):
    __slots__ = ("parent", "digests")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    parent: str
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, parent: _Optional[str] = ..., digests: _Optional[_Iterable[str]] = ...) -> None: ...

class FindMissingBlobsResponse(_message.Message):
    __slots__ = ("missing_digests",)
    MISSING_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    missing_digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, missing_digests: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateUploadRequest(_message.Message):
    __slots__ = ("parent", "digest", "size_bytes")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    parent: str
    digest: str
    size_bytes: int
    def __init__(self, parent: _Optional[str] = ..., digest: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class CreateUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...

class WriteUploadRequest(_message.Message):
    __slots__ = ("name", "offset", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    data: bytes
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteUploadResponse(_message.Message):
    __slots__ = ("committed_offset",)
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    committed_offset: int
    def __init__(self, committed_offset: _Optional[int] = ...) -> None: ...

class CommitUploadRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CommitUploadResponse(_message.Message):
    __slots__ = ("upload",)
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    upload: Upload
    def __init__(self, upload: _Optional[_Union[Upload, _Mapping]] = ...) -> None: ...

class SmallBlob(_message.Message):
    __slots__ = ("digest", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteSmallBlobsRequest(_message.Message):
    __slots__ = ("parent", "blobs")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    parent: str
    blobs: _containers.RepeatedCompositeFieldContainer[SmallBlob]
    def __init__(self, parent: _Optional[str] = ..., blobs: _Optional[_Iterable[_Union[SmallBlob, _Mapping]]] = ...) -> None: ...

class WriteSmallBlobsResponse(_message.Message):
    __slots__ = ("stored_count",)
    STORED_COUNT_FIELD_NUMBER: _ClassVar[int]
    stored_count: int
    def __init__(self, stored_count: _Optional[int] = ...) -> None: ...

class ReadBlobRequest(_message.Message):
    __slots__ = ("parent", "digest", "offset", "limit_bytes")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    parent: str
    digest: str
    offset: int
    limit_bytes: int
    def __init__(self, parent: _Optional[str] = ..., digest: _Optional[str] = ..., offset: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class ReadBlobResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...
