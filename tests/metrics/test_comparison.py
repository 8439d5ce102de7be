"""Paired comparison: closed forms, coverage over fresh samples, verdicts, refusals; Student's t against SciPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mindeval.service.metrics import MetricStateError, compare, create
from mindeval.service.metrics.student import quantile, two_sided


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 30, 199, 1999, 2000, 10**6])
def test_student_t_agrees_with_scipy(degrees: int) -> None:
    for statistic in (0.0, 0.3, 1.0, 2.5, 8.0, math.inf):
        assert two_sided(statistic, degrees) == pytest.approx(2 * stats.t.sf(statistic, degrees), abs=3e-4)
    for confidence in (0.5, 0.9, 0.95, 0.999):
        assert quantile(confidence, degrees) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=2e-3)


def labels_state(right: np.ndarray, groups: list[str] | None = None) -> Any:
    state = create("classification", {"labels": [0, 1]})
    true = np.arange(right.size) % 2
    ids = [f"s{k}" for k in range(right.size)]
    state.update(sample_ids=ids, labels=true, predictions=np.where(right, true, 1 - true), groups=groups)
    return state


def test_a_mean_is_compared_as_in_a_paired_t_test() -> None:
    generator = np.random.default_rng(0)
    before, after = generator.random(80) < 0.6, generator.random(80) < 0.8
    result = compare(labels_state(before), labels_state(after), ["accuracy"])["accuracy"]
    expected = stats.ttest_rel(after.astype(float), before.astype(float))
    interval = expected.confidence_interval(0.95)
    assert result.difference == pytest.approx(after.mean() - before.mean())
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert result.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert result.standard_error_method == "paired_mean_by_sample"
    assert result.units == 80


def test_pairing_finds_what_two_separate_errors_cannot() -> None:
    generator = np.random.default_rng(1)
    before = generator.random(500) < 0.5
    after = before | (generator.random(500) < 0.06)
    states = labels_state(before), labels_state(after)
    result = compare(*states, ["accuracy"])["accuracy"]
    assert result.verdict == "better"
    separate = [state.result(["accuracy"])["accuracy"].standard_error for state in states]
    assert result.standard_error < math.hypot(*separate) / 2
    assert compare(*states[::-1], ["accuracy"])["accuracy"].verdict == "worse"


def nll_state(nll: list[np.ndarray]) -> Any:
    state = create("language_modeling")
    state.update(
        document_ids=[f"d{k}" for k in range(len(nll))],
        window_indices=[0] * len(nll),
        token_nll=nll,
        token_correct=[np.zeros(values.size, bool) for values in nll],
        words=[values.size for values in nll],
        utf8_bytes=[9] * len(nll),
    )
    return state


def test_a_lower_loss_is_better_and_ratios_are_paired() -> None:
    generator = np.random.default_rng(2)
    before = [generator.normal(3, 0.5, int(generator.integers(5, 50))) for _ in range(60)]
    after = [values - 0.02 + generator.normal(0, 0.01, values.size) for values in before]
    result = compare(nll_state(before), nll_state(after))
    for name in ("loss", "ppl"):
        assert result[name].verdict == "better", name
        assert result[name].difference < 0
        assert result[name].p_value == result["loss"].p_value, "monotone, so the same evidence"
        low, high = result[name].interval
        assert low < result[name].difference < high < 0
    assert result["token_accuracy"].verdict == "indistinguishable"
    assert result["token_accuracy"].p_value == 1.0
    assert result["loss"].standard_error_method == "paired_ratio_by_document"


def text_state(predictions: list[str], references: list[str], **options: Any) -> Any:
    state = create("generation", {"metrics": ["bleu", "rouge1", "distinct_1"], **options})
    state.update(sample_ids=[f"s{k}" for k in range(len(predictions))], predictions=predictions, references=references)
    return state


def test_corpus_scores_are_compared_by_one_bootstrap_of_both() -> None:
    generator = np.random.default_rng(3)
    words = [f"w{k}" for k in range(30)]

    def noisy(text: str, share: float) -> str:
        return " ".join(str(generator.choice(words)) if generator.random() < share else w for w in text.split())

    references = [" ".join(generator.choice(words, 12)) for _ in range(120)]
    before = [noisy(text, 0.4) for text in references]
    after = [noisy(text, 0.1) for text in references]
    states = text_state(before, references), text_state(after, references)
    result = compare(*states)
    bleu = result["bleu"]
    assert bleu.verdict == "better"
    assert bleu.standard_error_method == "paired_bootstrap_by_sample"
    assert bleu.interval is not None
    assert bleu.interval[0] < bleu.difference < bleu.interval[1]
    assert result["distinct_1"].verdict in ("different", "indistinguishable")
    same = compare(states[0], states[0])["bleu"]
    assert (same.difference, same.standard_error, same.verdict, same.p_value) == (0.0, 0.0, "indistinguishable", 1.0)
    assert compare(*states)["bleu"] == bleu, "the seed makes it repeatable"


@pytest.mark.parametrize("name", ["accuracy", "f1_macro"])
def test_intervals_cover_no_difference_as_often_as_they_say(name: str) -> None:
    generator = np.random.default_rng(4)
    covered = 0
    for _ in range(300):
        hard = generator.random(120) < 0.3  # both err on the hard ones
        states = [labels_state(np.where(hard, generator.random(120) < 0.3, generator.random(120) < 0.9)) for _ in "ab"]
        covered += compare(*states, [name])[name].verdict == "indistinguishable"
    assert 273 <= covered <= 297


def test_clusters_widen_the_interval() -> None:
    generator = np.random.default_rng(5)
    before = np.repeat(generator.random(20) < 0.5, 10)
    after = np.repeat(generator.random(20) < 0.7, 10)
    groups = [f"g{k // 10}" for k in range(200)]
    plain = compare(labels_state(before), labels_state(after), ["accuracy"])["accuracy"]
    clustered = compare(labels_state(before, groups), labels_state(after, groups), ["accuracy"])["accuracy"]
    assert clustered.units == 20
    assert clustered.standard_error > 2 * plain.standard_error


def test_undefined_values_are_undecided() -> None:
    before, after = nll_state([np.array([1.0, math.nan])] * 2), nll_state([np.array([1.0, 2.0])] * 2)
    loss = compare(before, after, ["loss"])["loss"]
    assert (loss.verdict, loss.standard_error, loss.interval, loss.flags) == ("undecided", None, None, ("non_finite",))
    single = compare(nll_state([np.array([1.0])]), nll_state([np.array([2.0])]), ["loss"])["loss"]
    assert single.verdict == "undecided"


def test_states_that_cannot_be_paired_are_refused() -> None:
    one, other = labels_state(np.ones(4, bool)), labels_state(np.ones(5, bool))
    for states, reason in (
        ((one, other), "different_samples"),
        ((one, nll_state([np.array([1.0])])), "settings_mismatch"),
        ((one, create("classification", {"labels": [0, 1, 2]})), "settings_mismatch"),
    ):
        with pytest.raises(MetricStateError) as caught:
            compare(*states)
        assert caught.value.reason == reason
    with pytest.raises(ValueError, match="confidence"):
        compare(one, one, confidence=95)
