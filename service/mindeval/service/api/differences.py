"""What differs between two checkpoints: by their manifests, and by the values of their tensors."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mindeval.formats.manifest import Manifest, TensorEntry
from mindeval.service.runtime.messages import BlobLocation
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.tensor_differences import FLOAT_DTYPES, DifferenceSums, ValueDifference
from mindeval.v1 import checkpoint_pb2 as pb

# A multiple of every item size.
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Difference:
    """One tensor that differs; a side is None where the tensor is not there."""

    name: str
    base: TensorEntry | None
    other: TensorEntry | None
    values: ValueDifference | None = None

    @property
    def change(self) -> pb.TensorChange:
        """What happened to it."""
        if self.base is None:
            return pb.TENSOR_CHANGE_ADDED
        if self.other is None:
            return pb.TENSOR_CHANGE_REMOVED
        is_alike = (self.base.dtype, self.base.shape) == (self.other.dtype, self.other.shape)
        return pb.TENSOR_CHANGE_VALUES if is_alike else pb.TENSOR_CHANGE_SHAPE

    @property
    def has_values(self) -> bool:
        """Whether it can be told how much it changed."""
        if self.base is None or self.other is None or self.change != pb.TENSOR_CHANGE_VALUES:
            return False
        return self.base.dtype in FLOAT_DTYPES

    def message(self) -> pb.TensorDifference:
        """As it is sent."""
        entry = self.other or self.base
        assert entry is not None
        message = pb.TensorDifference(name=self.name, change=self.change, size_bytes=entry.size_bytes)
        if self.values is not None:
            message.relative_change = self.values.relative_change
            message.largest_difference = self.values.largest_difference
        return message


def compare(base: Manifest, other: Manifest) -> tuple[list[Difference], int]:
    """The tensors that differ, by name, and how many are the same."""
    before = {tensor.name: tensor for tensor in base.tensors}
    after = {tensor.name: tensor for tensor in other.tensors}
    names = sorted(before.keys() | after.keys())
    different = [
        Difference(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]
    return different, len(names) - len(different)


class ValueComparison:
    """Compares values, one call at a time, on a thread that can be stopped."""

    def __init__(self, library: BlobLibrary) -> None:
        self._library = library
        self._turn = asyncio.Semaphore(1)

    async def measure(self, project: str, differences: list[Difference], budget_s: float) -> list[Difference]:
        """Finds out how much tensors changed, as far as the time goes; the rest is returned as it came.

        Args:
            project: Id of the project.
            differences: The tensors.
            budget_s: Seconds that it may take, waiting for other calls included.

        Raises:
            BlobsMissingError: When blobs of them are not there.
        """
        end = time.monotonic() + budget_s
        measured: list[Difference] = []
        async with self._turn:
            for difference in differences:
                if not difference.has_values or time.monotonic() >= end:
                    measured.append(difference)
                else:
                    measured.append(replace(difference, values=await self._measure_one(project, difference, end)))
        return measured

    async def _measure_one(self, project: str, difference: Difference, end: float) -> ValueDifference | None:
        assert difference.base is not None
        assert difference.other is not None
        sums = DifferenceSums(difference.base.dtype)
        pairs = zip(difference.base.blobs(), difference.other.blobs())
        # A piece at a time: a store that is not of this machine keeps a local copy of what is leased.
        for (before, _), (after, _) in pairs:
            async with self._library.leased(project, [before, after], f"tensor {difference.name!r}") as lease:
                if not await _until_cancelled(sums, lease.locations[before], lease.locations[after], end):
                    return None
        return sums.result()


async def _until_cancelled(sums: DifferenceSums, before: BlobLocation, after: BlobLocation, end: float) -> bool:
    stop = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_add, sums, before, after, end, stop))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        # The files must stay until the thread has let go of them.
        stop.set()
        await asyncio.wait([work])
        raise


def _add(sums: DifferenceSums, before: BlobLocation, after: BlobLocation, end: float, stop: threading.Event) -> bool:
    """Adds one piece of a tensor; False when it was stopped, or the time is over."""
    for base, other in zip(_chunks(before), _chunks(after)):
        if stop.is_set() or time.monotonic() >= end:
            return False
        if base == other:
            sums.add_equal(base)
        else:
            sums.add(base, other)
    return True


def _chunks(location: BlobLocation) -> Iterator[bytes]:
    with open(location.path, "rb", buffering=0) as file:
        for begin in range(0, location.size_bytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, location.size_bytes - begin)
            yield os.pread(file.fileno(), size, location.offset + begin)
