"""Classification with one label a sample: exact over samples, compared in pairs, clustered when groups are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.confusion import (
    AVERAGES,
    Effects,
    LabelCounts,
    MatrixValue,
    cohen_kappa,
    confusion_matrix,
    label_scores,
    matthews_correlation,
    precision_recall_f1,
)
from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError, MetricStateError
from mindeval.service.metrics.estimators import Constant, Estimator, Given, Mean
from mindeval.service.metrics.exact import IntArray
from mindeval.service.metrics.labels import Label, check_label_set, label_codes, probability_rows
from mindeval.service.metrics.probabilities import (
    brier_scores,
    calibration_terms,
    log_losses,
    mean_roc_area,
    roc_area,
)
from mindeval.service.metrics.serial import Payload
from mindeval.service.metrics.settings import Settings, check_choice, check_int
from mindeval.service.metrics.table import Column, Rows, SampleTable
from mindeval.service.metrics.tabular import TableState

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ClassificationSettings(Settings):
    """Settings of classification.

    Attributes:
        labels: The dataset's declared label set: names, or integers. None: the labels seen, which changes macro
            averages when a label never occurs.
        average: What `precision`, `recall` and `f1` mean: `binary`, `micro`, `macro` or `weighted`.
        positive: The label that `binary` averages, and `roc_auc` of two classes, report on; by default the second
            declared label, or 1.
        zero_division: Score of a label with an empty denominator: 0, 1, or "nan" to leave it out of means.
        kappa_weights: `none`, `linear` or `quadratic`.
        ece_bins: Equal-width bins of the calibration error.
    """

    labels: tuple[Label, ...] | None = None
    average: str = "macro"
    positive: Label | None = None
    zero_division: float | str = 0
    kappa_weights: str = "none"
    ece_bins: int = 15

    def __post_init__(self) -> None:
        """Check the values."""
        check_label_set(self.labels, "labels")
        check_choice("average", self.average, AVERAGES)
        if self.zero_division != "nan" and self.zero_division not in (0, 1):
            raise MetricSettingsError(f'must be 0, 1 or "nan", not {self.zero_division!r}', field="zero_division")
        check_choice("kappa_weights", self.kappa_weights, ("none", "linear", "quadratic"))
        check_int("ece_bins", self.ece_bins, low=1, high=10_000)
        if self.positive is not None and self.labels is not None and self.positive not in self.labels:
            raise MetricSettingsError(f"{self.positive!r} is not among the labels", field="positive")
        if self.positive is not None and self.labels is None:
            check_int("positive", self.positive, low=0)

    @property
    def zero_division_value(self) -> float:
        """The setting as a number."""
        return float(self.zero_division)

    def positive_code(self, seen: Sequence[int]) -> int | None:
        """The position of the positive label in the label set; None when it is not there."""
        if self.labels is not None:
            return self.labels.index(self.positive) if self.positive is not None else min(1, len(self.labels) - 1)
        wanted = 1 if self.positive is None else self.positive
        return list(seen).index(wanted) if wanted in seen else None  # type: ignore[arg-type]


LABEL_METRICS = ("accuracy", "precision", "recall", "f1", "matthews_corrcoef", "cohen_kappa")
SCORE_METRICS = ("roc_auc", "log_loss", "brier", "ece")


class ClassificationState(TableState):
    """Labels and predictions of each sample, and class probabilities when they are given.

    Metrics: `accuracy`; `precision`, `recall`, `f1` under the setting `average`, and each with a suffix such as
    `f1_weighted`; `matthews_corrcoef`; `cohen_kappa`; from probabilities `roc_auc` (two classes: of the positive one;
    more: one against the rest, mean over classes), `log_loss`, `brier`, `ece`.

    Flags: `zero_division` (a denominator was empty); `non_finite` (a score was NaN or infinite: the metrics of scores
    are nan, see `non_finite_samples`); `no_prediction` (samples without a usable prediction, counted as wrong);
    `no_scores`; `one_class` (an area needs both); `no_positive` (the positive label never occurs).
    """

    family: ClassVar[str] = "classification"
    settings_type = ClassificationSettings
    settings: ClassificationSettings

    def _columns(self) -> Sequence[Column]:
        return (Column("label", "int64"), Column("prediction", "int64"))

    def _score_columns(self, classes: int) -> tuple[Column, ...]:
        return (*ClassificationState._columns(self), Column("scores", "float64", classes))

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        labels: Sequence[Any] | npt.NDArray[Any],
        predictions: Sequence[Any] | npt.NDArray[Any] | None = None,
        scores: Sequence[Any] | npt.NDArray[Any] | None = None,
        groups: Sequence[str] | None = None,
    ) -> None:
        """Add samples.

        Args:
            sample_ids: n ids.
            labels: n true labels, of the declared set; integers of at least 0 without one.
            predictions: n predicted labels; None or -1 for a sample without a usable prediction. By default the
                likeliest class of `scores` (the first of equals; none where a score is not finite).
            scores: Class probabilities, shape (n, classes), or (n,) for the second of two classes.
            groups: n names of clusters of dependent samples, such as the document they come from.

        Raises:
            MetricInputError: Lengths differ (`length_mismatch`), a label is outside the set (`unknown_label`), scores
                are not probabilities (`invalid_value`), some batches have scores and others not (`scores_missing`),
                or a sample repeats with other content (`conflicting_repeat`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), labels=labels, predictions=predictions, scores=scores, groups=groups)
        declared = self.settings.labels
        arrays: dict[str, npt.NDArray[Any]] = {
            "label": label_codes(labels, declared, ids, name="label", allow_none=False)
        }
        if scores is not None:
            classes = None if declared is None else len(declared)
            arrays["scores"] = probability_rows(scores, ids, sums_to_one=True, classes=classes)
            beyond = arrays["label"] >= arrays["scores"].shape[1]
            if beyond.any():
                raise MetricInputError(
                    "the label has no column in scores", reason="unknown_label", sample_id=ids[int(np.argmax(beyond))]
                )
        if predictions is not None:
            arrays["prediction"] = label_codes(predictions, declared, ids, name="prediction", allow_none=True)
        elif scores is not None:
            finite = np.isfinite(arrays["scores"]).all(axis=1)
            arrays["prediction"] = np.where(finite, arrays["scores"].argmax(axis=1), -1).astype(np.int64)
        else:
            raise MetricInputError("neither predictions nor scores are given", reason="length_mismatch")
        if not ids:
            return
        fresh = not len(self._table)
        columns = self._columns() if scores is None else self._score_columns(arrays["scores"].shape[1])
        if tuple(columns) != self._table.columns and not fresh:
            raise MetricInputError(
                "all batches must have scores of the same classes, or none", reason="scores_missing", sample_id=ids[0]
            )
        table = SampleTable(columns) if fresh else self._table
        table.add(ids, arrays, group_list(groups))
        self._table = table

    def default_names(self) -> tuple[str, ...]:
        """Metrics of labels, and those of scores when there are any."""
        return LABEL_METRICS + (SCORE_METRICS if self._has_scores() else ())

    def label_set(self) -> tuple[Label, ...]:
        """The declared labels, or the ones seen, in the order of the confusion matrix."""
        return self.settings.labels if self.settings.labels is not None else tuple(self._seen(self._table.rows()))

    def confusion_matrix(self) -> IntArray:
        """Counts of shape (labels, labels + 1): rows are true labels; the last column is "no prediction"."""
        return self._matrix(self._table.rows())[1][:-1]

    def label_scores(self, kind: str) -> dict[Label, float]:
        """Precision, recall or F1 of each label; `kind` is the metric's name without an average."""
        rows = self._table.rows()
        counts = LabelCounts.of(self._matrix(rows)[1])
        scores = label_scores(counts, kind, self.settings.zero_division_value)[0]
        return dict(zip(self.label_set(), scores.tolist()))

    def non_finite_samples(self) -> list[str]:
        """Ids of samples with a NaN or infinite score."""
        rows = self._table.rows()
        return [rows.ids[k] for k in np.flatnonzero(~_finite(rows)).tolist()] if self._has_scores() else []

    def signature(self) -> str:
        """Settings, and whether macro averages run over a declared label set or over the labels seen."""
        return super().signature() + ("|label_set:seen" if self.settings.labels is None else "")

    def counts(self) -> dict[str, int]:
        """Samples, and those without a usable prediction."""
        rows = self._table.rows()
        return {"samples": len(rows), "no_prediction": int((rows["prediction"] < 0).sum())}

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        seen, matrix, labels, predictions = self._coded(rows)
        missing = ("no_prediction",) if bool((predictions < 0).any()) else ()
        found: dict[str, Estimator] = {}
        for name in names:
            if name in SCORE_METRICS:
                found[name] = self._score_estimator(rows, name)
            elif name == "accuracy":
                found[name] = Mean(len(rows), (labels == predictions).astype(np.int64), flags=missing)
            else:
                value = label_value(matrix, name, self.settings, self.settings.positive_code(seen))
                influence = _influence(value.effects, labels, predictions)
                found[name] = Given(len(rows), value.value, influence, flags=(*value.flags, *missing))
        return found

    def _score_estimator(self, rows: Rows, name: str) -> Estimator:
        count = len(rows)
        if not self._has_scores():
            return Constant(count, math.nan, flags=("no_scores",))
        if not _finite(rows).all():
            return Constant(count, math.nan, flags=("non_finite",))
        scores, labels = rows["scores"], rows["label"]
        if name == "log_loss":
            return Mean(count, log_losses(scores, labels))
        if name == "brier":
            return Mean(count, brier_scores(scores, labels))
        if name == "ece":
            # The confidence belongs to the likeliest class, also where other predictions were given.
            hits = scores.argmax(axis=1) == labels
            return Mean(count, calibration_terms(scores.max(axis=1), hits, self.settings.ece_bins))
        classes = scores.shape[1]
        if classes == 2:
            positive = self.settings.positive_code(range(2))
            chosen = [1 if positive is None else positive]
        else:
            chosen = list(range(classes))
        area = mean_roc_area([roc_area(scores[:, k], labels == k) for k in chosen])
        if math.isnan(area.value):
            return Constant(count, math.nan, flags=("one_class",))
        return Given(count, area.value, area.influence)

    def _has_scores(self) -> bool:
        return any(column.name == "scores" for column in self._table.columns)

    def _seen(self, rows: Rows) -> list[int]:
        if self.settings.labels is not None:
            return list(range(len(self.settings.labels)))
        found = np.union1d(rows["label"], rows["prediction"])
        return [int(code) for code in found if code >= 0]

    def _coded(self, rows: Rows) -> tuple[list[int], IntArray, IntArray, IntArray]:
        seen, matrix = self._matrix(rows)
        labels, predictions = rows["label"], rows["prediction"]
        if self.settings.labels is None:
            labels, predictions = _compact(labels, seen), _compact(predictions, seen)
        return seen, matrix, labels, predictions

    def _matrix(self, rows: Rows) -> tuple[list[int], IntArray]:
        seen = self._seen(rows)
        labels, predictions = rows["label"], rows["prediction"]
        if self.settings.labels is None:
            labels, predictions = _compact(labels, seen), _compact(predictions, seen)
        return seen, confusion_matrix(labels, predictions, len(seen))

    def _merge(self, other: Self) -> None:
        if not len(other._table):
            return
        if not len(self._table):
            self._table = SampleTable(other._table.columns)
        if self._table.columns != other._table.columns:
            raise MetricStateError("one state has scores of other classes, or none", reason="scores_missing")
        self._table.merge(other._table)

    def _restore(self, payload: Payload) -> None:
        scores = payload.arrays.get("scores")
        if scores is not None and scores.ndim == 2:
            self._table = SampleTable(self._score_columns(scores.shape[1]))
        self._table.restore(payload)
        rows = self._table.rows()
        limit = len(self.settings.labels) if self.settings.labels is not None else None
        codes = np.concatenate([rows["label"], rows["prediction"]])
        if (rows["label"] < 0).any() or (codes < -1).any() or (limit is not None and (codes >= limit).any()):
            raise MetricStateError("damaged state: a label code is out of range", reason="damaged_state")


def label_value(matrix: IntArray, name: str, settings: ClassificationSettings, positive: int | None) -> MatrixValue:
    """A metric of a confusion matrix by its name, such as `f1` or `precision_micro`."""
    if name == "matthews_corrcoef":
        return matthews_correlation(matrix)
    if name == "cohen_kappa":
        return cohen_kappa(matrix, settings.kappa_weights)
    kind, _, average = name.partition("_")
    average = average or settings.average
    if not matrix.sum():
        return MatrixValue(math.nan, None)
    if average == "binary" and positive is None:
        return MatrixValue(settings.zero_division_value, None, ("no_positive",))
    return precision_recall_f1(
        LabelCounts.of(matrix),
        kind,
        average,
        zero_division=settings.zero_division_value,
        positive=positive or 0,
    )


def _influence(effects: Effects | None, labels: IntArray, predictions: IntArray) -> npt.NDArray[np.float64] | None:
    return None if effects is None else effects.of(labels, predictions)


def _compact(codes: IntArray, seen: Sequence[int]) -> IntArray:
    return np.where(codes < 0, -1, np.searchsorted(np.asarray(seen, dtype=np.int64), codes)).astype(np.int64)


def _finite(rows: Rows) -> npt.NDArray[np.bool_]:
    finite: npt.NDArray[np.bool_] = np.isfinite(rows["scores"]).all(axis=1)
    return finite
