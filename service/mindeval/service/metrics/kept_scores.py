"""Scores of the first so many samples of a state of bounded memory: exact while there are few, given up beyond.

Whether they are given up depends on the total alone: a total above the limit is noticed by whichever state first holds
it, and each part of a total within the limit is within it too. So the outcome does not depend on how samples were
split, and the bits of what is computed from it neither.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mindeval.service.metrics.errors import MetricStateError
from mindeval.service.metrics.exact import FloatArray, IntArray
from mindeval.service.metrics.serial import AnyArray


class KeptScores:
    """Class probabilities by dataset ordinal, of at most `limit` samples.

    Attributes:
        complete: Whether all samples are here; once there were more than `limit`, none is.
    """

    def __init__(self, limit: int, classes: int) -> None:
        self._limit, self._classes = limit, classes
        self.complete = True
        self._size = 0
        self._chunks: list[tuple[IntArray, IntArray, FloatArray]] = []

    def __len__(self) -> int:
        return self._size

    def add(self, ordinals: IntArray, labels: IntArray, scores: FloatArray) -> None:
        """Add samples that are not here yet.

        Args:
            ordinals: Shape (n,).
            labels: Shape (n,), codes.
            scores: Shape (n, classes).
        """
        if not self.complete:
            return
        if self._size + ordinals.size > self._limit:
            self.give_up()
            return
        self._size += int(ordinals.size)
        self._chunks.append((ordinals.copy(), labels.copy(), scores.copy()))

    def merge(self, other: KeptScores) -> None:
        """Add the disjoint samples of another."""
        if not other.complete:
            self.give_up()
        for chunk in other._chunks:
            self.add(*chunk)

    def give_up(self) -> None:
        """Forget all samples, for good."""
        self.complete, self._size = False, 0
        self._chunks.clear()

    def rows(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Ordinals, labels and scores, by ascending ordinal."""
        if not self._chunks:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, self._classes))
        ordinals, labels, scores = (np.concatenate(parts) for parts in zip(*self._chunks))
        order = np.argsort(ordinals)
        return ordinals[order], labels[order], scores[order]

    def to_arrays(self) -> dict[str, AnyArray]:
        """The samples as arrays of a payload, in canonical order; nothing when there are none."""
        names = ("kept_ordinals", "kept_labels", "kept_scores")
        return dict(zip(names, self.rows())) if self._size else {}

    def restore(self, arrays: Mapping[str, AnyArray], scored: int) -> None:
        """Read `to_arrays`' form; without it, `scored` samples were given up.

        Raises:
            MetricStateError: The arrays are not those of `scored` samples (`damaged_state`).
        """
        if "kept_ordinals" not in arrays:
            if scored:
                self.give_up()
            return
        ordinals, labels, scores = (arrays[name] for name in ("kept_ordinals", "kept_labels", "kept_scores"))
        shapes = ordinals.shape == labels.shape == (scored,) and scores.shape == (scored, self._classes)
        types = ordinals.dtype == labels.dtype == np.int64 and scores.dtype == np.float64
        if not shapes or not types or scored > self._limit:
            raise MetricStateError("damaged state: kept scores have another shape", reason="damaged_state")
        if (np.diff(ordinals) <= 0).any() or not np.isfinite(scores).all():
            raise MetricStateError("damaged state: kept scores", reason="damaged_state")
        if ((labels < 0) | (labels >= self._classes)).any():
            raise MetricStateError("damaged state: a kept label is out of range", reason="damaged_state")
        self.add(ordinals, labels, scores)
