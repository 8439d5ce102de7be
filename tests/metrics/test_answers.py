"""Exact match and F1 of answers: the SQuAD script, Quoref, Chinese, answers of several spans."""

# ruff: noqa: RUF001  (full-width marks are the subject here)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from tests.metrics.generation_samples import state_of, value

from mindeval.service.metrics import MetricSettingsError
from mindeval.service.metrics.answers import answer_scores, best_pairing


def test_squad_values(data: Path) -> None:
    folder = data / "qa_xquad_en"
    predictions = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    questions = [
        question
        for article in json.loads((folder / "xquad.en.json").read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    samples = [(predictions[q["id"]], [answer["text"] for answer in q["answers"]]) for q in questions]
    state = state_of(samples, metrics=["exact_match", "f1"])
    assert len(samples) == 1190
    assert 100 * value(state, "exact_match") == pytest.approx(47.05882353, abs=1e-8)
    assert 100 * value(state, "f1") == pytest.approx(71.03931253, abs=1e-8)


def test_published_squad_cards(data: Path) -> None:
    for case in json.loads((data / "qa_hf_literals" / "cases.json").read_text(encoding="utf-8")):
        if case["metric"] == "squad_v1":
            samples = [(case["predictions"][r["id"]], r["answers"]["text"]) for r in case["references"]]
            state = state_of(samples, metrics=["exact_match", "f1"])
            for name, want in case["expected"].items():
                assert 100 * value(state, name) == pytest.approx(want, abs=1e-9)


def test_published_values_of_quoref(data: Path) -> None:
    folder = data / "qa_quoref_sample"
    predictions = json.loads((folder / "quoref_sample_predictions.json").read_text(encoding="utf-8"))
    questions = [
        question
        for article in json.loads((folder / "quoref_sample.json").read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    # A question without a prediction is a blank one here: it counts, and scores 0.
    samples = [
        (";".join(predictions.get(q["id"], [])), [";".join(answer["text"] for answer in q["answers"])])
        for q in questions
    ]
    state = state_of(samples, metrics=["exact_match", "f1"], answer_separator=";")
    assert value(state, "exact_match") == 0.5
    assert value(state, "f1") == 0.625
    assert state.result()["f1"].flags == ("empty_predictions",)
    assert "answer_separator:;" in state.signature()


@pytest.mark.parametrize(
    ("prediction", "reference", "exact", "f1"),
    [
        ("Rome; Paris", "paris;the rome", 1, 1),
        ("Rome; Paris; ", "Rome", 0, 1 / 2),
        ("Rome", "Rome; Paris; Bonn", 0, 1 / 3),
        ("New York; Rome", "York; Rome", 0, (2 / 3 + 1) / 2),
        # The first span has an equal share in both; only one of the two pairings leaves something for the second.
        ("a1 b1; b1", "b1; a1", 0, (2 / 3 + 1) / 2),
        (";;", "Rome", 0, 0),
        ("; the;", "Rome", 0, 0),
        ("a; b; a; b", "b", 0, 1 / 4),
    ],
)
def test_answers_of_several_spans(prediction: str, reference: str, exact: float, f1: float) -> None:
    assert answer_scores(prediction, [reference], "en", ";") == pytest.approx((exact, f1))


def test_spans_are_compared_with_the_best_reference_and_in_chinese() -> None:
    assert answer_scores("Rome", ["Paris;Rome", "Rome"], "en", ";") == (1.0, 1.0)
    assert answer_scores("北京、《上海》。", ["上海、北京"], "zh", "、") == (1.0, 1.0)


@given(st.integers(1, 7), st.integers(0, 6), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_the_pairing_is_the_best(rows: int, more: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    weights = np.where(generator.random((rows, rows + more)) < 0.4, 0.0, generator.random((rows, rows + more)).round(1))
    chosen = best_pairing(weights)
    assert len(set(chosen.tolist())) == rows
    best = weights[linear_sum_assignment(weights, maximize=True)].sum()
    assert weights[np.arange(rows), chosen].sum() == pytest.approx(best, abs=1e-12)


def test_a_prediction_that_repeats_itself_is_scored_in_time() -> None:
    assert answer_scores("Rome;" * 20_000, ["Rome; Paris; Bonn"], "en", ";") == (0.0, pytest.approx(1 / 20_000))


@pytest.mark.parametrize("separator", ["", " ", 3])
def test_bad_separators_are_refused(separator: Any) -> None:
    with pytest.raises(MetricSettingsError) as caught:
        state_of([("a", ["a"])], answer_separator=separator)
    assert caught.value.field == "answer_separator"


@pytest.mark.parametrize(
    ("prediction", "reference", "exact", "f1"),
    [
        ("《红楼梦》。", "红楼梦", 1, 1),
        ("答案是42", "42", 0, 0.4),
        ("ＡＢＣ", "abc", 0, 0),
        ("", "红", 0, 0),
        ("，。！", "红", 0, 0),
    ],
)
def test_chinese_answers(prediction: str, reference: str, exact: float, f1: float) -> None:
    state = state_of([(prediction, [reference])], language="zh", metrics=["exact_match", "f1"])
    assert value(state, "exact_match") == exact
    assert value(state, "f1") == pytest.approx(f1)


def test_an_english_answer_of_only_an_article_is_not_an_exact_match_of_nothing() -> None:
    assert value(state_of([("", ["the"])]), "exact_match") == 0.0
