"""Where the slice of a rank lies in the full tensor, by arithmetic on the layout."""

from __future__ import annotations

from itertools import product
from math import prod

from mindeval.formats.readers.strategy import ParameterLayout


class SliceGrid:
    """The slices of one layout, as a grid over the full tensor.

    Attributes:
        counts: How many slices there are along each axis of the tensor.
    """

    def __init__(self, layout: ParameterLayout) -> None:
        """Takes a checked layout.

        Raises:
            ValueError: When the optimizer shard does not fit the device matrix, or is ambiguous; the message says so.
        """
        self._devices = layout.devices
        self._matrix = layout.device_matrix
        axes = len(self._matrix)
        self._axes_of = [[axes - 1 - axis for axis in device_axes] for device_axes in layout.tensor_map]
        used = {axis for device_axes in self._axes_of for axis in device_axes}
        # Ranks that differ only along these axes hold equal slices.
        self._copy_axes = [axis for axis in range(axes) if axis not in used]
        self._shards = self._checked_shards(layout)
        counts = [layout.splits(axis) for axis in range(len(layout.tensor_map))]
        if self._shards > 1:
            counts[0] *= self._shards
        self.counts = tuple(counts)

    @property
    def size(self) -> int:
        """How many slices there are."""
        return prod(self.counts)

    def place(self, rank: int) -> tuple[int, ...]:
        """The coordinates of a rank's slice; ranks are counted from the first of the stage."""
        coordinates = [0] * len(self._matrix)
        rank %= self._devices
        for axis in range(len(self._matrix) - 1, -1, -1):
            rank, coordinates[axis] = divmod(rank, self._matrix[axis])
        place = [self._index(coordinates, device_axes) for device_axes in self._axes_of]
        if self._shards > 1:
            place[0] = place[0] * self._shards + self._index(coordinates, self._copy_axes) % self._shards
        return tuple(place)

    def first_missing(self, present: set[tuple[int, ...]]) -> tuple[int, ...]:
        """The first slice that is not among those present, of which there are fewer than `size`."""
        return next(place for place in product(*map(range, self.counts)) if place not in present)

    def _index(self, coordinates: list[int], axes: list[int]) -> int:
        index = 0
        for axis in axes:
            index = index * self._matrix[axis] + coordinates[axis]
        return index

    def _checked_shards(self, layout: ParameterLayout) -> int:
        copies = prod(self._matrix[axis] for axis in self._copy_axes)
        shards = copies if layout.optimizer_shard_size == -1 else layout.optimizer_shard_size
        if shards == 1:
            return 1
        last = max((axis for axis in self._copy_axes if self._matrix[axis] > 1), default=len(self._matrix))
        step = prod(self._matrix[last + 1 :])
        if not layout.tensor_map or copies % shards or step != layout.optimizer_shard_step:
            raise ValueError(
                f"its optimizer shard of {layout.optimizer_shard_size} ranks, {layout.optimizer_shard_step} apart, "
                f"does not fit the device matrix {list(self._matrix)}"
            )
        order = [axis for device_axes in self._axes_of for axis in device_axes if self._matrix[axis] > 1]
        if order != sorted(order):
            # Here MindSpore's own merge takes the slices as if the axes were in order. Whether a training writes them
            # so, or by the tensor map, could not be seen, and a wrong guess would mix up a weight silently.
            raise ValueError(
                "it is split along several axes in another order than the device matrix, and by an optimizer shard; "
                "MindSpore's functions do not agree on where such slices lie; save it whole"
            )
        return shards
