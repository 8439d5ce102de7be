"""Snapshots: two preallocated, memory-mapped safetensors files that parameters are copied into.

The header of a file depends on names, dtypes and shapes only, so it is written once; a snapshot is then one memory
copy, and what it leaves behind is a valid file that another process can read, hash and send. Pages are reserved and
touched when the file is made: a full disk is an error at the start, not a SIGBUS in the middle of training, and no
snapshot pays for page faults.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindeval.formats.errors import MindEvalError
from mindeval.formats.safetensors import ITEM_SIZE, encode_header, parse_header, tensor_size_bytes

Bits = NDArray[Any]

SAFETENSORS_DTYPE = {
    "Bool": "BOOL",
    "UInt8": "U8",
    "Int8": "I8",
    "Int16": "I16",
    "UInt16": "U16",
    "Float16": "F16",
    "BFloat16": "BF16",
    "Int32": "I32",
    "UInt32": "U32",
    "Float32": "F32",
    "Int64": "I64",
    "UInt64": "U64",
    "Float64": "F64",
}
"""Name in safetensors by MindSpore's name of a dtype."""


@dataclass(frozen=True)
class ParameterSpec:
    """A parameter as the file sees it: name, dtype name of safetensors, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class SnapshotBuffer:
    """One mapped file. Free, or held by a push until the agent releases it.

    Attributes:
        path: The file.
        holder: Id of the push that must not be overwritten yet; None when free.
        content: Id of the push whose weights lie in it, also after its release; None before the first.
    """

    def __init__(self, path: Path, specs: Sequence[ParameterSpec]) -> None:
        self.path = path
        self.holder: int | None = None
        self.content: int | None = None
        header, spans = encode_header((spec.name, spec.dtype, spec.shape) for spec in specs)
        size = max([len(header), *(end for _, end in spans.values())])
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._map[: len(header)] = header
        self._targets: dict[str, Bits] = {}
        for spec in specs:
            begin, end = spans[spec.name]
            item = np.dtype(f"u{ITEM_SIZE[spec.dtype]}")
            if end > begin:
                flat = np.frombuffer(self._map, dtype=item, count=(end - begin) // item.itemsize, offset=begin)
                self._targets[spec.name] = flat.reshape(spec.shape)
                self._targets[spec.name][...] = 0

    def copy(self, arrays: Iterable[tuple[str, Any]]) -> None:
        """Copies parameters into the file.

        Args:
            arrays: (name, array) of every parameter, arrays in the dtype and shape announced.
        """
        targets = self._targets
        for name, array in arrays:
            target = targets.get(name)
            if target is not None:
                # Same-width integers on both sides: a plain memory copy for every dtype, bfloat16 included.
                np.copyto(target, array.view(target.dtype))

    def close(self) -> None:
        """Unmaps and removes the file; a reader that has it open keeps its bytes."""
        self._targets.clear()
        self._map.close()
        self.path.unlink(missing_ok=True)


class SnapshotBuffers:
    """The two buffers of a run.

    Args:
        folder: Where the files are made.
        specs: Every parameter.

    Raises:
        OSError: When the folder has no room for two snapshots.
    """

    def __init__(self, folder: Path, specs: Sequence[ParameterSpec]) -> None:
        # Widest first, so that every tensor is aligned to its item and the copy is never split at odd addresses.
        ordered = sorted(specs, key=lambda spec: -ITEM_SIZE[spec.dtype])
        self.buffers: list[SnapshotBuffer] = []
        try:
            for index in range(2):
                self.buffers.append(SnapshotBuffer(folder / f"snapshot-{index}.safetensors", ordered))
        except BaseException:
            self.close()
            raise

    def acquire(self, holder: int) -> SnapshotBuffer | None:
        """A free buffer, now held; None when both are in use."""
        free = [buffer for buffer in self.buffers if buffer.holder is None]
        if not free:
            return None
        # The older content goes first: the newer one may still be wanted if the agent has to be restarted.
        buffer = min(free, key=lambda candidate: -1 if candidate.content is None else candidate.content)
        buffer.holder, buffer.content = holder, None
        return buffer

    def release(self, holder: int) -> None:
        """Frees the buffer that a push holds, if it still holds one."""
        for buffer in self.buffers:
            if buffer.holder == holder:
                buffer.holder = None

    def release_all_but(self, holders: Container[int]) -> None:
        """Frees every buffer that none of these pushes holds."""
        for buffer in self.buffers:
            if buffer.holder is not None and buffer.holder not in holders:
                buffer.holder = None

    def containing(self, push: int) -> SnapshotBuffer | None:
        """The buffer in which a push's weights still lie untouched."""
        return next((buffer for buffer in self.buffers if buffer.content == push), None)

    def close(self) -> None:
        """Removes the files."""
        for buffer in self.buffers:
            buffer.close()
        self.buffers = []


def snapshot_size_bytes(specs: Iterable[ParameterSpec]) -> int:
    """Bytes of one snapshot's tensors."""
    return sum(tensor_size_bytes(spec.dtype, spec.shape) for spec in specs)


def read_snapshot(path: Path, specs: Sequence[ParameterSpec]) -> dict[str, Bits]:
    """Reads a safetensors file back, as unsigned integers of each item's width.

    Args:
        path: The file.
        specs: What it must hold: exactly these names, dtypes and shapes.

    Returns:
        By name, a copy of the tensor's bits in its shape.

    Raises:
        FormatError: The file is damaged.
        MindEvalError: TENSOR_MISSING, TENSOR_UNEXPECTED or TENSOR_MISMATCH.
    """
    data = np.memmap(path, dtype=np.uint8, mode="r")
    length = int.from_bytes(data[:8].tobytes(), "little") if len(data) >= 8 else 0
    header = parse_header(data[: 8 + length].tobytes(), len(data), path.name)
    slots = {slot.name: slot for slot in header.tensors}
    expected = {spec.name: spec for spec in specs}
    _refuse("TENSOR_MISSING", "lacks", expected.keys() - slots.keys())
    _refuse("TENSOR_UNEXPECTED", "has the unknown tensor", slots.keys() - expected.keys())
    result: dict[str, Bits] = {}
    for name, spec in expected.items():
        slot = slots[name]
        if (slot.dtype, slot.shape) != (spec.dtype, spec.shape):
            raise MindEvalError(
                "TENSOR_MISMATCH",
                f"{name}: the checkpoint has {slot.dtype} {list(slot.shape)}, the network {spec.dtype} "
                f"{list(spec.shape)}",
                {"tensor": name},
            )
        raw = np.array(data[slot.begin : slot.end])
        result[name] = raw.view(f"u{ITEM_SIZE[spec.dtype]}").reshape(spec.shape)
    return result


def safetensors_dtype(name: str, mindspore_dtype: str) -> str:
    """Dtype name in safetensors.

    Raises:
        MindEvalError: MODEL_UNSUPPORTED for a dtype that the format does not have.
    """
    found: Mapping[str, str] = SAFETENSORS_DTYPE
    if mindspore_dtype not in found:
        raise MindEvalError(
            "MODEL_UNSUPPORTED",
            f"parameter {name} has the dtype {mindspore_dtype}, which safetensors cannot hold",
            {"tensor": name},
        )
    return found[mindspore_dtype]


def _refuse(reason: str, what: str, names: Iterable[str]) -> None:
    first = min(names, default=None)
    if first is not None:
        raise MindEvalError(reason, f"the checkpoint {what} {first}", {"tensor": first})
