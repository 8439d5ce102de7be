"""Multi-label classification against scikit-learn; bad input; exactness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from mindeval.service.metrics import MetricInputError, MetricSettingsError, create, metric_names

FAMILY = "multilabel_classification"


def batch_of(seed: int, *, scored: bool, size: int | None = None) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 20)) if size is None else size
    true = generator.random((size, 3)) < [0.5, 0.3, 0.05]
    scores = np.clip(generator.normal(0.3 + 0.4 * true, 0.3), 0, 1).round(2)
    return {
        "sample_ids": [f"s{k}" for k in range(size)],
        "labels": true,
        "predictions": scores > 0.5,
        "scores": scores if scored else None,
    }


@given(st.integers(0, 10**6), st.sampled_from([0, 1]))
@settings(max_examples=60, deadline=None)
def test_values_equal_scikit_learn(seed: int, zero: int) -> None:
    batch = batch_of(seed, scored=True)
    state = create(FAMILY, {"labels": ["a", "b", "c"], "zero_division": zero})
    state.update(**batch)
    result = state.result(metric_names(FAMILY))
    true, predicted = batch["labels"].astype(int), batch["predictions"].astype(int)
    for average in ("micro", "macro", "weighted"):
        expected = reference.precision_recall_fscore_support(true, predicted, average=average, zero_division=zero)
        for kind, want in zip(("precision", "recall", "f1"), expected):
            assert result[f"{kind}_{average}"].value == want
    assert result["accuracy"].value == reference.accuracy_score(true, predicted)
    assert result["hamming_loss"].value == pytest.approx(reference.hamming_loss(true, predicted))
    each = reference.f1_score(true, predicted, average=None, zero_division=zero)
    assert list(state.label_scores("f1").values()) == each.tolist()
    if (true.min(axis=0) == 0).all() and (true.max(axis=0) == 1).all():
        assert result["roc_auc"].value == pytest.approx(reference.roc_auc_score(true, batch["scores"]), abs=1e-14)
    else:
        assert math.isnan(result["roc_auc"].value)
        assert result["roc_auc"].flags == ("one_class",)


def test_standard_errors_match_the_spread_over_fresh_samples() -> None:
    names = ["accuracy", "hamming_loss", "f1_micro", "f1_macro", "precision_weighted", "roc_auc"]
    values: dict[str, list[float]] = {name: [] for name in names}
    errors: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(200):
        state = create(FAMILY, {"labels": ["a", "b", "c"]})
        state.update(**batch_of(seed, scored=True, size=300))
        for name, metric in state.result(names).items():
            values[name].append(metric.value)
            errors[name].append(metric.standard_error)
    for name in names:
        assert np.mean(errors[name]) == pytest.approx(np.std(values[name], ddof=1), rel=0.15), name


@pytest.mark.parametrize(
    ("change", "reason", "sample_id"),
    [
        ({"labels": [[1, 0, 2]]}, "unknown_label", "x"),
        ({"labels": [[1, 0, None]]}, "unknown_label", "x"),
        ({"labels": [[1, 0]]}, "length_mismatch", None),
        ({"labels": [[1, 0], [1]]}, "length_mismatch", None),
        ({"predictions": [[0.5, 0, 0]]}, "unknown_label", "x"),
        ({"scores": [[0.5, 0.5, 1.5]]}, "invalid_value", "x"),
    ],
)
def test_bad_input_names_the_sample(change: dict[str, Any], reason: str, sample_id: str | None) -> None:
    batch = {"sample_ids": ["x"], "labels": [[1, 0, 0]], "predictions": [[1, 0, 0]], **change}
    with pytest.raises(MetricInputError) as caught:
        create(FAMILY, {"labels": ["a", "b", "c"]}).update(**batch)
    assert (caught.value.reason, caught.value.sample_id) == (reason, sample_id)


def test_the_label_set_must_be_declared() -> None:
    with pytest.raises(MetricSettingsError) as caught:
        create(FAMILY)
    assert caught.value.field == "labels"


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_way_of_arriving_gives_the_same_bits(assert_exact: Callable[..., None], seed: int, scored: bool) -> None:
    batch = batch_of(seed, scored=scored)
    batch["groups"] = [f"g{k % 3}" for k in range(len(batch["labels"]))]
    names = metric_names(FAMILY)
    assert_exact(FAMILY, {"labels": ["a", "b", "c"]}, batch, names=names, trials=2, seed=seed)
