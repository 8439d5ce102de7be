"""The bytes of a full tensor, row-major, out of blocks that lie in several files, in bounded memory.

Neighbouring axes are first joined as far as no block is cut between them, so that a tensor split along its first axis
is a row of long runs, and one split along its last is a table of rows whose cells come from different files. Then bands
of whole rows are put together: one contiguous read for each block in the band, copied into place. When a single row is
longer than the piece asked for, each row is treated as a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

import numpy as np

from mindeval.formats.readers.files import FilePool
from mindeval.formats.readers.parts import AssembledTensor
from mindeval.formats.readers.records import TensorRecord
from mindeval.formats.safetensors import ITEM_SIZE

CHUNK_BYTES = 1 << 20


def iter_bytes(
    tensor: AssembledTensor,
    chunk_bytes: int = CHUNK_BYTES,
    pool: FilePool | None = None,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[bytes]:
    """The full tensor's bytes [begin, end), in order; takes about three times `chunk_bytes` of memory.

    Args:
        tensor: What `assemble` returned.
        chunk_bytes: Length of a piece, at most.
        pool: Open files to share over several tensors; None for files of its own.
        begin: First byte; what comes before it is not read, but for the rest of its row.
        end: Behind the last byte; None for all.

    Raises:
        FormatError: CHECKPOINT_TRUNCATED when a file is shorter by now, CHECKPOINT_UNREADABLE when it cannot be read.
        ValueError: When the parts do not tile the tensor, or `chunk_bytes` is not positive.
    """
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes is {chunk_bytes}; at least 1 is needed")
    if sum(prod(part.sizes) for part in tensor.parts) != prod(tensor.shape):
        raise ValueError(f"the parts of {tensor.name!r} do not tile it")
    end = tensor.size_bytes if end is None else min(end, tensor.size_bytes)
    if begin >= end:
        return
    shape, blocks = _join_axes(tensor)
    with nullcontext(pool) if pool is not None else FilePool() as files:
        yield from _emit(shape, blocks, chunk_bytes, files, begin, end)


def iter_record_bytes(
    record: TensorRecord, chunk_bytes: int = CHUNK_BYTES, pool: FilePool | None = None
) -> Iterator[bytes]:
    """The bytes of one record, in order, in pieces of at most `chunk_bytes`.

    Raises:
        FormatError: As `iter_bytes`.
    """
    size = record.size_bytes
    with nullcontext(pool) if pool is not None else FilePool() as files:
        for offset in range(0, size, chunk_bytes):
            piece = bytearray(min(chunk_bytes, size - offset))
            _read(record, offset, memoryview(piece), files)
            yield bytes(piece)


@dataclass(frozen=True)
class _Block:
    """Bytes of a record from `base` on, as a block of a table of bytes."""

    record: TensorRecord
    base: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def _join_axes(tensor: AssembledTensor) -> tuple[tuple[int, ...], list[_Block]]:
    """The tensor as a table of bytes with as few axes as its blocks allow, and the blocks in it."""
    shape = [ITEM_SIZE[tensor.dtype]]
    offsets = [[0] for _ in tensor.parts]
    sizes = [[shape[0]] for _ in tensor.parts]
    for axis in range(len(tensor.shape) - 1, -1, -1):
        unit = shape[0]
        if all(size[0] == unit for size in sizes):
            shape[0] = unit * tensor.shape[axis]
            for index, part in enumerate(tensor.parts):
                offsets[index][0] = unit * part.offsets[axis]
                sizes[index][0] = unit * part.sizes[axis]
        else:
            shape.insert(0, tensor.shape[axis])
            for index, part in enumerate(tensor.parts):
                offsets[index].insert(0, part.offsets[axis])
                sizes[index].insert(0, part.sizes[axis])
    blocks = [
        _Block(part.record, 0, tuple(offsets[index]), tuple(sizes[index])) for index, part in enumerate(tensor.parts)
    ]
    return tuple(shape), blocks


def _emit(
    shape: tuple[int, ...], blocks: Sequence[_Block], chunk_bytes: int, files: FilePool, begin: int, end: int
) -> Iterator[bytes]:
    """Bytes [begin, end) of the table; there is at least one."""
    row_bytes = prod(shape[1:])
    first_row, last_row = begin // row_bytes, -(-end // row_bytes)
    if len(shape) == 1 or row_bytes <= chunk_bytes:
        rows = chunk_bytes // row_bytes
        for start in sorted({block.offsets[0] for block in blocks}):
            members = [block for block in blocks if block.offsets[0] == start]
            stop = min(start + members[0].sizes[0], last_row)
            for row in range(max(start, first_row), stop, rows):
                count = min(rows, stop - row)
                band = _band(shape, members, row, count, files)
                base = row * row_bytes
                # Only the first and the last band can reach beyond what was asked for.
                yield band[max(begin - base, 0) : end - base] if begin > base or end < base + len(band) else band
        return
    for row in range(first_row, last_row):
        base = row * row_bytes
        inner = [_row_of(block, row) for block in blocks if _has_row(block, row)]
        low, high = max(begin - base, 0), min(end - base, row_bytes)
        yield from _emit(shape[1:], inner, chunk_bytes, files, low, high)


def _band(shape: tuple[int, ...], members: Sequence[_Block], row: int, rows: int, files: FilePool) -> bytes:
    """Rows [row, row + rows) of the table; the members are the blocks that hold them."""
    band = np.empty((rows, *shape[1:]), np.uint8)
    for block in members:
        row_bytes = prod(block.sizes[1:])
        offset = block.base + (row - block.offsets[0]) * row_bytes
        if len(members) == 1:
            _read(block.record, offset, band.reshape(-1).data, files)
            break
        cells = np.empty((rows, *block.sizes[1:]), np.uint8)
        _read(block.record, offset, cells.reshape(-1).data, files)
        place = tuple(slice(at, at + size) for at, size in zip((0, *block.offsets[1:]), (rows, *block.sizes[1:])))
        band[place] = cells
    return band.tobytes()


def _has_row(block: _Block, row: int) -> bool:
    return block.offsets[0] <= row < block.offsets[0] + block.sizes[0]


def _row_of(block: _Block, row: int) -> _Block:
    base = block.base + (row - block.offsets[0]) * prod(block.sizes[1:])
    return _Block(block.record, base, block.offsets[1:], block.sizes[1:])


def _read(record: TensorRecord, offset: int, target: memoryview, files: FilePool) -> None:
    """Fills `target` with the record's bytes from `offset`, which may lie in several spans."""
    done = 0
    for span in record.spans:
        if offset >= span.size_bytes:
            offset -= span.size_bytes
            continue
        count = min(span.size_bytes - offset, len(target) - done)
        if count == 0:
            return
        files.read_into(span.path, span.begin + offset, target[done : done + count], record.name)
        done += count
        offset = 0
