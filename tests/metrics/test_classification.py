"""Classification against scikit-learn and published values; flags, bad input, exactness."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from mindeval.service.metrics import MetricInputError, MetricSettingsError, MetricStateError, create, metric_names
from mindeval.service.metrics.confusion import (
    LabelCounts,
    MatrixValue,
    cohen_kappa,
    matthews_correlation,
    precision_recall_f1,
)
from mindeval.service.metrics.probabilities import roc_area

AVERAGES = ("micro", "macro", "weighted")


def state_of(true: Any, predictions: Any = None, scores: Any = None, groups: Any = None, **options: Any) -> Any:
    state = create("classification", options)
    ids = [f"s{k}" for k in range(len(true))]
    state.update(sample_ids=ids, labels=true, predictions=predictions, scores=scores, groups=groups)
    return state


def value(state: Any, name: str) -> float:
    return float(state.result([name])[name].value)


pairs = st.integers(1, 6).flatmap(
    lambda classes: st.lists(
        st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=40
    )
)


@given(pairs, st.sampled_from([0, 1]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_label_metrics_equal_scikit_learn(samples: list[tuple[int, int]], zero: int, declared: bool) -> None:
    true, predicted = [a for a, _ in samples], [b for _, b in samples]
    labels = list(range(7)) if declared else None
    state = state_of(true, predicted, labels=labels, zero_division=zero)
    for average in AVERAGES:
        expected = reference.precision_recall_fscore_support(
            true, predicted, average=average, zero_division=zero, labels=labels
        )
        for name, want in zip(("precision", "recall", "f1"), expected):
            assert value(state, f"{name}_{average}") == want, (name, average)
    assert value(state, "accuracy") == reference.accuracy_score(true, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one label only: scikit-learn warns and returns 0 or nan, as we flag
        mcc = reference.matthews_corrcoef(true, predicted)
        kappa = {
            weights: reference.cohen_kappa_score(true, predicted, weights=weights)
            for weights in (None, "linear", "quadratic")
        }
    assert value(state, "matthews_corrcoef") == pytest.approx(mcc, abs=1e-12)
    for weights, want in kappa.items():
        # Weighted forms measure distance on the label set, so the reference must see the same one.
        if declared and weights:
            continue
        own = state_of(true, predicted, kappa_weights=weights or "none")
        assert value(own, "cohen_kappa") == pytest.approx(want, abs=1e-12, nan_ok=True)


@given(pairs)
@settings(max_examples=40, deadline=None)
def test_binary_and_per_label_scores_equal_scikit_learn(samples: list[tuple[int, int]]) -> None:
    true, predicted = [a % 2 for a, _ in samples], [b % 2 for _, b in samples]
    for positive in (0, 1):
        state = state_of(true, predicted, labels=[0, 1], average="binary", positive=positive)
        expected = reference.precision_recall_fscore_support(
            true, predicted, average="binary", pos_label=positive, zero_division=0, labels=[0, 1]
        )
        assert [value(state, name) for name in ("precision", "recall", "f1")] == list(expected[:3])
    expected = reference.f1_score(true, predicted, average=None, labels=[0, 1], zero_division=0)
    assert list(state.label_scores("f1").values()) == expected.tolist()
    assert (
        state.confusion_matrix()[:, :2].tolist() == reference.confusion_matrix(true, predicted, labels=[0, 1]).tolist()
    )


def test_zero_division_nan_leaves_labels_out() -> None:
    true, predicted = [0, 0, 1], [0, 1, 1]
    state = state_of(true, predicted, labels=[0, 1, 2], zero_division="nan")
    expected = reference.precision_recall_fscore_support(
        true, predicted, average="macro", labels=[0, 1, 2], zero_division=np.nan
    )
    assert [value(state, f"{n}_macro") for n in ("precision", "recall", "f1")] == pytest.approx(expected[:3])


def test_a_label_set_that_never_occurs_changes_macro_and_is_flagged() -> None:
    seen = state_of([0, 1], [0, 1]).result(["f1"])["f1"]
    declared = state_of([0, 1], [0, 1], labels=[0, 1, 2]).result(["f1"])["f1"]
    assert (seen.value, declared.value) == (1.0, 2 / 3)
    assert seen.flags == ()
    assert declared.flags == ("zero_division",)
    assert "label_set:seen" in seen.signature
    assert "labels:0,1,2" in declared.signature


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_score_metrics_equal_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(classes)
    scores = generator.dirichlet(np.ones(classes), 200).round(2)  # rounding makes ties
    scores[:, 0] = 1 - scores[:, 1:].sum(axis=1)
    scores = np.clip(scores, 0, 1)
    labels = np.array([generator.choice(classes, p=row / row.sum()) for row in scores])
    state = state_of(labels, scores=scores, labels=list(range(classes)))
    if classes == 2:
        assert value(state, "roc_auc") == pytest.approx(reference.roc_auc_score(labels, scores[:, 1]), abs=1e-14)
        assert value(state, "brier") == pytest.approx(reference.brier_score_loss(labels, scores[:, 1]), abs=1e-15)
    else:
        wanted = reference.roc_auc_score(labels, scores, multi_class="ovr", average="macro")
        assert value(state, "roc_auc") == pytest.approx(wanted, abs=1e-14)
        assert value(state, "brier") == pytest.approx(reference.brier_score_loss(labels, scores), abs=1e-14)
    assert value(state, "log_loss") == pytest.approx(reference.log_loss(labels, scores), rel=1e-12)
    # Calibration error by its definition: bins (lower, upper] of the top probability.
    confidence, hits = scores.max(axis=1), scores.argmax(axis=1) == labels
    total = 0.0
    for lower in range(15):
        inside = (confidence > lower / 15) & (confidence <= (lower + 1) / 15)
        if inside.any():
            total += inside.sum() * abs(hits[inside].mean() - confidence[inside].mean())
    assert value(state, "ece") == pytest.approx(total / len(labels), abs=1e-12)


def test_one_dimensional_scores_belong_to_the_positive_label() -> None:
    scores, labels = [0.1, 0.8, 0.35, 0.4], [0, 1, 1, 0]
    state = state_of(["no", "yes", "yes", "no"], scores=scores, labels=["no", "yes"])
    assert value(state, "roc_auc") == reference.roc_auc_score(labels, scores) == 0.75
    other = state_of(["no", "yes", "yes", "no"], scores=scores, labels=["no", "yes"], positive="no")
    assert value(other, "roc_auc") == 0.75


def test_published_values_of_metric_cards(data: Path) -> None:
    cases = json.loads((data / "cls_metric_hf_literals" / "cases.json").read_text(encoding="utf-8"))
    assert len(cases) == 28
    for case in cases:
        chosen, true, predicted = dict(case["settings"]), case["y_true"], case["y_pred"]
        # A weight is a number of repeats; scaled to integers, weighted samples are repeated ones.
        if weights := chosen.pop("sample_weight", None):
            repeats = [round(weight * 10) for weight in weights]
            true, predicted = np.repeat(true, repeats).tolist(), np.repeat(predicted, repeats).tolist()
        name = {"mcc": "matthews_corrcoef"}.get(case["metric"], case["metric"])
        options: dict[str, Any] = {}
        if name in ("precision", "recall", "f1"):
            options["average"] = chosen.pop("average", "binary") or "macro"
            options["positive"] = chosen.pop("pos_label", 1)
        chosen.pop("multi_class", None)
        state = state_of(true, scores=predicted) if name == "roc_auc" else state_of(true, predicted, **options)
        normalize = chosen.pop("normalize", True)
        assert not chosen, f"a setting of the case is not covered: {chosen}"
        if name == "confusion_matrix":
            assert state.confusion_matrix()[:, :-1].tolist() == case["expected"]
        elif isinstance(case["expected"], list):
            assert list(state.label_scores(name).values()) == pytest.approx(case["expected"], abs=0.005)
        else:
            scale = 1 if normalize else len(true)
            assert value(state, name) * scale == pytest.approx(case["expected"], abs=case["tol"]), case


def test_published_accuracies_of_label_files(data: Path) -> None:
    folder = data / "cls_nmt_labels"
    true = (folder / "label_ref.txt").read_text(encoding="utf-8").split()
    predicted = (folder / "pred_output.txt").read_text(encoding="utf-8").split()
    state = state_of(true, predicted, labels=sorted({*true, *predicted}))
    assert value(state, "accuracy") * 100 == 60.0


@pytest.mark.parametrize(
    ("task", "accuracy", "macro_f1"),
    [("penguins_in_a_table", 66.43835616438356, 0.663735), ("sports_understanding", 72.8, 0.700303)],
)
def test_published_accuracies_of_real_predictions(data: Path, task: str, accuracy: float, macro_f1: float) -> None:
    folder = data / "mc_bbh"
    outputs = json.loads((folder / f"{task}.codex_direct.json").read_text(encoding="utf-8"))["outputs"]
    targets = json.loads((folder / f"{task}.json").read_text(encoding="utf-8"))["examples"]
    true = [str(example["target"]).strip() for example in targets]
    predicted = [bbh_prediction(output) for output in outputs]
    state = state_of(true, predicted, labels=sorted({*true, *predicted}))
    assert value(state, "accuracy") * 100 == pytest.approx(accuracy, abs=1e-12)
    assert value(state, "f1_macro") == pytest.approx(macro_f1, abs=5e-7)


def bbh_prediction(output: dict[str, Any]) -> str:
    return str(output["predictions"][0] if "predictions" in output else output["prediction"]).strip()


def simulate(names: list[str], sampler: Callable[[np.random.Generator], Any], trials: int = 400) -> None:
    """The reported standard error must be the spread of the value over fresh samples."""
    generator = np.random.default_rng(11)
    values: dict[str, list[float]] = {name: [] for name in names}
    errors: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(trials):
        for name, metric in sampler(generator).result(names).items():
            values[name].append(metric.value)
            errors[name].append(metric.standard_error)
    for name in names:
        assert np.mean(errors[name]) == pytest.approx(np.std(values[name], ddof=1), rel=0.15), name


def test_standard_errors_match_the_spread_over_fresh_samples() -> None:
    def sampler(generator: np.random.Generator) -> Any:
        labels = generator.integers(0, 3, 300)
        logits = generator.normal(size=(300, 3)) + 1.2 * np.eye(3)[labels]
        scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return state_of(labels, scores=scores / scores.sum(axis=1, keepdims=True), labels=[0, 1, 2])

    averages = [f"{kind}_{average}" for kind in ("precision", "recall", "f1") for average in AVERAGES]
    simulate(
        ["accuracy", "matthews_corrcoef", "cohen_kappa", "roc_auc", "log_loss", "brier", *averages], sampler, trials=250
    )


def test_clustered_standard_errors_match_the_spread_over_fresh_clusters() -> None:
    def sampler(generator: np.random.Generator) -> Any:
        documents = np.repeat(np.arange(40), 5)
        labels = generator.integers(0, 2, 200)
        # All samples of a document are right or wrong together, most of the time.
        right = np.repeat(generator.random(40) < 0.7, 5) ^ (generator.random(200) < 0.05)
        groups = [f"d{k}" for k in documents]
        return state_of(labels, np.where(right, labels, 1 - labels), groups=groups, labels=[0, 1])

    simulate(["accuracy", "f1_macro", "matthews_corrcoef"], sampler, trials=250)


def test_effects_are_the_derivatives_of_the_values() -> None:
    matrix = np.zeros((5, 5), dtype=np.int64)
    matrix[:4] = np.random.default_rng(6).integers(1, 9, (4, 5)) * 10**6
    values: dict[str, Callable[[Any], MatrixValue]] = {
        "mcc": matthews_correlation,
        **{f"kappa {weights}": partial(cohen_kappa, weights=weights) for weights in ("none", "linear", "quadratic")},
    }
    for kind in ("precision", "recall", "f1"):
        for average in ("binary", *AVERAGES):
            values[f"{kind} {average}"] = lambda matrix, kind=kind, average=average: precision_recall_f1(
                LabelCounts.of(matrix), kind, average, zero_division=0.0, positive=2
            )
    for name, function in values.items():
        here = function(matrix)
        effects = here.effects.matrix()
        for i in range(4):
            for j in range(5):
                more = matrix.copy()
                more[i, j] += 1000
                step = (function(more).value - here.value) / 1000
                assert effects[i, j] == pytest.approx(step, abs=3e-12), (name, i, j)


def test_effects_on_an_area_are_placements() -> None:
    generator = np.random.default_rng(7)
    scores, positive = generator.integers(0, 9, 40) / 9, generator.random(40) < 0.3
    area = roc_area(scores, positive)
    ups, downs = scores[positive], scores[~positive]
    order = (ups[:, None] > downs[None, :]) + 0.5 * (ups[:, None] == downs[None, :])
    assert area.value == pytest.approx(order.mean())
    assert area.influence[positive] == pytest.approx((order.mean(axis=1) - order.mean()) / ups.size)
    assert area.influence[~positive] == pytest.approx((order.mean(axis=0) - order.mean()) / downs.size)
    assert area.influence.sum() == pytest.approx(0, abs=1e-12)


def test_samples_without_a_prediction_are_wrong_and_counted() -> None:
    state = state_of(["a", "b", "a"], ["a", None, -1], labels=["a", "b"])
    result = state.result()
    assert result["accuracy"].value == 1 / 3
    assert result["accuracy"].flags == ("no_prediction",)
    assert result["precision_macro" if "precision_macro" in result else "precision"].value == 0.5
    assert state.counts() == {"samples": 3, "no_prediction": 2}
    assert state.confusion_matrix().tolist() == [[1, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_scores_are_kept_and_named(bad: float) -> None:
    state = state_of([0, 1], scores=[[0.5, bad], [0.1, 0.9]])
    result = state.result()
    assert state.non_finite_samples() == ["s0"]
    assert result["accuracy"].value == 0.5
    for name in ("roc_auc", "log_loss", "brier", "ece"):
        assert math.isnan(result[name].value)
        assert result[name].flags == ("non_finite",)
        assert result[name].standard_error is None


def test_undefined_values_are_flagged_not_raised() -> None:
    empty = create("classification", {"labels": [0, 1]}).result(metric_names("classification"))
    assert all(math.isnan(metric.value) and "empty" in metric.flags for metric in empty.values())
    one = state_of([1, 1], scores=[0.2, 0.3]).result(["roc_auc"])["roc_auc"]
    assert math.isnan(one.value)
    assert one.flags == ("one_class",)
    plain = state_of([1, 0], [1, 1]).result(["log_loss"])["log_loss"]
    assert plain.flags == ("no_scores",)


@pytest.mark.parametrize(
    ("batch", "reason", "sample_id"),
    [
        ({"labels": ["a", "c"], "predictions": ["a", "a"]}, "unknown_label", "y"),
        ({"labels": ["a", "b"], "predictions": ["z", "a"]}, "unknown_label", "x"),
        ({"labels": ["a", None], "predictions": ["a", "a"]}, "unknown_label", "y"),
        ({"labels": [0, 7], "predictions": [0, 1]}, "unknown_label", "y"),
        ({"labels": np.array([0, 7]), "predictions": [0, 1]}, "unknown_label", "y"),
        ({"labels": [0.5, 1], "predictions": [0, 1]}, "unknown_label", "x"),
        ({"labels": ["a"], "predictions": ["a", "a"]}, "length_mismatch", None),
        ({"labels": "ab", "predictions": ["a", "a"]}, "length_mismatch", None),
        ({"labels": ["a", "b"]}, "length_mismatch", None),
        ({"labels": ["a", "b"], "scores": [[0.5, 0.5]]}, "length_mismatch", None),
        ({"labels": ["a", "b"], "scores": [[0.5, 0.5, 0], [0, 0, 1]]}, "length_mismatch", None),
        ({"labels": ["a", "b"], "scores": [[0.5, 0.5], [0.9, 0.9]]}, "invalid_value", "y"),
        ({"labels": ["a", "b"], "scores": [[-0.5, 1.5], [0.5, 0.5]]}, "invalid_value", "x"),
        ({"labels": ["a", "b"], "scores": [None, "x"]}, "invalid_value", None),
        ({"labels": ["a", "b"], "predictions": ["a", "b"], "groups": [1, 2]}, "invalid_group", None),
    ],
)
def test_bad_input_is_refused_and_names_the_sample(batch: dict[str, Any], reason: str, sample_id: str | None) -> None:
    state = create("classification", {"labels": ["a", "b"]})
    with pytest.raises(MetricInputError) as caught:
        state.update(sample_ids=["x", "y"], **batch)
    assert (caught.value.reason, caught.value.sample_id) == (reason, sample_id)
    assert state.result(["accuracy"])["accuracy"].count == 0


def test_batches_with_and_without_scores_do_not_mix() -> None:
    state = state_of([0], scores=[0.5])
    with pytest.raises(MetricInputError) as caught:
        state.update(sample_ids=["t"], labels=[0], predictions=[0])
    assert caught.value.reason == "scores_missing"
    with pytest.raises(MetricStateError):
        state.merge(state_of([0], [0]))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"labels": []}, "labels"),
        ({"labels": ["a", "a"]}, "labels"),
        ({"labels": ["a", 1]}, "labels"),
        ({"average": "mean"}, "average"),
        ({"labels": ["a"], "positive": "b"}, "positive"),
        ({"zero_division": 2}, "zero_division"),
        ({"ece_bins": 0}, "ece_bins"),
        ({"kappa_weights": "cubic"}, "kappa_weights"),
    ],
)
def test_bad_settings_name_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(MetricSettingsError) as caught:
        create("classification", options)
    assert caught.value.field == field


def random_batch(seed: int, *, scored: bool, grouped: bool) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 25))
    scores = generator.dirichlet(np.ones(3), size)
    return {
        "sample_ids": [f"样本{k}" for k in range(size)],
        "labels": generator.integers(0, 3, size),
        "predictions": None if scored else generator.integers(-1, 3, size),
        "scores": scores if scored else None,
        "groups": [f"g{k % 4}" for k in range(size)] if grouped else None,
    }


@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([None, ["x", "y", "z"]]))
@settings(max_examples=14, deadline=None)
def test_any_way_of_arriving_gives_the_same_bits(
    assert_exact: Callable[..., None], seed: int, scored: bool, grouped: bool, labels: list[str] | None
) -> None:
    batch = random_batch(seed, scored=scored, grouped=grouped)
    names = metric_names("classification")
    assert_exact("classification", {"labels": labels}, batch, names=names, trials=2, seed=seed)


def test_a_declared_negative_label_means_the_same_whatever_its_neighbours() -> None:
    def accuracy(*batches: list[Any]) -> float:
        state = create("classification", {"labels": [-1, 1]})
        first = 0
        for predictions in batches:
            ids = [str(first + k) for k in range(len(predictions))]
            state.update(sample_ids=ids, labels=[-1] * len(ids), predictions=predictions)
            first += len(ids)
        return state.result(["accuracy"])["accuracy"].value

    assert accuracy([-1, None]) == accuracy([-1], [None]) == accuracy([None], [-1]) == 0.5
    wide = create("classification", {"labels": [-5, 3]})
    wide.update(sample_ids=["a", "b"], labels=[-5, 3], predictions=[-5, None])
    assert wide.result(["accuracy"])["accuracy"].value == 0.5


@pytest.mark.parametrize("labels", [[0, 1 << 70], np.array([0, (1 << 64) - 1], dtype=np.uint64)])
def test_labels_that_no_code_can_hold_are_refused_by_sample(labels: Any) -> None:
    with pytest.raises(MetricInputError) as caught:
        create("classification", {}).update(sample_ids=["a", "b"], labels=labels, predictions=[0, 0])
    assert (caught.value.reason, caught.value.sample_id) == ("unknown_label", "b")


@pytest.mark.parametrize("values", [{0: 1, 1: 1}, {0, 1}])
def test_what_has_no_order_of_samples_is_refused(values: Any) -> None:
    with pytest.raises(MetricInputError):
        create("classification", {}).update(sample_ids=["a", "b"], labels=[0, 1], predictions=values)
