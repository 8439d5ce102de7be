"""A .safetensors file as tensors: the header is `mindeval.formats.safetensors`', the file may be anything."""

from __future__ import annotations

import os

from mindeval.formats import safetensors
from mindeval.formats.readers.files import PathLike, open_regular, read_at, stamp_of, unreadable
from mindeval.formats.readers.records import ByteSpan, CheckpointFile, TensorRecord
from mindeval.formats.readers.training_state import read_appended

# MindSpore stores two 4-bit integers in a byte and says so in the metadata, under the tensor's name.
_PACKED_TYPE = "Int4"


def read_safetensors(path: PathLike) -> CheckpointFile:
    """Finds the tensors of a .safetensors file, in the order of their bytes.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED; metadata name the file and the tensor.
    """
    where = os.fspath(path)
    with open_regular(path) as (descriptor, status):
        prefix = read_at(descriptor, 0, 8, path)
        length = safetensors.header_length(prefix, status.st_size, where)
        prefix += read_at(descriptor, 8, length, path)
        header = safetensors.parse_header(prefix, status.st_size, where)
        for slot in header.tensors:
            if header.metadata.get(slot.name) == _PACKED_TYPE:
                raise unreadable(where, "it holds packed 4-bit integers, which cannot be evaluated", slot.name)
        tensors = tuple(
            TensorRecord(
                slot.name, slot.dtype, slot.shape, (ByteSpan(where, slot.begin, slot.end),) if slot.size_bytes else ()
            )
            for slot in header.tensors
        )
        extras = read_appended(tensors, descriptor)
    return CheckpointFile(
        path=where,
        tensors=tensors,
        extras=extras,
        stamp=stamp_of(status),
        payload_end=status.st_size,
        is_deduplicated=header.metadata.get("remove_redundancy") == "True",
    )
