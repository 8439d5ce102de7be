"""MindSpore's .ckpt: tensors found by walking over the protobuf records, without reading what is in them.

A file is a row of records, each field 1 of `Checkpoint`:

    message Checkpoint { repeated Value value = 1; }
    message Value { required string tag = 1; oneof { TensorProto tensor = 2; MapTensorProto maptensor = 3; } }
    message TensorProto { repeated int64 dims = 1; required string tensor_type = 2; required bytes tensor_content = 3; }

- A tensor above 512 MiB is written as several consecutive records of one tag; each repeats the dims of the whole.
  Saving in the background cuts along the first axis, so that a piece may be empty.
- `append_dict` entries are tensors of no dimension, or text: the type "str", dims [0], UTF-32 content. Old releases
  wrote dims [0] for numbers too.
- `crc_check=True` appends b"crc_num" and the CRC-32 of all before it as 10 big-endian bytes. No record begins so.
- A tensor without elements that is saved in the foreground leaves no record at all.
- A file that was cut exactly between two tensors is a valid, smaller file. Only a checksum (`verify_crc`), or the
  model, tells; a cut between two records of one tensor is found here.

MindSpore itself trusts dims and lengths and crashes on wrong ones. Here a record has to be exactly what its writer
makes: known fields only, once each, in order, with prod(dims) * item size bytes of content.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from mindeval.formats.errors import FormatError
from mindeval.formats.manifest import MAX_NAME_LENGTH
from mindeval.formats.readers import wire
from mindeval.formats.readers.files import PathLike, corrupt, open_regular, read_at, stamp_of, truncated, unreadable
from mindeval.formats.readers.records import ByteSpan, CheckpointFile, TensorRecord
from mindeval.formats.readers.training_state import read_appended
from mindeval.formats.safetensors import ITEM_SIZE, MAX_DIMENSIONS, MAX_TENSORS, tensor_size_bytes

DTYPES = {
    "Bool": "BOOL",
    "Int8": "I8", "Int16": "I16", "Int32": "I32", "Int64": "I64",
    "UInt8": "U8", "UInt16": "U16", "UInt32": "U32", "UInt64": "U64",
    "Float16": "F16", "BFloat16": "BF16", "Float32": "F32", "Float64": "F64",
}  # fmt: skip
"""The safetensors name of each of MindSpore's dtype names."""

MAX_PIECES = 100_000
# protobuf's own bound on a message; MindSpore's records are a quarter of it.
_MAX_RECORD_BYTES = (1 << 31) - 1
# A name of 1,024 four-byte characters, 16 dims and a type take less.
_MAX_PREFIX_BYTES = 8 << 10
_MAX_TEXT_BYTES = 1 << 20
_TEXT_TYPE = "str"

_CRC_MARK = b"crc_num"
_CRC_TRAILER_BYTES = len(_CRC_MARK) + 10
_CRC_READ_BYTES = 1 << 20

_ENCRYPTED = {0x7F3A5ED8: "AES-GCM", 0x7F3A5ED9: "AES-CBC", 0x7F3A5EDA: "SM4-CBC"}
_OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive, as PyTorch writes; convert the weights to safetensors"),
    (b"\x80\x02", "a Python pickle, which is never loaded; convert the weights to safetensors"),
    (b"\x89HDF", "an HDF5 file; convert the weights to safetensors"),
)

_RECORD = wire.key_of(1, wire.BYTES)
_TAG = wire.key_of(1, wire.BYTES)
_TENSOR = wire.key_of(2, wire.BYTES)
_MAP_TENSOR = wire.key_of(3, wire.BYTES)
_DIM = wire.key_of(1, wire.VARINT)
_DIMS = wire.key_of(1, wire.BYTES)
_TYPE = wire.key_of(2, wire.BYTES)
_CONTENT = wire.key_of(3, wire.BYTES)


def read_mindspore_ckpt(path: PathLike) -> CheckpointFile:
    """Finds the tensors of a .ckpt file.

    Reads a few bytes a record and never a tensor's content; memory is bounded by the number of tensors.

    Args:
        path: The file.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED; metadata name the file and the tensor.
    """
    with open_regular(path) as (descriptor, status):
        walker = _Walker(descriptor, status.st_size, os.fspath(path))
        walker.walk()
        tensors = tuple(walker.tensors)
        return CheckpointFile(
            path=walker.path,
            tensors=tensors,
            extras={**walker.texts, **read_appended(tensors, descriptor)},
            stamp=stamp_of(status),
            payload_end=walker.payload_end,
            crc=walker.crc,
        )


def verify_crc(checkpoint: CheckpointFile, on_piece: Callable[[], None] | None = None) -> bool:
    """Compares the file with the checksum at its end; reads the whole file, a piece at a time.

    Args:
        checkpoint: The file.
        on_piece: Called before each piece; may raise to end it.

    Returns:
        False when the writer left no checksum.

    Raises:
        FormatError: CHECKPOINT_CORRUPT when they differ, CHECKPOINT_TRUNCATED when the file is shorter by now.
    """
    if checkpoint.crc is None:
        return False
    found = position = 0
    with open_regular(checkpoint.path) as (descriptor, _):
        while position < checkpoint.payload_end:
            if on_piece is not None:
                on_piece()
            want = min(_CRC_READ_BYTES, checkpoint.payload_end - position)
            piece = read_at(descriptor, position, want, checkpoint.path)
            if len(piece) < want:
                raise truncated(checkpoint.path, f"it ends at byte {position + len(piece)}")
            found = zlib.crc32(piece, found)
            position += want
    if found != checkpoint.crc:
        raise corrupt(checkpoint.path, "its bytes do not have the CRC-32 at its end; copy or save it again")
    return True


@dataclass
class _Entry:
    """One tensor while its records come in."""

    name: str
    dtype: str
    dims: list[int]
    size_bytes: int = 0
    spans: list[ByteSpan] = field(default_factory=list)


class _Walker:
    """Walks once over the records of a file."""

    def __init__(self, descriptor: int, size: int, path: str) -> None:
        self.path = path
        self.tensors: list[TensorRecord] = []
        self.texts: dict[str, str] = {}
        self.crc: int | None = None
        self.payload_end = size
        self._descriptor = descriptor
        self._window = b""
        self._window_begin = 0
        self._names: set[str] = set()
        self._entry: _Entry | None = None
        self._pieces = 0

    def walk(self) -> None:
        """Fills the attributes."""
        if self.payload_end == 0:
            raise truncated(self.path, "the file is empty")
        self._refuse_other_formats()
        self._take_trailer()
        position = 0
        while position < self.payload_end:
            position = self._record(position)
        self._finish(is_last=True)
        if not self.tensors:
            raise unreadable(self.path, "it holds no tensor")

    def _refuse_other_formats(self) -> None:
        head = self._bytes(0, 16)
        mode = _ENCRYPTED.get(int.from_bytes(head[:4], "little"))
        if mode is not None:
            raise unreadable(
                self.path,
                f"it is encrypted ({mode}); load it with its key and save it again without enc_key",
            )
        for magic, what in _OTHER_FORMATS:
            if head.startswith(magic):
                raise unreadable(self.path, f"not a MindSpore checkpoint but {what}")
        if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= self.payload_end:
            raise unreadable(self.path, "not a MindSpore checkpoint but safetensors; rename it to .safetensors")

    def _take_trailer(self) -> None:
        begin = self.payload_end - _CRC_TRAILER_BYTES
        if begin < 0:
            return
        trailer = read_at(self._descriptor, begin, _CRC_TRAILER_BYTES, self.path)
        if trailer.startswith(_CRC_MARK):
            self.crc = int.from_bytes(trailer[len(_CRC_MARK) :], "big")
            self.payload_end = begin

    def _bytes(self, position: int, count: int) -> bytes:
        """Up to `count` bytes of the payload from `position`; small tensors come many to a read."""
        at = position - self._window_begin
        count = min(count, self.payload_end - position)
        if at < 0 or at + count > len(self._window):
            self._window = read_at(self._descriptor, position, _MAX_PREFIX_BYTES * 2, self.path)
            self._window_begin, at = position, 0
        return self._window[at : at + count]

    def _record(self, begin: int) -> int:
        """Reads the record at `begin`; returns where the next one begins."""
        prefix = self._bytes(begin, _MAX_PREFIX_BYTES)
        name = ""
        limit = _MAX_RECORD_BYTES
        try:
            at, limit = self._length(prefix, 0, _RECORD, "a record")
            if limit > _MAX_RECORD_BYTES:
                self._fail(f"the record at byte {begin} would be {limit} bytes long", name)
            name_at, name_end = self._length(prefix, at, _TAG, "a name")
            name = self._text(prefix, name_at, name_end, MAX_NAME_LENGTH * 4, "name")
            if not 0 < len(name) <= MAX_NAME_LENGTH or "\0" in name:
                self._fail(f"the record at byte {begin} has a name that is empty, too long or holds NUL", "")
            if begin + limit > self.payload_end:
                raise truncated(
                    self.path,
                    f"the file ends at byte {self.payload_end}, but the record goes on to byte {begin + limit}",
                    name,
                )
            prefix = prefix[:limit]
            if prefix[name_end : name_end + 1] == bytes([_MAP_TENSOR]):
                self._fail(
                    "it is a MapParameter (a hash table), which cannot be evaluated; export it as a tensor", name
                )
            at, tensor_end = self._length(prefix, name_end, _TENSOR, "a tensor")
            if tensor_end != limit:
                self._fail(f"the record at byte {begin} does not end with its tensor", name)
            self._tensor(prefix, at, tensor_end, begin, name)
        except wire.EndOfBytesError:
            if len(prefix) == limit:
                self._fail(f"the record at byte {begin} ends within a field", name)
            if begin + len(prefix) < self.payload_end:
                self._fail(f"the record at byte {begin} begins with more than {len(prefix)} bytes", name)
            raise truncated(self.path, f"it ends within the record at byte {begin}", name) from None
        except wire.WireError as error:
            self._fail(f"the record at byte {begin}: {error}", name)
        return begin + limit

    def _tensor(self, prefix: bytes, at: int, end: int, begin: int, name: str) -> None:
        """Reads the TensorProto in `prefix[at:end]`; its content goes on past `prefix`."""
        dims: list[int] = []
        kind = ""
        while True:
            key, value_at = wire.read_varint(prefix, at, len(prefix))
            if key == _DIM and not kind:
                dim, at = wire.read_varint(prefix, value_at, len(prefix))
                dims.append(wire.signed(dim))
            elif key == _DIMS and not kind:
                value_at, at = self._length(prefix, at, _DIMS, "dims")
                packed = wire.read_numbers(prefix, key, (value_at, at), MAX_DIMENSIONS)
                dims.extend(wire.signed(dim) for dim in packed)
            elif key == _TYPE and not kind:
                value_at, at = self._length(prefix, at, _TYPE, "a type")
                kind = self._text(prefix, value_at, at, 64, "type")
            elif key == _CONTENT and kind:
                value_at, at = self._length(prefix, at, _CONTENT, "content")
                break
            else:
                self._fail(f"the record at byte {begin} has the field {key >> 3} where none is expected", name)
            if len(dims) > MAX_DIMENSIONS:
                self._fail(f"it has more than {MAX_DIMENSIONS} dimensions", name)
        if at != end:
            self._fail(f"the record at byte {begin} does not end with its content", name)
        self._piece(name, kind, dims, begin + value_at, begin + end)

    def _piece(self, name: str, kind: str, dims: list[int], begin: int, end: int) -> None:
        entry = self._entry
        if entry is None or entry.name != name:
            self._finish(is_last=False)
            entry = self._open_entry(name, kind, dims)
        elif (DTYPES.get(kind, kind), dims) != (entry.dtype, entry.dims):
            self._fail("two records in a row hold it with different shapes or dtypes", name)
        if entry.dtype == _TEXT_TYPE:
            self._take_text(name, begin, end)
            return
        self._pieces += 1
        if self._pieces > MAX_TENSORS + MAX_PIECES:
            self._fail(f"it has more than {MAX_TENSORS + MAX_PIECES} records", name)
        entry.size_bytes += end - begin
        if end > begin:
            entry.spans.append(ByteSpan(self.path, begin, end))

    def _open_entry(self, name: str, kind: str, dims: list[int]) -> _Entry:
        if name in self._names:
            self._fail("the name stands twice", name)
        self._names.add(name)
        if len(self._names) > MAX_TENSORS:
            self._fail(f"it holds more than {MAX_TENSORS} tensors", "")
        if kind != _TEXT_TYPE and kind not in DTYPES:
            self._fail(f"it has the unknown dtype {kind!r}", name)
        if any(not 0 <= dim < 2**53 for dim in dims):
            self._fail(f"it has the invalid shape {dims}", name)
        self._entry = _Entry(name, DTYPES.get(kind, kind), dims)
        return self._entry

    def _take_text(self, name: str, begin: int, end: int) -> None:
        if name in self.texts or (end - begin) % 4 or end - begin > _MAX_TEXT_BYTES:
            self._fail("it is text, but not of one record, of whole UTF-32 characters and of at most 1 MiB", name)
        try:
            text = read_at(self._descriptor, begin, end - begin, self.path).decode("utf-32-le")
        except UnicodeDecodeError as error:
            self._fail(f"it is text, but not UTF-32 ({error.reason})", name)
        self.texts[name] = text.rstrip("\0")

    def _finish(self, is_last: bool) -> None:
        """Closes the tensor whose records have all come."""
        entry, self._entry = self._entry, None
        if entry is None or entry.dtype == _TEXT_TYPE:
            return
        dims = entry.dims
        if dims == [0] and entry.size_bytes == ITEM_SIZE[entry.dtype]:
            dims = []
        expected = tensor_size_bytes(entry.dtype, dims)
        if entry.size_bytes != expected:
            what = f"{entry.dtype} {dims} needs {expected} bytes, the file has {entry.size_bytes} of it"
            if is_last and entry.size_bytes < expected:
                raise truncated(self.path, what, entry.name)
            self._fail(what, entry.name)
        self.tensors.append(TensorRecord(entry.name, entry.dtype, tuple(dims), tuple(entry.spans)))

    def _length(self, prefix: bytes, at: int, key: int, what: str) -> tuple[int, int]:
        """Where the bytes of the expected field begin and end, from the start of the record."""
        found, at = wire.read_varint(prefix, at, len(prefix))
        if found != key:
            raise wire.WireError(f"{what} was expected {at - 1} bytes into it")
        size, at = wire.read_varint(prefix, at, len(prefix))
        return at, at + size

    def _text(self, prefix: bytes, at: int, end: int, max_bytes: int, what: str) -> str:
        if end - at > max_bytes:
            raise wire.WireError(f"its {what} would be {end - at} bytes long")
        if end > len(prefix):
            raise wire.EndOfBytesError("it ends within text")
        try:
            return prefix[at:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise wire.WireError(f"its {what} is not UTF-8 ({error.reason})") from None

    def _fail(self, what: str, tensor: str) -> NoReturn:
        raise self._error(what, tensor)

    def _error(self, what: str, tensor: str) -> FormatError:
        return unreadable(self.path, f"not a readable MindSpore checkpoint: {what}", tensor)
