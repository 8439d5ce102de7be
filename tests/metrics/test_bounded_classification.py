"""Classification in bounded memory: the values of the exact state, constant size, sets of ordinals, exact sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from mindeval.service.metrics import MetricInputError, MetricSettingsError, MetricStateError, create, metric_names
from mindeval.service.metrics.exact import ExactSum
from mindeval.service.metrics.ordinals import OrdinalSet

FAMILY = "classification_bounded"


def batch_of(seed: int, *, scored: bool, size: int | None = None, classes: int = 3) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 30)) if size is None else size
    # Scores on a grid of 1/256, so that 256 bins keep them apart and the area is exact.
    scores = generator.multinomial(255, [1 / classes] * classes, size) / 255.0
    return {
        "ordinals": generator.permutation(5 * size)[:size],
        "labels": generator.integers(0, classes, size),
        "predictions": None if scored else generator.integers(-1, classes, size),
        "scores": scores if scored else None,
    }


@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([2, 3]))
@settings(max_examples=30, deadline=None)
def test_values_and_errors_are_those_of_the_exact_state(seed: int, scored: bool, classes: int) -> None:
    batch = batch_of(seed, scored=scored, classes=classes)
    labels = list(range(classes))
    bounded = create(FAMILY, {"labels": labels, "score_bins": 256, "exact_samples": 0})
    bounded.update(**batch)
    exact = create("classification", {"labels": labels})
    exact.update(sample_ids=[str(k) for k in batch.pop("ordinals")], **batch)
    names = metric_names(FAMILY)
    for name, want in exact.result(names).items():
        got = bounded.result(names)[name]
        assert got.value == pytest.approx(want.value, rel=1e-12, abs=1e-15, nan_ok=True), name
        assert got.count == want.count
        if name != "roc_auc":
            assert got.flags == want.flags
        if got.standard_error is not None and want.standard_error is not None:
            assert got.standard_error == pytest.approx(want.standard_error, rel=1e-6, abs=1e-9), name


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=20, deadline=None)
def test_any_way_of_arriving_gives_the_same_bits(assert_exact: Callable[..., None], seed: int, scored: bool) -> None:
    names = metric_names(FAMILY)
    # The limit lies among the sizes of the batches, so that some totals cross it and others do not.
    options = {"labels": ["a", "b", "c"], "score_bins": 32, "exact_samples": 12}
    assert_exact(FAMILY, options, batch_of(seed, scored=scored), names=names, trials=2, seed=seed, overlaps=False)


def test_ten_times_the_samples_take_the_same_memory() -> None:
    sizes = []
    for size in (10_000, 100_000):
        state = create(FAMILY, {"labels": list(range(10))})
        for start in range(0, size, 1000):
            labels = np.arange(start, start + 1000) % 10
            state.update(ordinals=range(start, start + 1000), labels=labels, predictions=labels)
        assert state.counts()["samples"] == size
        sizes.append(len(state.to_bytes()))
    assert abs(sizes[0] - sizes[1]) < 64


def test_large_label_arrays_equal_scikit_learn_bit_by_bit() -> None:
    generator = np.random.default_rng(0)
    true = generator.integers(0, 20, 200_000)
    predicted = np.where(generator.random(200_000) < 0.7, true, generator.integers(0, 20, 200_000))
    state = create(FAMILY, {"labels": list(range(20))})
    state.update(ordinals=range(200_000), labels=true, predictions=predicted)
    for average in ("micro", "macro", "weighted"):
        expected = reference.precision_recall_fscore_support(true, predicted, average=average)
        result = state.result()
        result = state.result([f"{kind}_{average}" for kind in ("precision", "recall", "f1")])
        assert [metric.value for metric in result.values()] == list(expected[:3])


def test_binned_area_is_within_its_bound() -> None:
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 2, 5000)
    scores = np.clip(generator.normal(0.4 + 0.2 * labels, 0.15), 0, 1)
    state = create(FAMILY, {"labels": [0, 1], "score_bins": 512, "exact_samples": 4999})
    state.update(ordinals=range(5000), labels=labels, scores=scores)
    area = state.result(["roc_auc"])["roc_auc"]
    assert area.value == pytest.approx(reference.roc_auc_score(labels, scores), abs=2e-4)
    assert area.flags == ("binned",)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_area_is_exact_up_to_the_limit_and_binned_beyond_it(classes: int) -> None:
    generator = np.random.default_rng(4)
    labels, scores = generator.integers(0, classes, 61), generator.dirichlet(np.ones(classes), 61)
    settings = {"labels": list(range(classes)), "score_bins": 8, "exact_samples": 60}
    parts = [create(FAMILY, settings) for _ in range(3)]
    for state, (start, stop) in zip(parts, [(0, 30), (30, 60), (60, 61)]):
        state.update(ordinals=range(start, stop), labels=labels[start:stop], scores=scores[start:stop])
    parts[0].merge(parts[1])
    exact = create("classification", {"labels": settings["labels"]})
    exact.update(sample_ids=[f"{k:02d}" for k in range(60)], labels=labels[:60], scores=scores[:60])
    want, got = exact.result(["roc_auc"])["roc_auc"], parts[0].result(["roc_auc"])["roc_auc"]
    assert (got.value, got.standard_error, got.flags) == (want.value, want.standard_error, ())
    again = type(parts[0]).from_bytes(parts[0].to_bytes())
    again.merge(parts[2])
    beyond = again.result(["roc_auc"])["roc_auc"]
    assert beyond.flags == ("binned",)
    assert beyond.value != want.value
    assert "exact_samples:60" in beyond.signature


def test_a_range_that_was_seen_before_adds_no_scores() -> None:
    state = create(FAMILY, {"labels": [0, 1]})
    scores = np.array([[0.3, 0.7], [0.6, 0.4]])
    for _ in range(2):
        state.update(ordinals=range(2), labels=[1, 0], scores=scores)
    assert state.result(["roc_auc"])["roc_auc"].value == 1.0
    assert state.counts()["samples"] == 2


def test_states_of_the_first_version_are_read_and_merge() -> None:
    state = create(FAMILY, {"labels": [0, 1]})
    state.update(ordinals=[0, 1, 2], labels=[0, 1, 1], scores=[0.1, 0.8, 0.7])
    old = state.to_dict()
    old["version"] = 1
    del old["settings"]["exact_samples"]
    old["arrays"] = {name: value for name, value in old["arrays"].items() if not name.startswith("kept_")}
    restored = type(state).from_dict(old)
    assert restored.result(["roc_auc"])["roc_auc"].flags == ("binned",)
    other = create(FAMILY, {"labels": [0, 1]})
    other.update(ordinals=[3], labels=[0], scores=[0.2])
    other.merge(restored)
    assert other.result(["roc_auc"])["roc_auc"].value == 1.0
    assert other.counts()["samples"] == 4


def test_damaged_kept_scores_are_refused() -> None:
    state = create(FAMILY, {"labels": [0, 1]})
    state.update(ordinals=[0, 1], labels=[0, 1], scores=[0.1, 0.8])
    payload = state._payload()
    payload.arrays["kept_labels"] = np.array([0, 2])
    with pytest.raises(MetricStateError) as caught:
        type(state).from_payload(payload)
    assert caught.value.reason == "damaged_state"


def test_states_that_share_samples_are_not_merged() -> None:
    states = [create(FAMILY, {"labels": [0, 1]}) for _ in range(2)]
    states[0].update(ordinals=[0, 1, 2], labels=[0, 1, 0], predictions=[0, 1, 0])
    states[1].update(ordinals=[2, 3], labels=[0, 1], predictions=[0, 1])
    before = states[0].to_bytes()
    with pytest.raises(MetricStateError) as caught:
        states[0].merge(states[1])
    assert caught.value.reason == "overlapping_samples"
    assert states[0].to_bytes() == before


def test_labels_are_required_and_ordinals_checked() -> None:
    with pytest.raises(MetricSettingsError) as caught:
        create(FAMILY)
    assert caught.value.field == "labels"
    for ordinals in ([-1], [0.5], ["a"], [None]):
        with pytest.raises(MetricInputError) as refused:
            create(FAMILY, {"labels": [0]}).update(ordinals=ordinals, labels=[0], predictions=[0])
        assert refused.value.reason == "invalid_sample_id"
    with pytest.raises(MetricInputError) as named:
        create(FAMILY, {"labels": [0]}).update(ordinals=[41, 42], labels=[0, 5], predictions=[0, 0])
    assert named.value.sample_id == "42"


@given(st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=8), st.sampled_from([4096, 3]))
@settings(max_examples=150, deadline=None)
def test_sets_of_ordinals_are_sets(batches: list[list[int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mindeval.service.metrics.ordinals._MOST_INTERVALS", most)
        found, model = OrdinalSet(), set()
        for batch in batches:
            array = np.array(batch, dtype=np.int64)
            assert found.contains(array).tolist() == [value in model for value in batch]
            found.add(array)
            model |= set(batch)
            assert len(found) == len(model)
        copy = OrdinalSet.from_array(found.to_array())
        other = OrdinalSet()
        other.add(np.array([100, 102, 104, 106], dtype=np.int64))
        copy.merge(other)
        assert len(copy) == len(model) + 4
        assert copy.contains(np.arange(120)).nonzero()[0].tolist() == sorted(model | {100, 102, 104, 106})
        if model:
            with pytest.raises(MetricStateError):
                found.merge(copy)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40), st.integers(0, 39))
@settings(max_examples=150, deadline=None)
def test_exact_sums_are_exact(values: list[float], place: int) -> None:
    left, right = ExactSum(), ExactSum()
    left.add(np.array(values[:place]))
    right.add(np.array(values[place:]))
    left.merge(right)
    exact = sum(map(Fraction, values), Fraction(0))
    try:
        want = float(exact)
    except OverflowError:
        want = math.inf if exact > 0 else -math.inf
    assert ExactSum.from_array(left.to_array()).value() == want
