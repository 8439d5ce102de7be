"""Sets of dataset ordinals in little memory: intervals while the set is regular, one bit an ordinal when it is not.

A rank that reads a contiguous shard needs one interval; a rank that reads every k-th sample needs bits.
"""

from __future__ import annotations

import numpy as np

from mindeval.service.metrics.errors import MetricStateError
from mindeval.service.metrics.exact import IntArray
from mindeval.service.metrics.serial import AnyArray

_MOST_INTERVALS = 4096


class OrdinalSet:
    """A set of integers of at least 0."""

    def __init__(self) -> None:
        # Disjoint [start, stop) pairs, ascending and not touching; unused once bits are.
        self._intervals = np.empty((0, 2), dtype=np.int64)
        self._bits: AnyArray | None = None

    def __len__(self) -> int:
        if self._bits is not None:
            return int(np.unpackbits(self._bits).sum(dtype=np.int64))
        return int((self._intervals[:, 1] - self._intervals[:, 0]).sum())

    def contains(self, ordinals: IntArray) -> AnyArray:
        """Whether each ordinal is in the set, shape (n,), bool."""
        if self._bits is not None:
            inside = ordinals < 8 * self._bits.size
            chosen = np.where(inside, ordinals, 0)
            found: AnyArray = inside & ((self._bits[chosen >> 3] >> (chosen & 7).astype(np.uint8)) & 1).astype(bool)
            return found
        if not len(self._intervals):
            return np.zeros(ordinals.shape, dtype=bool)
        place = np.searchsorted(self._intervals[:, 0], ordinals, side="right") - 1
        within: AnyArray = (place >= 0) & (ordinals < self._intervals[place, 1])
        return within

    def add_range(self, start: int, stop: int) -> bool:
        """Add [start, stop) if none of it is in the set; return whether it was added.

        Shards that are read in order arrive as ranges, and then no array is needed at all.
        """
        if self._bits is not None or start >= stop:
            return start >= stop
        place = int(np.searchsorted(self._intervals[:, 0], stop, side="left")) - 1
        if place >= 0 and int(self._intervals[place, 1]) > start:
            return False
        self._add_intervals(np.array([[start, stop]], dtype=np.int64))
        return True

    def add(self, ordinals: IntArray) -> None:
        """Add ordinals, in any order and with repeats."""
        if not ordinals.size:
            return
        if self._bits is None:
            ascending = bool((ordinals[1:] > ordinals[:-1]).all())
            self._add_intervals(_runs(ordinals if ascending else np.unique(ordinals)))
        else:
            self._set_bits(ordinals)

    def merge(self, other: OrdinalSet) -> None:
        """Add a disjoint set.

        Raises:
            MetricStateError: The sets share an ordinal (`overlapping_samples`).
        """
        mine, theirs = self.intervals(), other.intervals()
        both = _union(mine, theirs)
        if (both[:, 1] - both[:, 0]).sum() != len(self) + len(other):
            raise MetricStateError(
                "both states hold some of the same samples; a state of bounded memory cannot take them apart again",
                reason="overlapping_samples",
            )
        self._bits = None
        self._intervals = np.empty((0, 2), dtype=np.int64)
        self._add_intervals(both)

    def intervals(self) -> IntArray:
        """The set as [start, stop) rows, shape (k, 2)."""
        if self._bits is None:
            return self._intervals
        return _runs(np.flatnonzero(np.unpackbits(self._bits, bitorder="little")).astype(np.int64))

    def to_array(self) -> AnyArray:
        """A canonical array: int64 intervals, or uint8 bits (little bit order) when there are many intervals."""
        rows = self.intervals()
        if len(rows) <= _MOST_INTERVALS:
            return rows
        bits: AnyArray = np.zeros(int(rows[-1, 1]), dtype=np.uint8)
        for start, stop in rows.tolist():
            bits[start:stop] = 1
        return np.packbits(bits, bitorder="little")

    @classmethod
    def from_array(cls, data: AnyArray) -> OrdinalSet:
        """Read `to_array`'s form; raises MetricStateError (`damaged_state`)."""
        found = cls()
        if data.dtype == np.uint8 and data.ndim == 1:
            found._bits = data.copy()
            return found
        flat = data.reshape(-1)
        if data.dtype != np.int64 or data.ndim != 2 or data.shape[1] != 2 or (np.diff(flat) <= 0).any():
            raise MetricStateError("damaged state: ordinals are not intervals", reason="damaged_state")
        if flat.size and flat[0] < 0:
            raise MetricStateError("damaged state: a negative ordinal", reason="damaged_state")
        found._add_intervals(data.copy())
        return found

    def _add_intervals(self, rows: IntArray) -> None:
        self._intervals = _union(self._intervals, rows)
        if len(self._intervals) > _MOST_INTERVALS:
            kept, self._intervals = self._intervals, np.empty((0, 2), dtype=np.int64)
            self._bits = np.zeros((int(kept[-1, 1]) + 7) // 8, dtype=np.uint8)
            counts = kept[:, 1] - kept[:, 0]
            starts = np.repeat(kept[:, 0] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
            self._set_bits(starts + np.arange(int(counts.sum())))

    def _set_bits(self, ordinals: IntArray) -> None:
        bits = self._bits if self._bits is not None else np.zeros(0, dtype=np.uint8)
        needed = int(ordinals.max()) // 8 + 1
        if needed > bits.size:
            # Twice the size at least, so that a growing set is copied rarely.
            bits = np.concatenate([bits, np.zeros(max(needed, 2 * bits.size) - bits.size, dtype=np.uint8)])
        np.bitwise_or.at(bits, ordinals >> 3, np.left_shift(1, ordinals & 7).astype(np.uint8))
        self._bits = bits


def _runs(ordinals: IntArray) -> IntArray:
    """Ascending distinct ordinals as [start, stop) rows."""
    breaks = np.flatnonzero(np.diff(ordinals) != 1)
    first = np.concatenate((ordinals[:1], ordinals[breaks + 1]))
    last = np.concatenate((ordinals[breaks], ordinals[-1:]))
    return np.stack([first, last + 1], axis=1)


def _union(left: IntArray, right: IntArray) -> IntArray:
    if not len(left) or not len(right):
        return left if len(left) else right
    rows = np.concatenate([left, right])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    begins = np.concatenate(([True], rows[1:, 0] > reach[:-1]))
    ends = np.concatenate((np.flatnonzero(begins)[1:] - 1, [len(rows) - 1]))
    return np.stack([rows[begins, 0], reach[ends]], axis=1)
