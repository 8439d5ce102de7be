"""The safetensors container: its header, read with suspicion and written byte-exactly.

Format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes. The header maps each name to
`{"dtype", "shape", "data_offsets": [begin, end]}` relative to the end of the header, and may hold "__metadata__".
A header is data from outside: every field is checked before a byte of a tensor is touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mindeval.formats.errors import FormatError

MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 200_000
MAX_DIMENSIONS = 16

ITEM_SIZE = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element for each dtype name."""


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor lies in a file: bytes [begin, end) from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Length of the tensor's bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class Header:
    """A checked header: tensors by position in the file, the free text pairs, and where the data begin."""

    tensors: tuple[TensorSlot, ...]
    metadata: dict[str, str]
    data_begin: int


def tensor_size_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a dense tensor of a known dtype name and shape."""
    size = ITEM_SIZE[dtype]
    for dim in shape:
        size *= dim
    return size


def parse_header(prefix: bytes, file_size: int, file: str) -> Header:
    """Reads and checks a header.

    Args:
        prefix: The first bytes of the file, at least 8 + header length of them (see `header_length`).
        file_size: Size of the whole file in bytes.
        file: Name of the file, for messages.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED; metadata name the file and the tensor.
    """
    length = header_length(prefix[:8], file_size, file)
    try:
        raw = json.loads(prefix[8 : 8 + length].decode("utf-8"), object_pairs_hook=_unique_pairs)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _unreadable(file, f"its header is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise _unreadable(file, "its header is not a JSON object")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _unreadable(file, "its __metadata__ is not a map of text to text")
    if len(raw) > MAX_TENSORS:
        raise _unreadable(file, f"it declares {len(raw)} tensors; at most {MAX_TENSORS} are read")
    data_begin = 8 + length
    slots = sorted(
        (_slot(name, entry, data_begin, file) for name, entry in raw.items()), key=lambda s: (s.begin, s.end)
    )
    position = data_begin
    for slot in slots:
        if slot.begin != position:
            kind = "overlaps the tensor before it" if slot.begin < position else "leaves a gap before it"
            raise _unreadable(file, f"tensor {slot.name!r} {kind}", slot.name)
        position = slot.end
    if position > file_size:
        last = next(slot for slot in slots if slot.end > file_size)
        raise FormatError(
            "CHECKPOINT_TRUNCATED",
            f"{file}: the file ends at byte {file_size} but its header declares tensors up to byte {position} "
            f"(first cut tensor: {last.name!r}); copy or save it again",
            {"file": file, "tensor": last.name},
        )
    if position < file_size:
        raise _unreadable(file, f"{file_size - position} bytes follow the last tensor")
    return Header(tuple(slots), metadata, data_begin)


def header_length(first_bytes: bytes, file_size: int, file: str) -> int:
    """Checked length of the JSON header, from the first 8 bytes of a file.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED.
    """
    if file_size < 8 or len(first_bytes) < 8:
        raise FormatError(
            "CHECKPOINT_TRUNCATED",
            f"{file}: {file_size} bytes are too few for a safetensors file; copy or save it again",
            {"file": file},
        )
    length = int.from_bytes(first_bytes[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise _unreadable(file, f"its header would be {length} bytes long (at most {MAX_HEADER_BYTES})")
    if 8 + length > file_size:
        raise FormatError(
            "CHECKPOINT_TRUNCATED",
            f"{file}: the header needs {8 + length} bytes, the file has {file_size}; copy or save it again",
            {"file": file},
        )
    return length


def encode_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Writes the header of a file whose tensors follow in the given order.

    Args:
        tensors: (name, dtype name, shape) in file order.
        metadata: Free text pairs.

    Returns:
        The first bytes of the file (length, JSON, padding to a multiple of 8) and, by name, the bytes [begin, end) of
        each tensor from the start of the file.
    """
    entries: dict[str, Any] = {}
    if metadata:
        entries["__metadata__"] = dict(metadata)
    position = 0
    for name, dtype, shape in tensors:
        size = tensor_size_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    spans = {
        name: (begin + entry["data_offsets"][0], begin + entry["data_offsets"][1])
        for name, entry in entries.items()
        if name != "__metadata__"
    }
    return len(text).to_bytes(8, "little") + text, spans


def _slot(name: str, entry: Any, data_begin: int, file: str) -> TensorSlot:
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _unreadable(file, f"tensor {name!r} lacks dtype, shape or data_offsets", name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_SIZE:
        raise _unreadable(file, f"tensor {name!r} has the unknown dtype {str(dtype)[:40]!r}", name)
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(_is_size(dim) for dim in shape):
        raise _unreadable(file, f"tensor {name!r} has an invalid shape", name)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(value) for value in offsets):
        raise _unreadable(file, f"tensor {name!r} has invalid data_offsets", name)
    expected = tensor_size_bytes(dtype, shape)
    if offsets[1] - offsets[0] != expected:
        raise _unreadable(
            file, f"tensor {name!r} spans {offsets[1] - offsets[0]} bytes but {dtype} {shape} needs {expected}", name
        )
    return TensorSlot(name, dtype, tuple(shape), data_begin + offsets[0], data_begin + offsets[1])


def _is_size(value: Any) -> bool:
    # bool is an int in Python; 2**53 bounds what JSON numbers carry exactly.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} stands twice")
            seen.add(name)
    return result


def _unreadable(file: str, what: str, tensor: str = "") -> FormatError:
    metadata = {"file": file, **({"tensor": tensor} if tensor else {})}
    return FormatError(
        "CHECKPOINT_UNREADABLE", f"{file}: not a readable safetensors file: {what}; save it again", metadata
    )
