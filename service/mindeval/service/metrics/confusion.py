"""Confusion matrices and the values that are functions of them, with their first-order effects.

A matrix has shape (k+1, k+1): rows are true labels, columns predictions, and the last column counts samples without
a usable prediction, which are wrong in every metric (the last row is always zero). References: scikit-learn's
precision_recall_fscore_support, matthews_corrcoef and cohen_kappa_score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mindeval.service.metrics.exact import FloatArray, IntArray

AVERAGES = ("binary", "micro", "macro", "weighted")

# A block of codes and its int64 index stay inside a core's cache; one pass over 10 million labels is three times
# slower than blocks of this size.
_BLOCK = 1 << 16


def confusion_matrix(labels: IntArray, predictions: IntArray, classes: int) -> IntArray:
    """Count pairs.

    Args:
        labels: Shape (n,), codes in [0, classes).
        predictions: Shape (n,), codes in [-1, classes); -1 is "no prediction".
        classes: k.

    Returns:
        Shape (k+1, k+1), int64.
    """
    side = classes + 1
    counts = np.zeros(side * side, dtype=np.int64)
    # -1 becomes the last column of the row before; shifting by one keeps every index unique and non-negative.
    for start in range(0, labels.size, _BLOCK):
        index = labels[start : start + _BLOCK] * side
        index += predictions[start : start + _BLOCK]
        index += 1
        counts += np.bincount(index, minlength=side * side)
    # Column 0 of the shifted matrix holds -1; move it to the end.
    return np.roll(counts.reshape(side, side), -1, axis=1)


@dataclass(frozen=True)
class Effects:
    """How one more sample with true label i and prediction j moves a value.

    The effect is `diagonal[i] * (i == j) + row[i] + column[j] + constant`, or `cells[i, j]` when cells are given.
    Arrays have shape (k+1,), cells (k+1, k+1).
    """

    diagonal: FloatArray
    row: FloatArray
    column: FloatArray
    constant: float = 0.0
    cells: FloatArray | None = None

    def of(self, labels: IntArray, predictions: IntArray) -> FloatArray:
        """Effects for pairs of codes, shape (n,); prediction -1 is the last column."""
        if self.cells is not None:
            chosen: FloatArray = self.cells[labels, predictions]
            return chosen
        hit = np.where(labels == predictions, self.diagonal[labels], 0.0)
        total: FloatArray = hit + self.row[labels] + self.column[predictions] + self.constant
        return total

    def matrix(self) -> FloatArray:
        """Effects for all pairs, shape (k+1, k+1)."""
        if self.cells is not None:
            return self.cells
        total: FloatArray = np.diag(self.diagonal) + self.row[:, None] + self.column[None, :] + self.constant
        return total


@dataclass(frozen=True)
class MatrixValue:
    """A value of a confusion matrix; `effects` is None where the value has no first-order effects."""

    value: float
    effects: Effects | None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelCounts:
    """Per-label counts, shape (k,): true positives, predicted, and true occurrences."""

    hits: IntArray
    predicted: IntArray
    true: IntArray

    @classmethod
    def of(cls, matrix: IntArray) -> LabelCounts:
        """Counts of each label of a confusion matrix."""
        return cls(np.diag(matrix)[:-1].copy(), matrix.sum(axis=0)[:-1], matrix.sum(axis=1)[:-1])


def label_scores(counts: LabelCounts, kind: str, zero_division: float) -> tuple[FloatArray, IntArray, IntArray]:
    """Per-label precision, recall or F1, with the numerators and denominators used; all of shape (k,).

    F1 is 2 TP / (true + predicted), as scikit-learn computes it.
    """
    if kind == "precision":
        top, bottom = counts.hits, counts.predicted
    elif kind == "recall":
        top, bottom = counts.hits, counts.true
    else:
        top, bottom = 2 * counts.hits, counts.true + counts.predicted
    scores = np.full(top.shape, zero_division, dtype=np.float64)
    np.divide(top, bottom, out=scores, where=bottom > 0)
    return scores, top, bottom


def precision_recall_f1(
    counts: LabelCounts, kind: str, average: str, *, zero_division: float, positive: int
) -> MatrixValue:
    """Precision, recall or F1 under one of scikit-learn's averages.

    Args:
        counts: Per-label counts.
        kind: `precision`, `recall` or `f1`.
        average: One of `AVERAGES`; `binary` reports the label `positive`.
        zero_division: The score of a label with nothing in its denominator; nan leaves such labels out of means.
        positive: Code of the positive label, used by `binary`.

    Returns:
        The value, its effects, and the flag `zero_division` when a denominator was zero.
    """
    if average == "micro":
        total = LabelCounts(*(np.array([a.sum()]) for a in (counts.hits, counts.predicted, counts.true)))
        score, _, bottom = label_scores(total, kind, zero_division)
        flags = () if bottom[0] else ("zero_division",)
        k = counts.hits.size
        weights, scores, bottoms = np.ones(k), np.full(k, score[0]), np.full(k, bottom[0])
        return MatrixValue(float(score[0]), _ratio_effects(kind, weights, scores, bottoms), flags)
    scores, _, bottom = label_scores(counts, kind, zero_division)
    if average == "binary":
        weights = np.zeros(scores.shape)
        weights[positive] = 1.0
        value = float(scores[positive])
    else:
        kept = ~np.isnan(scores)
        raw = kept.astype(np.float64)
        if average == "weighted":
            raw *= counts.true
        if not kept.any():
            return MatrixValue(math.nan, None, ("zero_division",))
        if not raw.sum():
            # No true label at all, so no weights: scikit-learn then takes the plain mean.
            return MatrixValue(float(np.average(scores[kept])), None, ("zero_division",))
        value = float(np.average(scores[kept], weights=raw[kept] if average == "weighted" else None))
        weights = raw / raw.sum()
    effects = _ratio_effects(kind, weights, scores, bottom)
    if average == "weighted":
        # The weights are shares of the true labels, so one more true label moves them too.
        shift = np.where(np.isnan(scores), 0.0, scores - value) / counts.true.sum()
        effects = Effects(effects.diagonal, effects.row + np.append(shift, 0.0), effects.column)
    used = (weights > 0) | np.isnan(scores)
    return MatrixValue(value, effects, ("zero_division",) if bool((bottom[used] == 0).any()) else ())


def _ratio_effects(kind: str, weights: FloatArray, scores: FloatArray, bottom: IntArray) -> Effects:
    scaled = np.zeros(scores.shape)
    np.divide(weights, bottom, out=scaled, where=bottom > 0)
    pull = np.append(-scaled * np.where(bottom > 0, scores, 0.0), 0.0)
    diagonal = np.append((2.0 if kind == "f1" else 1.0) * scaled, 0.0)
    nothing = np.zeros(pull.shape)
    return Effects(diagonal, nothing if kind == "precision" else pull, nothing if kind == "recall" else pull)


def matthews_correlation(matrix: IntArray) -> MatrixValue:
    """The correlation coefficient of Gorodkin (2004) for k labels; 0 when either side has one label only."""
    total, hits = int(matrix.sum()), int(np.trace(matrix))
    true, predicted = matrix.sum(axis=1), matrix.sum(axis=0)
    joint = total * hits - _dot(true, predicted)
    spread_true, spread_predicted = total**2 - _dot(true, true), total**2 - _dot(predicted, predicted)
    if not spread_true or not spread_predicted:
        return MatrixValue(0.0 if total else math.nan, None, ("zero_division",) if total else ())
    root = math.sqrt(spread_true) * math.sqrt(spread_predicted)
    value = joint / root
    effects = Effects(
        np.full(true.shape, total / root),
        -predicted / root + value * true / spread_true,
        -true / root + value * predicted / spread_predicted,
        hits / root - value * total * (1 / spread_true + 1 / spread_predicted),
    )
    return MatrixValue(value, effects)


def cohen_kappa(matrix: IntArray, weights: str) -> MatrixValue:
    """Agreement beyond chance (Cohen 1960, 1968).

    Args:
        matrix: The confusion matrix; label codes are the ordinal scale of weighted forms.
        weights: `none`, `linear` or `quadratic`.
    """
    total = int(matrix.sum())
    true, predicted = matrix.sum(axis=1), matrix.sum(axis=0)
    side = np.arange(len(true), dtype=np.float64)
    distance = np.abs(side[:, None] - side[None, :])
    if weights == "none":
        cost: FloatArray = (distance > 0).astype(np.float64)
    else:
        cost = distance if weights == "linear" else distance * distance
    observed = float((cost * matrix).sum())
    expected = float(true @ cost @ predicted)
    if not total or not expected:
        return MatrixValue(math.nan, None, ("zero_division",) if total else ())
    value = 1.0 - total * observed / expected
    pull = total * observed / expected**2
    cells = pull * ((cost @ predicted)[:, None] + (true @ cost)[None, :]) - (observed + total * cost) / expected
    return MatrixValue(value, Effects(side, side, side, cells=cells))


def _dot(left: IntArray, right: IntArray) -> int:
    # Python integers: products of counts beyond 3e9 overflow int64.
    return sum(a * b for a, b in zip(left.tolist(), right.tolist()))
