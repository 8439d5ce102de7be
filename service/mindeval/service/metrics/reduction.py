"""Join the states of all ranks with nothing but a SUM over arrays of one size: no object gather, no int64.

Communication backends differ in what they reduce: some have only float32, none is exact for integers beyond 2**24
there. So a state is not reduced as numbers. Its bytes are laid into the rank's own slot of an array that is zero
elsewhere; the sum of all ranks' arrays is then all states side by side, and merging them on the host gives the same
bits as everywhere else. Ranks without samples take part with empty states, so no rank waits for another.

    total = all_reduce_state(state, rank, world, lambda array: all_reduce_sum_of_my_backend(array))
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.errors import MetricStateError
from mindeval.service.metrics.interface import MetricState
from mindeval.service.metrics.serial import AnyArray

DTYPES = ("float32", "int32")

_LIMBS = 7  # three of 16 bits for the size, two for the checksum, and two of known value
_KNOWN = (65535, 1)


def all_reduce_state(
    state: MetricState, rank: int, world: int, all_reduce: Callable[[AnyArray], AnyArray], dtype: str = "float32"
) -> MetricState:
    """The merged state of all ranks, on every rank. All ranks must call it, with the same family and settings.

    Args:
        state: This rank's state; unchanged.
        rank: This rank's number, from 0.
        world: The number of ranks.
        all_reduce: Sums an array over all ranks, element by element; called twice.
        dtype: `float32` or `int32`, whichever the backend sums exactly.

    Raises:
        MetricStateError: The backend did not sum exactly (`inexact_reduction`), or the states do not merge.
    """
    data = state.to_bytes()
    sizes, checksums = unpack_sizes(all_reduce(pack_size(data, rank, world, dtype)), world)
    packed = pack_for_all_reduce(data, rank, world, max(sizes), dtype)
    parts = unpack(all_reduce(packed), sizes, checksums)
    total = type(state).from_bytes(parts[0])
    for part in parts[1:]:
        total.merge(type(state).from_bytes(part))
    return total


def pack_size(data: bytes, rank: int, world: int, dtype: str) -> AnyArray:
    """This rank's slot of the first reduction: size and checksum of its bytes, shape (world * 7,)."""
    _check(rank, world, dtype)
    size, checksum = len(data), zlib.crc32(data)
    limbs = [size & 0xFFFF, size >> 16 & 0xFFFF, size >> 32, checksum & 0xFFFF, checksum >> 16, *_KNOWN]
    packed = np.zeros((world, _LIMBS), dtype=dtype)
    packed[rank] = limbs
    return packed.reshape(-1)


def unpack_sizes(summed: AnyArray, world: int) -> tuple[list[int], list[int]]:
    """Sizes and checksums of all ranks' bytes, from the sum of their `pack_size`.

    Raises:
        MetricStateError: A known entry has another value: the backend rounds, or a rank took part twice or not at
            all (`inexact_reduction`).
    """
    table = np.asarray(summed).reshape(world, _LIMBS).astype(np.int64).tolist()
    for rank, limbs in enumerate(table):
        if tuple(limbs[-2:]) != _KNOWN:
            raise MetricStateError(f"rank {rank}'s entry came back changed", reason="inexact_reduction")
    sizes = [low | middle << 16 | high << 32 for low, middle, high, *_ in table]
    return sizes, [limbs[3] | limbs[4] << 16 for limbs in table]


def pack_for_all_reduce(data: bytes, rank: int, world: int, slot_bytes: int, dtype: str) -> AnyArray:
    """This rank's bytes in its slot of an array that is zero elsewhere.

    A float32 element carries 16 bits, which it holds exactly; an int32 element carries 32.

    Args:
        data: The bytes, at most `slot_bytes`.
        rank: This rank's number.
        world: The number of ranks.
        slot_bytes: Size of the largest rank's bytes.
        dtype: `float32` or `int32`.

    Returns:
        Shape (world * elements,), where elements is the slot's size in units of 2 or 4 bytes, rounded up.
    """
    _check(rank, world, dtype)
    unit = np.dtype("<u2") if dtype == "float32" else np.dtype("<i4")
    elements = -(-slot_bytes // unit.itemsize)
    padded = data.ljust(elements * unit.itemsize, b"\0")
    packed = np.zeros((world, elements), dtype=dtype)
    packed[rank] = np.frombuffer(padded, dtype=unit)
    return packed.reshape(-1)


def unpack(summed: AnyArray, sizes: list[int], checksums: list[int]) -> list[bytes]:
    """All ranks' bytes from the sum of their `pack_for_all_reduce`.

    Raises:
        MetricStateError: Some bytes do not have their checksum (`inexact_reduction`).
    """
    array = np.asarray(summed).reshape(len(sizes), -1)
    unit: npt.DTypeLike = "<u2" if array.dtype == np.float32 else "<i4"
    parts = []
    for rank, (size, checksum) in enumerate(zip(sizes, checksums)):
        row = array[rank]
        if array.dtype == np.float32 and not ((row >= 0) & (row <= 65535)).all():
            raise MetricStateError(f"rank {rank}'s bytes came back changed", reason="inexact_reduction")
        data = row.astype(unit).tobytes()[:size]
        if zlib.crc32(data) != checksum:
            raise MetricStateError(f"rank {rank}'s bytes came back changed", reason="inexact_reduction")
        parts.append(data)
    return parts


def _check(rank: int, world: int, dtype: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not in [0, {world})")
