"""BLEU, chrF and TER against sacreBLEU, nltk and published values."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate import bleu_score as nltk_bleu
from sacrebleu.metrics import BLEU, CHRF, TER
from tests.metrics.generation_samples import nmt, samples_of, state_of, streams, value, wmt17

from mindeval.service.metrics import MetricInputError, rouge
from mindeval.service.metrics.tokenizers import bleu_coder


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "char", "intl", "none"])
@given(samples=samples_of, smoothing=st.sampled_from(["exp", "floor", "add-k", "none"]), flags=st.booleans())
@settings(max_examples=40, deadline=None)
def test_bleu_counts_and_value_equal_sacrebleu(
    tokenizer: str, samples: list[tuple[str, list[str]]], smoothing: str, flags: bool
) -> None:
    metric = BLEU(tokenize=tokenizer, smooth_method=smoothing, effective_order=flags, lowercase=flags, force=True)
    expected = metric.corpus_score([prediction for prediction, _ in samples], streams(samples))
    state = state_of(
        samples,
        metrics=["bleu"],
        bleu_tokenizer=tokenizer,
        bleu_smoothing=smoothing,
        bleu_effective_order=flags,
        lowercase=flags,
        bootstrap_replicates=2,
    )
    counts = state._table.rows()["bleu"].sum(axis=0)
    assert [counts[0], counts[1]] == [expected.sys_len, expected.ref_len]
    if smoothing != "add-k":  # sacreBLEU adds its k to the counts that it reports
        assert counts[2:].tolist() == [*expected.counts, *expected.totals]
    assert value(state, "bleu") == pytest.approx(expected.score, abs=1e-9)


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "intl"])
@pytest.mark.parametrize(
    "text", ["\n ,5.\t", " —1.5 x", ",5.", " ,", "5. ", " 5.", "3,000 ", "a.\u3000b.", "\t-5-", ""]
)
def test_marks_at_the_edges_of_a_text_are_tokenized_as_sacrebleu_does(tokenizer: str, text: str) -> None:
    wanted = BLEU(tokenize=tokenizer).tokenizer(text.rstrip()).split()
    # Codes are numbered as tokens are first met, so equal lines of two new coders are equal tokens.
    assert bleu_coder(tokenizer).line(text) == bleu_coder("none").line(" ".join(wanted))


@pytest.mark.parametrize("tokenizer", ["zh", "13a", "char", "intl"])
def test_every_character_is_tokenized_as_sacrebleu_does(tokenizer: str) -> None:
    reference = BLEU(tokenize=tokenizer).tokenizer
    coder = bleu_coder(tokenizer)
    points = [*range(0x20, 0xD800, 1), *range(0xE000, 0x10000), *range(0x1F300, 0x1F700), *range(0x20000, 0x20100)]
    for start in range(0, len(points), 64):
        # Each in three places: at an edge, between letters, after a digit.
        chars = [chr(point) for point in points[start : start + 64]]
        for text in ("".join(f"a{c}b 5{c} " for c in chars), chars[0] + "x", "x" + chars[-1]):
            wanted = reference(text.rstrip()).split()
            assert len(coder.line(text).split()) == len(wanted), (start, text)


@given(samples_of, st.sampled_from(["method0", "method1", "method2", "method3", "method4"]))
@settings(max_examples=60, deadline=None)
def test_bleu_nltk_equals_nltk(samples: list[tuple[str, list[str]]], smoothing: str) -> None:
    predictions = [prediction.split() for prediction, _ in samples]
    references = [[text.split() for text in texts] for _, texts in samples]
    function = getattr(nltk_bleu.SmoothingFunction(), smoothing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = nltk_bleu.corpus_bleu(references, predictions, smoothing_function=function)
    state = state_of(samples, metrics=["bleu_nltk"], nltk_smoothing=smoothing, bootstrap_replicates=2)
    assert value(state, "bleu_nltk") == pytest.approx(expected, rel=1e-12, abs=1e-300)


def test_identical_short_text_shows_what_each_smoothing_does() -> None:
    samples = [("a b c", ["a b c"])]
    values = {m: value(state_of(samples, nltk_smoothing=m), "bleu_nltk") for m in ("method0", "method1", "method2")}
    assert values["method0"] < 1e-75
    assert values["method1"] == pytest.approx(0.56, abs=0.005)
    assert values["method2"] == pytest.approx(0.84, abs=0.005)
    assert value(state_of(samples), "bleu") == 0.0
    assert value(state_of(samples, bleu_smoothing="add-k"), "bleu") == pytest.approx(100)
    assert value(state_of(samples, bleu_effective_order=True), "bleu") == pytest.approx(100)


@given(samples_of, st.sampled_from([0, 2]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_chrf_equals_sacrebleu(samples: list[tuple[str, list[str]]], word_order: int, smooth: bool) -> None:
    metric = CHRF(word_order=word_order, eps_smoothing=smooth, lowercase=smooth)
    expected = metric.corpus_score([prediction for prediction, _ in samples], streams(samples)).score
    state = state_of(samples, metrics=["chrf"], chrf_word_order=word_order, chrf_eps_smoothing=smooth, lowercase=smooth)
    assert value(state, "chrf") == pytest.approx(expected, abs=1e-9)


@given(samples_of, st.booleans())
@settings(max_examples=40, deadline=None)
def test_ter_equals_sacrebleu(samples: list[tuple[str, list[str]]], on: bool) -> None:
    expected = TER(normalized=on, asian_support=on, case_sensitive=on).corpus_score(
        [prediction for prediction, _ in samples], streams(samples)
    )
    state = state_of(
        samples,
        metrics=["ter"],
        ter_normalized=on,
        ter_asian_support=on,
        ter_case_sensitive=on,
        bootstrap_replicates=2,
    )
    assert value(state, "ter") == pytest.approx(expected.score, abs=1e-9)


def test_published_values_of_sacrebleu(data: Path) -> None:
    cases = json.loads((data / "mt_sacrebleu_literals" / "cases.json").read_text(encoding="utf-8"))
    assert len(cases) == 21
    for case in cases:
        samples = [
            (hypothesis, [stream[k] for stream in case["ref_streams"] if stream[k]])
            for k, hypothesis in enumerate(case["hyps"])
        ]
        chosen = dict(case["settings"])
        names = {
            "tokenize": "bleu_tokenizer",
            "smooth_method": "bleu_smoothing",
            "smooth_value": "bleu_smoothing_value",
            "use_effective_order": "bleu_effective_order",
            "word_order": "chrf_word_order",
            "beta": "chrf_beta",
            "eps_smoothing": "chrf_eps_smoothing",
            "lowercase": "lowercase",
        }
        assert chosen.pop("char_order", 6) == 6
        metric = "chrf" if case["metric"] == "corpus_chrf" else "bleu"
        state = state_of(samples, metrics=[metric], **{names[name]: chosen[name] for name in chosen})
        assert value(state, metric) == pytest.approx(case["expected"], abs=case["tol"]), case


def test_published_values_of_wmt17(data: Path) -> None:
    samples = wmt17(data)
    state = state_of(samples, metrics=["bleu", "chrf", "bleu_nltk"], nltk_tokenizer="13a", bootstrap_replicates=2)
    assert value(state, "bleu") == pytest.approx(22.6746, abs=5e-5)
    assert value(state, "chrf") == pytest.approx(51.9533, abs=5e-5)
    assert value(state, "bleu_nltk") == pytest.approx(0.226736, abs=5e-7)
    plus = state_of(samples, metrics=["chrf", "bleu"], chrf_word_order=2, bleu_tokenizer="none", bootstrap_replicates=2)
    assert value(plus, "chrf") == pytest.approx(49.1698, abs=5e-5)
    assert value(plus, "bleu") == pytest.approx(17.7248, abs=5e-5)
    # The published chrF++ of 49.1683 is the one with smoothing; without it the fourth digit differs.
    smooth = state_of(samples, metrics=["chrf"], chrf_word_order=2, chrf_eps_smoothing=True, bootstrap_replicates=2)
    assert value(smooth, "chrf") == pytest.approx(49.1683, abs=5e-5)


def test_published_bleu_and_rouge_of_nmt(data: Path) -> None:
    left, right = nmt(data)
    joined = [(" ".join(t or "∅" for t in a), [" ".join(t or "∅" for t in b)]) for a, b in zip(left, right)]
    state = state_of(
        joined, metrics=["bleu", "bleu_nltk"], bleu_tokenizer="none", bleu_smoothing="none", bootstrap_replicates=2
    )
    assert value(state, "bleu") == pytest.approx(22.585508457, abs=1e-8)
    assert value(state, "bleu_nltk") == pytest.approx(0.225743, abs=5e-7)
    dropped = [(" ".join(a), [" ".join(b)]) for a, b in zip(left, right)]
    other = state_of(
        dropped, metrics=["bleu", "bleu_nltk"], bleu_tokenizer="none", bleu_smoothing="none", bootstrap_replicates=2
    )
    assert value(other, "bleu") == pytest.approx(22.5847, abs=5e-5)
    mixed = state_of(dropped, metrics=["bleu"], bootstrap_replicates=2)
    assert value(mixed, "bleu") == pytest.approx(22.4267, abs=5e-5)
    # Its ROUGE-L is F with beta = precision / recall, over the raw tokens; codes keep those apart.
    codes: dict[str, str] = {}
    coded = [
        [" ".join(codes.setdefault(token, f"w{len(codes)}") for token in line) for line in side]
        for side in (left, right)
    ]
    scores = rouge.rouge_scores(None, False, coded[0], [[line] for line in coded[1]])
    precision, recall, plain = (scores[:, 6 + k] for k in range(3))
    square = (precision / (recall + 1e-12)) ** 2
    f_beta = (1 + square) * recall * precision / (recall + square * precision + 1e-12)
    assert 100 * f_beta.mean() == pytest.approx(50.84297826, abs=1e-6)
    assert 100 * plain.mean() == pytest.approx(51.5398, abs=5e-5)


def test_texts_too_long_for_ter_are_refused_by_id() -> None:
    with pytest.raises(MetricInputError) as caught:
        state_of([("a " * 6000, ["a"])], metrics=["ter"])
    assert (caught.value.reason, caught.value.sample_id) == ("text_too_long", "s0")


def test_bootstrap_error_of_bleu_is_the_spread_of_bleu(data: Path) -> None:
    samples = wmt17(data)
    generator = np.random.default_rng(3)
    values = []
    for _ in range(60):
        chosen = generator.choice(len(samples), 150, replace=False)
        values.append(value(state_of([samples[k] for k in chosen], metrics=["bleu"], bootstrap_replicates=2), "bleu"))
    reported = state_of([samples[k] for k in chosen], metrics=["bleu"]).result()["bleu"]
    assert reported.standard_error == pytest.approx(np.std(values, ddof=1), rel=0.35)
    assert reported.standard_error_method == "bootstrap_by_sample"
