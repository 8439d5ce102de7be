"""Classification with any number of labels a sample. Exact over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.confusion import AVERAGES, Effects, LabelCounts, label_scores, precision_recall_f1
from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError
from mindeval.service.metrics.estimators import Constant, Estimator, Given, Mean
from mindeval.service.metrics.exact import FloatArray
from mindeval.service.metrics.labels import Label, check_label_set, probability_rows
from mindeval.service.metrics.probabilities import roc_area
from mindeval.service.metrics.settings import Settings, check_choice
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState

_NAMES = ("accuracy", "hamming_loss", "precision", "recall", "f1")


@dataclass(frozen=True)
class MultilabelSettings(Settings):
    """Settings of multi-label classification.

    Attributes:
        labels: The dataset's declared label set: names, or integers. Required.
        average: What `precision`, `recall` and `f1` mean: `micro`, `macro` or `weighted`.
        zero_division: Score of a label with an empty denominator: 0, 1, or "nan" to leave it out of means.
    """

    labels: tuple[Label, ...] | None = None
    average: str = "macro"
    zero_division: float | str = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.labels is None:
            raise MetricSettingsError("the label set must be declared", field="labels")
        check_label_set(self.labels, "labels")
        check_choice("average", self.average, AVERAGES[1:])
        if self.zero_division != "nan" and self.zero_division not in (0, 1):
            raise MetricSettingsError(f'must be 0, 1 or "nan", not {self.zero_division!r}', field="zero_division")


class MultilabelState(TableState):
    """Which labels each sample has and which were predicted, and scores when they are given.

    Metrics: `accuracy` (all labels right), `hamming_loss` (share of label decisions that are wrong), `precision`,
    `recall` and `f1` under the setting `average`, each also with a suffix such as `f1_micro`, and `roc_auc` (mean
    over labels). References: scikit-learn's functions of the same names on indicator matrices.

    Flags: `zero_division`; `no_scores`; `non_finite` (a score is NaN or infinite); `one_class` (a label always or
    never occurs, so it has no area).
    """

    family: ClassVar[str] = "multilabel_classification"
    settings_type = MultilabelSettings
    settings: MultilabelSettings

    def _columns(self) -> Sequence[Column]:
        size = len(self.settings.labels or ())
        return (
            Column("true", "uint8", size),
            Column("predicted", "uint8", size),
            Column("scores", "float64", size),
            Column("scored", "uint8"),
        )

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        labels: npt.NDArray[Any] | Sequence[Sequence[Any]],
        predictions: npt.NDArray[Any] | Sequence[Sequence[Any]],
        scores: npt.NDArray[Any] | Sequence[Sequence[float]] | None = None,
        groups: Sequence[str] | None = None,
    ) -> None:
        """Add samples.

        Args:
            sample_ids: n ids.
            labels: Indicators of shape (n, labels): bool, or integers 0 and 1.
            predictions: Indicators of shape (n, labels).
            scores: Probabilities of shape (n, labels), each label by itself.
            groups: n names of clusters of dependent samples.

        Raises:
            MetricInputError: Shapes differ (`length_mismatch`), an indicator is not 0 or 1 (`unknown_label`), a score
                is outside [0, 1] (`invalid_value`), or a sample repeats with other content (`conflicting_repeat`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), labels=labels, predictions=predictions, scores=scores, groups=groups)
        size = len(self.settings.labels or ())
        rows = np.zeros((len(ids), size))
        if scores is not None:
            rows = probability_rows(scores, ids, sums_to_one=False, classes=size)
        arrays: dict[str, npt.NDArray[Any]] = {
            "true": _indicators(labels, ids, size, "label"),
            "predicted": _indicators(predictions, ids, size, "prediction"),
            "scores": rows,
            "scored": np.full(len(ids), scores is not None, dtype=np.uint8),
        }
        self._table.add(ids, arrays, group_list(groups))

    def default_names(self) -> tuple[str, ...]:
        """Metrics of labels, and `roc_auc` when there are scores."""
        return (*_NAMES, "roc_auc") if self._table.rows()["scored"].any() else _NAMES

    def label_scores(self, kind: str) -> dict[Label, float]:
        """Precision, recall or F1 of each label; `kind` is the metric's name without an average."""
        scores = label_scores(_counts(self._table.rows()), kind, float(self.settings.zero_division))[0]
        return dict(zip(self.settings.labels or (), scores.tolist()))

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        return {name: self._estimator(rows, name) for name in names}

    def _estimator(self, rows: Rows, name: str) -> Estimator:
        count, wrong = len(rows), rows["true"] != rows["predicted"]
        if name == "accuracy":
            return Mean(count, (~wrong.any(axis=1)).astype(np.int64))
        if name == "hamming_loss":
            return Mean(count, wrong.sum(axis=1, dtype=np.int64), scale=1 / len(self.settings.labels or (1,)))
        if name == "roc_auc":
            return _area(rows)
        if not count:
            return Constant(0, math.nan)
        kind, _, average = name.partition("_")
        value = precision_recall_f1(
            _counts(rows),
            kind,
            average or self.settings.average,
            zero_division=float(self.settings.zero_division),
            positive=0,
        )
        return Given(count, value.value, _influence(value.effects, rows), flags=value.flags)


def _counts(rows: Rows) -> LabelCounts:
    true, predicted = rows["true"], rows["predicted"]
    return LabelCounts(
        (true & predicted).sum(axis=0, dtype=np.int64),
        predicted.sum(axis=0, dtype=np.int64),
        true.sum(axis=0, dtype=np.int64),
    )


def _influence(effects: Effects | None, rows: Rows) -> FloatArray | None:
    if effects is None:
        return None
    true, predicted = rows["true"].astype(np.float64), rows["predicted"].astype(np.float64)
    # Element by element and then along rows: unlike a matrix product, the same bits on every machine.
    terms = true * predicted * effects.diagonal[:-1] + true * effects.row[:-1] + predicted * effects.column[:-1]
    influence: FloatArray = terms.sum(axis=1)
    return influence


def _area(rows: Rows) -> Estimator:
    count = len(rows)
    if not count or not rows["scored"].all():
        return Constant(count, math.nan, flags=("no_scores",))
    if not np.isfinite(rows["scores"]).all():
        return Constant(count, math.nan, flags=("non_finite",))
    areas = [roc_area(rows["scores"][:, k], rows["true"][:, k] == 1) for k in range(rows["true"].shape[1])]
    if any(math.isnan(area.value) for area in areas):
        return Constant(count, math.nan, flags=("one_class",))
    influence = sum((area.influence for area in areas), np.zeros(count)) / len(areas)
    return Given(count, math.fsum(area.value for area in areas) / len(areas), influence)


def _indicators(values: Any, ids: Sequence[str], size: int, name: str) -> npt.NDArray[np.uint8]:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(0)
    if not ids:
        return np.zeros((0, size), dtype=np.uint8)
    if array.shape != (len(ids), size):
        raise MetricInputError(f"{name}s have shape {array.shape}, not {(len(ids), size)}", reason="length_mismatch")
    bad = np.array([[entry not in (0, 1) for entry in row] for row in array.tolist()])
    if bad.any():
        k = int(np.argmax(bad.any(axis=1)))
        raise MetricInputError(f"a {name} is not 0 or 1", reason="unknown_label", sample_id=ids[k])
    return array.astype(np.uint8)
