"""Generation as a whole: languages, empty and strange text, bad input, settings, exactness."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.metrics.generation_samples import samples_of, state_of, value

from mindeval.service.metrics import MetricInputError, MetricSettingsError, MetricStateError, create


def test_chinese_needs_its_tokenizers_and_a_warning_says_so() -> None:
    samples = [("我们今天去公园玩。", ["我们今天去公园玩。"]), ("他买了3本书", ["她卖了3支笔"])]
    english = state_of(samples[:1]).result()
    assert english["bleu"].value == 0.0
    assert english["rouge1"].value == 0.0
    assert "cjk_with_ascii_tokenizer" in english["bleu"].flags
    assert "cjk_with_ascii_tokenizer" in english["rougeL"].flags
    # Only the digit is left of two different sentences, and it agrees.
    assert value(state_of(samples[1:]), "rouge1") == 1.0
    for language in ("zh", "mixed"):
        chinese = state_of(samples[:1], language=language).result()
        assert chinese["bleu"].value == pytest.approx(100)
        assert chinese["rouge1"].value == chinese["rougeLsum"].value == chinese["exact_match"].value == 1.0
        assert chinese["bleu"].flags == ()
        assert 0 < value(state_of(samples[1:], language=language), "rouge1") < 1


def test_mixed_tokens_are_characters_of_chinese_and_words_of_the_rest() -> None:
    state = state_of([("用Python写代码", ["用 python 写程序"])], language="mixed")
    # 用, python, 写 of 5 tokens against 5.
    assert value(state, "rouge1") == pytest.approx(0.6)
    assert value(state, "f1") == pytest.approx(0.6)


def test_diversity_and_lengths() -> None:
    state = state_of([("a b a b a b", ["a b c"]), ("", ["x"])])
    result = state.result()
    assert result["distinct_1"].value == pytest.approx((2 / 6 + 0) / 2)
    assert result["distinct_2"].value == pytest.approx((2 / 5 + 0) / 2)
    assert result["repetition"].value == pytest.approx((1 - 2 / 3) / 2)
    assert result["length_ratio"].value == 6 / 4
    assert result["bleu"].higher_is_better is True
    assert result["repetition"].higher_is_better is None


def test_empty_predictions_are_scored_zero_and_counted() -> None:
    state = state_of([("", ["a b c d"]), (" \n", ["b"]), ("a b c d", ["a b c d"])])
    result = state.result()
    assert result["rouge1"].value == pytest.approx(1 / 3)
    assert result["exact_match"].value == pytest.approx(1 / 3)
    assert all("empty_predictions" in metric.flags for metric in result.values())
    assert state.counts() == {"samples": 3, "empty_predictions": 2}


@pytest.mark.parametrize(
    ("prediction", "reference", "reason"),
    [
        ("a", "", "empty_reference"),
        ("a", ["x", " \t"], "empty_reference"),
        ("a", [], "invalid_text"),
        ("a", None, "invalid_text"),
        ("a", [None], "invalid_text"),
        ("a", b"bytes", "invalid_text"),
        (None, "a", "invalid_text"),
        (b"a", "a", "invalid_text"),
        (3, "a", "invalid_text"),
        (["a"], "a", "invalid_text"),
    ],
)
def test_bad_texts_are_refused_and_name_the_sample(prediction: Any, reference: Any, reason: str) -> None:
    state = create("generation")
    with pytest.raises(MetricInputError) as caught:
        state.update(sample_ids=["good", "坏"], predictions=["x", prediction], references=["x", reference])
    assert (caught.value.reason, caught.value.sample_id) == (reason, "坏")
    assert state.counts()["samples"] == 0


@pytest.mark.parametrize(
    "batch",
    [
        {"predictions": ["a"], "references": ["a", "b"]},
        {"predictions": ["a", "b"], "references": ["a"]},
        {"predictions": "ab", "references": ["a", "b"]},
        {"predictions": ["a", "b"], "references": "ab"},
        {"predictions": ["a", "b"], "references": ["a", "b"], "groups": ["g"]},
        {"predictions": None, "references": 7},
    ],
)
def test_mismatched_lengths_are_refused(batch: dict[str, Any]) -> None:
    with pytest.raises(MetricInputError) as caught:
        create("generation").update(sample_ids=["x", "y"], **batch)
    assert caught.value.reason in ("length_mismatch", "invalid_text")


@pytest.mark.parametrize(
    "text", ["a\ud800b", "\udfff", "שלום עולם", "e\u0301\u0323", "\u202eabc\u202c", "\x00\x01 a", "🙂‍👩"]
)
def test_strange_text_is_scored_and_identical_text_agrees(text: str) -> None:
    state = state_of([(text, [text])], language="mixed", rouge_tokenizer="char", metrics=["bleu", "rouge1", "chrf"])
    state.update(sample_ids=["t"], predictions=["plain words here"], references=[text])
    assert value(state, "rouge1") >= 0.5
    assert 0 < value(state, "chrf") <= 100
    assert type(state).from_bytes(state.to_bytes()).result() == state.result()


def test_megabyte_texts_are_scored_in_bounded_memory() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    generator = np.random.default_rng(0)
    left = " ".join(f"w{k}" for k in generator.integers(0, 500, 30_000))
    right = "x" * 1_000_000
    state = state_of([(left + right, [left]), (right, [right])], metrics=["bleu", "rougeL", "rougeLsum", "f1", "chrf"])
    assert value(state, "rougeL") > 0.9
    assert value(state, "f1") > 0.9
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 700_000, f"{grown} kB"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"language": "fr"}, "language"),
        ({"bleu_tokenizer": "moses"}, "bleu_tokenizer"),
        ({"bleu_smoothing": "method1"}, "bleu_smoothing"),
        ({"nltk_smoothing": "method5"}, "nltk_smoothing"),
        ({"rouge_stemmer": True, "language": "zh"}, "rouge_stemmer"),
        ({"metrics": ["bleurt"]}, "metrics"),
        ({"metrics": []}, "metrics"),
        ({"bootstrap_replicates": 1}, "bootstrap_replicates"),
        ({"lowercase": 1}, "lowercase"),
        ({"chrf_beta": math.nan}, "chrf_beta"),
    ],
)
def test_bad_settings_name_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(MetricSettingsError) as caught:
        create("generation", options)
    assert caught.value.field == field


def test_metrics_that_were_not_collected_are_an_error() -> None:
    with pytest.raises(MetricStateError) as caught:
        state_of([("a", ["a"])], metrics=["bleu"]).result(["chrf"])
    assert caught.value.reason == "not_collected"


def test_the_signature_records_what_changes_the_values() -> None:
    signature = create("generation", {"language": "zh"}).signature()
    assert "bleu_tokenizer:zh" in signature
    assert "rouge_tokenizer:char" in signature
    assert sacrebleu.__version__  # the reference whose tokens these are


@given(samples=samples_of, seed=st.integers(0, 10**6), grouped=st.booleans())
@settings(max_examples=12, deadline=None)
def test_any_way_of_arriving_gives_the_same_bits(
    assert_exact: Callable[..., None], samples: list[tuple[str, list[str]]], seed: int, grouped: bool
) -> None:
    batch = {
        "sample_ids": [f"s{k}" for k in range(len(samples))],
        "predictions": [prediction for prediction, _ in samples],
        "references": [references for _, references in samples],
        "groups": [f"g{k % 2}" for k in range(len(samples))] if grouped else None,
    }
    options = {"language": "mixed", "bootstrap_replicates": 5}
    assert_exact("generation", options, batch, trials=1, seed=seed)
