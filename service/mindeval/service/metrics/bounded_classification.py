"""Classification in bounded memory, for data sets of many millions of samples.

The state is a confusion matrix, histograms of scores and exact sums, whose size depends on the number of classes and
bins only; which samples were counted is a set of dataset ordinals. The price: merged states must not share samples,
a repeated sample is recognised by its ordinal without comparing its content, and states cannot be compared in pairs.
The area under the ROC is exact up to a declared number of samples, whose scores are kept, and beyond it that of binned
scores; the number is part of the signature, and the flag `binned` says which of the two a value is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths
from mindeval.service.metrics.classification import (
    LABEL_METRICS,
    SCORE_METRICS,
    ClassificationSettings,
    label_value,
)
from mindeval.service.metrics.confusion import confusion_matrix
from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError, MetricStateError
from mindeval.service.metrics.exact import ExactSum, FloatArray, IntArray
from mindeval.service.metrics.interface import MetricState, MetricValue
from mindeval.service.metrics.kept_scores import KeptScores
from mindeval.service.metrics.labels import label_codes, probability_rows
from mindeval.service.metrics.ordinals import OrdinalSet
from mindeval.service.metrics.probabilities import (
    binned_roc_area,
    brier_scores,
    confidence_bins,
    log_losses,
    mean_roc_area,
    roc_area,
)
from mindeval.service.metrics.serial import Payload
from mindeval.service.metrics.settings import check_int
from mindeval.service.metrics.uncertainty import linear_standard_error

if TYPE_CHECKING:
    from typing_extensions import Self

_MOST_CLASSES = 2048


@dataclass(frozen=True)
class BoundedClassificationSettings(ClassificationSettings):
    """Settings of classification, with the declared label set required.

    Attributes:
        score_bins: Equal-width bins of the scores behind `roc_auc`.
        exact_samples: Up to so many samples with finite scores `roc_auc` is exact; 0 for binned always.
    """

    score_bins: int = 4096
    exact_samples: int = 10_000

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.labels is None or len(self.labels) > _MOST_CLASSES:
            raise MetricSettingsError(f"must be a list of at most {_MOST_CLASSES} labels", field="labels")
        check_int("score_bins", self.score_bins, low=2, high=1 << 20)
        check_int("exact_samples", self.exact_samples, low=0, high=1 << 20)


class BoundedClassificationState(MetricState):
    """A confusion matrix and exact sums. Metrics, settings and flags are those of `classification`.

    One more flag: `binned` on `roc_auc` of more than `exact_samples` samples; its standard error then exists for two
    classes only.
    """

    family: ClassVar[str] = "classification_bounded"
    version: ClassVar[int] = 2  # 1 kept no scores
    settings_type = BoundedClassificationSettings
    settings: BoundedClassificationSettings
    exact_over_samples: ClassVar[bool] = False

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self._classes = len(self.settings.labels or ())
        self._seen = OrdinalSet()
        self._matrix = np.zeros((self._classes + 1, self._classes + 1), dtype=np.int64)
        self._scored = self._non_finite = 0
        self._histogram = np.zeros((2, self._classes, self.settings.score_bins), dtype=np.int64)
        self._kept = KeptScores(self.settings.exact_samples, self._classes)
        # Log losses, their squares, Brier scores, their squares, squared calibration gaps; then the gaps of each bin.
        self._sums = [ExactSum() for _ in range(5 + self.settings.ece_bins)]

    def update(
        self,
        *,
        ordinals: Sequence[int] | npt.NDArray[Any] | range,
        labels: Sequence[Any] | npt.NDArray[Any],
        predictions: Sequence[Any] | npt.NDArray[Any] | None = None,
        scores: Sequence[Any] | npt.NDArray[Any] | None = None,
    ) -> None:
        """Add samples; a sample whose ordinal was already counted is ignored.

        Args:
            ordinals: n positions of the samples in the dataset, from 0.
            labels: n true labels; see `ClassificationState.update` for this and what follows.
            predictions: n predicted labels.
            scores: Class probabilities.

        Raises:
            MetricInputError: As `ClassificationState.update`; or an ordinal is not an integer of at least 0
                (`invalid_sample_id`).
        """
        check_lengths(len(ordinals), labels=labels, predictions=predictions, scores=scores)
        # A range goes through the set of ordinals as such; its array is made only if some of it was seen before.
        run = ordinals if isinstance(ordinals, range) and ordinals.step == 1 and ordinals.start >= 0 else None
        own = np.asarray(ordinals) if run is None else np.arange(0)
        if own.size and (own.dtype.kind not in "iu" or own.ndim != 1 or int(own.min()) < 0):
            raise MetricInputError("ordinals must be integers of at least 0", reason="invalid_sample_id")
        own = own.astype(np.int64, copy=False)
        names = _Names(own if run is None else run)
        true = label_codes(labels, self.settings.labels, names, name="label", allow_none=False)
        rows = None
        if scores is not None:
            rows = probability_rows(scores, names, sums_to_one=True, classes=self._classes)
        if predictions is not None:
            chosen = label_codes(predictions, self.settings.labels, names, name="prediction", allow_none=True)
        elif rows is not None:
            chosen = np.where(np.isfinite(rows).all(axis=1), rows.argmax(axis=1), -1).astype(np.int64)
        else:
            raise MetricInputError("neither predictions nor scores are given", reason="length_mismatch")
        if not len(names):
            return
        if int(self._matrix.sum()) and bool(self._scored + self._non_finite) != (rows is not None):
            raise MetricInputError("all batches must have scores, or none", reason="scores_missing")
        counted: IntArray | range = own if run is None else run
        if run is None or not self._seen.add_range(run.start, run.stop):
            own = _as_array(counted)
            kept = self._fresh(own)
            if kept is not None:
                own, true, chosen = own[kept], true[kept], chosen[kept]
                rows = None if rows is None else rows[kept]
            self._seen.add(own)
            counted = own
        self._matrix += confusion_matrix(true, chosen, self._classes)
        if rows is not None:
            self._add_scores(rows, true, counted)

    def _fresh(self, ordinals: IntArray) -> IntArray | None:
        """Positions of ordinals not counted yet, each once; None when that is all of them."""
        steps = np.diff(ordinals)
        if (steps > 0).all():
            known = self._seen.contains(ordinals)
            return np.flatnonzero(~known) if known.any() else None
        first = np.unique(ordinals, return_index=True)[1]
        return np.sort(first[~self._seen.contains(ordinals[first])])

    def _add_scores(self, rows: FloatArray, labels: IntArray, ordinals: IntArray | range) -> None:
        finite = np.isfinite(rows).all(axis=1)
        self._non_finite += int((~finite).sum())
        self._scored += int(finite.sum())
        rows, labels = rows[finite], labels[finite]
        if self._kept.complete:
            self._kept.add(_as_array(ordinals)[finite], labels, rows)
        losses, squares = log_losses(rows, labels), brier_scores(rows, labels)
        confidence = rows.max(axis=1)
        gaps = (rows.argmax(axis=1) == labels) - confidence
        for total, values in zip(self._sums, (losses, losses**2, squares, squares**2, gaps**2)):
            total.add(values)
        codes = confidence_bins(confidence, self.settings.ece_bins)
        for code in np.unique(codes).tolist():
            self._sums[5 + code].add(gaps[codes == code])
        bins = self.settings.score_bins
        place = np.minimum((rows * bins).astype(np.int64), bins - 1)
        for label in range(self._classes):
            positive = labels == label
            for side, chosen in enumerate((~positive, positive)):
                self._histogram[side, label] += np.bincount(place[chosen, label], minlength=bins)

    def result(self, names: Sequence[str] | None = None) -> dict[str, MetricValue]:
        """See `MetricState.result`."""
        known = self.directions()
        for name in names or ():
            if name not in known:
                raise MetricStateError(f"{self.family} has no metric {name!r}", reason="unknown_metric")
        default = LABEL_METRICS + (SCORE_METRICS if self._scored + self._non_finite else ())
        return {name: self._value(name) for name in dict.fromkeys(default if names is None else names)}

    def counts(self) -> dict[str, int]:
        """Samples, those without a usable prediction, and those with a NaN or infinite score."""
        return {
            "samples": int(self._matrix.sum()),
            "no_prediction": int(self._matrix[:, -1].sum()),
            "non_finite": self._non_finite,
        }

    def confusion_matrix(self) -> IntArray:
        """Counts of shape (labels, labels + 1): rows are true labels; the last column is "no prediction"."""
        return self._matrix[:-1].copy()

    def _value(self, name: str) -> MetricValue:
        count = int(self._matrix.sum())
        value, error, kind, flags = self._score_value(name) if name in SCORE_METRICS else self._label_value(name)
        if not count:
            flags = (*flags, "empty")
        return MetricValue(
            name=name,
            value=value,
            standard_error=error,
            standard_error_method="none" if error is None else f"{kind}_by_sample",
            count=count,
            higher_is_better=self.directions()[name],
            signature=self.signature(),
            flags=flags,
        )

    def _label_value(self, name: str) -> tuple[float, float | None, str, tuple[str, ...]]:
        matrix = self._matrix
        count, missing = int(matrix.sum()), ("no_prediction",) if matrix[:, -1].any() else ()
        if name == "accuracy":
            value = int(np.trace(matrix)) / count if count else math.nan
            return value, _spread(np.eye(len(matrix)) / max(count, 1), matrix), "mean", missing
        found = label_value(matrix, name, self.settings, self.settings.positive_code(range(self._classes)))
        error = None if found.effects is None else _spread(found.effects.matrix(), matrix)
        return found.value, error, "linearized", (*found.flags, *missing)

    def _score_value(self, name: str) -> tuple[float, float | None, str, tuple[str, ...]]:
        if self._non_finite:
            return math.nan, None, "none", ("non_finite",)
        if not self._scored:
            return math.nan, None, "none", ("no_scores",)
        if name == "roc_auc":
            return self._area()
        sums = [total.value() for total in self._sums]
        if name == "ece":
            gaps = ExactSum()
            gaps.total = sum(abs(total.total) for total in self._sums[5:])
            value, square = gaps.value() / self._scored, sums[4]
        else:
            first = 0 if name == "log_loss" else 2
            value, square = sums[first] / self._scored, sums[first + 1]
        if self._scored < 2:
            return value, None, "none", ()
        variance = max(square - self._scored * value**2, 0.0) / (self._scored - 1)
        return value, math.sqrt(variance / self._scored), "mean", ()

    def _area(self) -> tuple[float, float | None, str, tuple[str, ...]]:
        positive = self.settings.positive_code(range(self._classes)) or 0
        chosen = [positive] if self._classes == 2 else range(self._classes)
        if self._kept.complete:
            return self._exact_area(chosen)
        areas = [binned_roc_area(self._histogram[1, k], self._histogram[0, k]) for k in chosen]
        if any(math.isnan(area) for area in areas):
            return math.nan, None, "none", ("binned", "one_class")
        value = math.fsum(areas) / len(areas)
        if self._classes != 2:
            return value, None, "none", ("binned",)
        counts = self._histogram[:, positive]
        ups, downs = counts[1].sum(), counts[0].sum()
        below = (np.cumsum(counts[0]) - counts[0] / 2) / downs
        above = 1.0 - (np.cumsum(counts[1]) - counts[1] / 2) / ups
        effects = np.stack([(above - value) / downs, (below - value) / ups])
        return value, _spread(effects, counts), "linearized", ("binned",)

    def _exact_area(self, chosen: Sequence[int]) -> tuple[float, float | None, str, tuple[str, ...]]:
        _, labels, scores = self._kept.rows()
        found = mean_roc_area([roc_area(scores[:, k], labels == k) for k in chosen])
        if math.isnan(found.value):
            return math.nan, None, "none", ("one_class",)
        return found.value, linear_standard_error(found.influence, None), "linearized", ()

    def _merge(self, other: Self) -> None:
        if int(self._matrix.sum()) and int(other._matrix.sum()) and self._with_scores() != other._with_scores():
            raise MetricStateError("one state has scores, the other has none", reason="scores_missing")
        self._seen.merge(other._seen)
        self._matrix += other._matrix
        self._histogram += other._histogram
        self._scored += other._scored
        self._non_finite += other._non_finite
        self._kept.merge(other._kept)
        for mine, theirs in zip(self._sums, other._sums):
            mine.merge(theirs)

    def _with_scores(self) -> bool:
        return bool(self._scored + self._non_finite)

    def _payload(self) -> Payload:
        payload = self._new_payload()
        payload.arrays["ordinals"] = self._seen.to_array()
        payload.arrays["matrix"] = self._matrix
        payload.arrays["counts"] = np.array([self._scored, self._non_finite], dtype=np.int64)
        if self._with_scores():
            payload.arrays["histogram"] = self._histogram
            payload.arrays.update(self._kept.to_arrays())
            payload.arrays.update((f"sum_{k}", total.to_array()) for k, total in enumerate(self._sums))
        return payload

    def _restore(self, payload: Payload) -> None:
        arrays = payload.arrays
        matrix, counts = arrays["matrix"], arrays["counts"]
        if matrix.shape != self._matrix.shape or matrix.dtype != np.int64 or (matrix < 0).any():
            raise MetricStateError("damaged state: the confusion matrix", reason="damaged_state")
        if counts.shape != (2,) or counts.dtype != np.int64 or (counts < 0).any():
            raise MetricStateError("damaged state: the counts", reason="damaged_state")
        self._seen = OrdinalSet.from_array(arrays["ordinals"])
        if len(self._seen) != matrix.sum():
            raise MetricStateError("damaged state: not as many samples as ordinals", reason="damaged_state")
        self._matrix = matrix
        self._scored, self._non_finite = counts.tolist()
        if self._with_scores():
            if arrays["histogram"].shape != self._histogram.shape or arrays["histogram"].dtype != np.int64:
                raise MetricStateError("damaged state: the histogram", reason="damaged_state")
            self._histogram = arrays["histogram"]
            self._sums = [ExactSum.from_array(arrays[f"sum_{k}"]) for k in range(len(self._sums))]
            self._kept.restore(arrays, self._scored)


class _Names(Sequence[str]):
    """Ordinals as sample ids, made only when a message needs one."""

    def __init__(self, ordinals: IntArray | range) -> None:
        self._ordinals = ordinals

    def __len__(self) -> int:
        return len(self._ordinals)

    def __getitem__(self, index: Any) -> Any:
        return str(self._ordinals[index])


def _as_array(ordinals: IntArray | range) -> IntArray:
    return np.arange(ordinals.start, ordinals.stop) if isinstance(ordinals, range) else ordinals


def _spread(effects: FloatArray, counts: IntArray) -> float | None:
    """Standard error of a value from the effects of its cells and how often each cell occurs."""
    total = int(counts.sum())
    if total < 2:
        return None
    mean = float((counts * effects).sum()) / total
    return math.sqrt(float((counts * (effects - mean) ** 2).sum()) * total / (total - 1))
