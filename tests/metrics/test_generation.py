"""Generation against sacreBLEU, nltk, rouge-score, the SQuAD script and published values; Chinese; bad input."""

# ruff: noqa: RUF001  (full-width marks are the subject here)

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate import bleu_score as nltk_bleu
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF, TER

from mindeval.service.metrics import MetricInputError, MetricSettingsError, MetricStateError, create, ngrams, rouge
from mindeval.service.metrics.tokenizers import RougeCoder, bleu_coder

# Words, white space and marks that meet in real text, and what breaks tokenizers.
pieces = st.sampled_from(
    (
        *"abcde",
        *[
            "the",
            "cat",
            "1.5",
            "3,000",
            "U.S.",
            "it's",
            "-",
            "—",
            "(hi)",
            "...",
            ".",
            ",",
            "5.",
            "&quot;",
            "&amp;",
            "<skipped>",
            "中文",
            "。",
            "，",
            "Ａ",
            "é",
            "ß",
            "İ",
            "naïve",
            "שלום",
            "🙂",
            "$9",
        ],
        "e\u0301",
        "\u2009",
        "a-\nb",
        "\n",
    )
)
gaps = st.sampled_from(["", " ", "  ", "\t", "\u3000", "\n"])
texts = st.lists(st.tuples(pieces, gaps), max_size=14).map(lambda parts: "".join(a + b for a, b in parts))
references_of = st.lists(texts.filter(lambda text: bool(text.strip())), min_size=1, max_size=3)
samples_of = st.lists(st.tuples(texts, references_of), min_size=1, max_size=6)


def state_of(samples: list[tuple[str, list[str]]], **options: Any) -> Any:
    state = create("generation", options)
    state.update(
        sample_ids=[f"s{k}" for k in range(len(samples))],
        predictions=[prediction for prediction, _ in samples],
        references=[references for _, references in samples],
    )
    return state


def value(state: Any, name: str) -> float:
    return float(state.result([name])[name].value)


def streams(samples: list[tuple[str, list[str]]]) -> list[list[str | None]]:
    """References the way sacreBLEU wants them: one list a reference number, padded with None."""
    most = max(len(references) for _, references in samples)
    return [[refs[k] if k < len(refs) else None for _, refs in samples] for k in range(most)]


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


def rouge_reference(samples: list[tuple[str, list[str]]], stemmer: bool) -> dict[str, list[Any]]:
    scorer = RougeScorer(list(rouge.TYPES), use_stemmer=stemmer)
    scores = [scorer.score_multi(references, prediction) for prediction, references in samples]
    return {name: [score[name] for score in scores] for name in rouge.TYPES}


@given(samples_of, st.booleans())
@settings(max_examples=100, deadline=None)
def test_rouge_is_bit_equal_to_rouge_score(samples: list[tuple[str, list[str]]], stemmer: bool) -> None:
    wanted = rouge_reference(samples, stemmer)
    got = rouge.rouge_scores(None, stemmer, [p for p, _ in samples], [r for _, r in samples])
    for number, name in enumerate(rouge.TYPES):
        assert got[:, 3 * number + 2].tolist() == [score.fmeasure for score in wanted[name]]
        single = [k for k, (_, references) in enumerate(samples) if len(references) == 1]
        assert got[single, 3 * number].tolist() == [wanted[name][k].precision for k in single]
        assert got[single, 3 * number + 1].tolist() == [wanted[name][k].recall for k in single]
    state = state_of(samples, rouge_stemmer=stemmer, metrics=["rougeL", "rougeL_recall"])
    assert value(state, "rougeL") == math.fsum(s.fmeasure for s in wanted["rougeL"]) / len(samples)


@given(samples_of, st.booleans())
@settings(max_examples=60, deadline=None)
def test_rouge_without_compiled_code_is_the_same(samples: list[tuple[str, list[str]]], stemmer: bool) -> None:
    for prediction, references in samples:
        for reference in references:
            slow = rouge.pair_scores(reference, prediction, stemmer)
            fast = rouge.rouge_scores(None, stemmer, [prediction], [[reference]])[0].tolist()
            assert slow == fast


@pytest.fixture
def without_compiled_scorer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "rouge_score_rs", None)
    ngrams.native_scorer.cache_clear()
    yield
    ngrams.native_scorer.cache_clear()


def test_everything_works_without_the_compiled_scorer(
    without_compiled_scorer: None, data: Path, request: pytest.FixtureRequest
) -> None:
    samples = wmt17(data)[:40]
    plain = state_of(samples).result()
    ngrams.native_scorer.cache_clear()
    request.getfixturevalue("monkeypatch").undo()
    assert state_of(samples).result() == plain


def test_the_best_reference_does_not_depend_on_the_order() -> None:
    # Both references have F = 1/2 of the prediction, with precision and recall exchanged.
    references = ["a b c d e f", "a"]
    scores = {tuple(r): state_of([("a b", r)]).result() for r in (references, references[::-1])}
    assert len({s["rouge1_recall"].value for s in scores.values()}) == 1


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


def wmt17(data: Path) -> list[tuple[str, list[str]]]:
    folder = data / "mt_wmt17_ende"
    hypotheses = (folder / "hyp.C-3MA.4959.txt").read_text(encoding="utf-8").splitlines()
    references = (folder / "ref.txt").read_text(encoding="utf-8").splitlines()
    assert len(hypotheses) == len(references) == 3004
    return [(hypothesis, [reference]) for hypothesis, reference in zip(hypotheses, references)]


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


def nmt(data: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Tokens of tensorflow/nmt's test data, with the empty tokens that its own script keeps."""
    folder = data / "mt_nmt_deen"
    read = [
        (folder / name).read_text(encoding="utf-8").splitlines() for name in ("deen_output.txt", "deen_ref_bpe.txt")
    ]
    left = [line.strip().replace("@@ ", "").split(" ") for line in read[0]]
    right = [line.strip().replace("@@ ", "").split(" ") for line in read[1]]
    assert len(left) == len(right) == 3000
    return left, right


def test_published_bleu_and_rouge_of_nmt(data: Path) -> None:
    left, right = nmt(data)
    joined = [(" ".join(t or "∅" for t in a), [" ".join(t or "∅" for t in b)]) for a, b in zip(left, right)]
    state = state_of(joined, metrics=["bleu"], bleu_tokenizer="none", bleu_smoothing="none", bootstrap_replicates=2)
    assert value(state, "bleu") == pytest.approx(22.585508457, abs=1e-8)
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


def test_published_values_of_rouge_1_5_5(data: Path) -> None:
    folder = data / "rouge_google"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    targets = (folder / "target.txt").read_text(encoding="utf-8").splitlines()
    predictions = (folder / "prediction.txt").read_text(encoding="utf-8").splitlines()
    for stem, types in expected["per_line"].items():
        for name, lines in types.items():
            for target, prediction, want in zip(targets, predictions, lines):
                state = state_of([(prediction, [target])], rouge_stemmer=stem == "stem")
                got = [value(state, f"{name}_recall"), value(state, f"{name}_precision"), value(state, name)]
                assert got == pytest.approx(want, abs=expected["tol"])
    multi = state_of(
        [
            (
                (folder / "prediction_multi.0.txt").read_text(encoding="utf-8"),
                [(folder / "target_multi.0.txt").read_text(encoding="utf-8")],
            )
        ],
        rouge_stemmer=True,
    )
    got = [value(multi, "rougeLsum_recall"), value(multi, "rougeLsum_precision"), value(multi, "rougeLsum")]
    assert got == pytest.approx(expected["multi0_stem"]["rougeLsum"], abs=expected["tol"])


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


def test_published_squad_cards_and_quoref(data: Path) -> None:
    for case in json.loads((data / "qa_hf_literals" / "cases.json").read_text(encoding="utf-8")):
        if case["metric"] == "squad_v1":
            samples = [(case["predictions"][r["id"]], r["answers"]["text"]) for r in case["references"]]
            state = state_of(samples, metrics=["exact_match", "f1"])
            for name, want in case["expected"].items():
                assert 100 * value(state, name) == pytest.approx(want, abs=1e-9)
    folder = data / "qa_quoref_sample"
    predictions = json.loads((folder / "quoref_sample_predictions.json").read_text(encoding="utf-8"))
    questions = [
        question
        for article in json.loads((folder / "quoref_sample.json").read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    # A question without a prediction is a blank one here: it counts, and scores 0.
    samples = [(" ".join(predictions.get(q["id"], [])), [a["text"] for a in q["answers"]]) for q in questions]
    state = state_of(samples, metrics=["exact_match"])
    assert value(state, "exact_match") == 0.5
    assert state.result()["exact_match"].flags == ("empty_predictions",)


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


@given(samples_of)
@settings(max_examples=40, deadline=None)
def test_character_rouge_equals_rouge_score_with_a_character_tokenizer(samples: list[tuple[str, list[str]]]) -> None:
    class Characters:
        def tokenize(self, text: str) -> list[str]:
            return list("".join(text.lower().split()))

    scorer = RougeScorer(list(rouge.TYPES), tokenizer=Characters())
    for prediction, references in samples:
        if "İ" in prediction + references[0]:
            continue  # lower-casing before or after splitting lines is the same, except for nothing we score
        want = scorer.score(references[0], prediction)
        got = rouge.rouge_scores(RougeCoder("char"), False, [prediction], [references[:1]])[0].tolist()
        assert got == [part for name in rouge.TYPES for part in want[name]]


def test_mixed_tokens_are_characters_of_chinese_and_words_of_the_rest() -> None:
    state = state_of([("用Python写代码", ["用 python 写程序"])], language="mixed")
    # 用, python, 写 of 5 tokens against 5.
    assert value(state, "rouge1") == pytest.approx(0.6)
    assert value(state, "f1") == pytest.approx(0.6)


def test_jieba_segments_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba's own imports are deprecated
        pytest.importorskip("jieba")
        state = state_of([("我来到北京清华大学", ["我来到北京大学"])], language="zh", rouge_tokenizer="jieba")
    assert value(state, "rouge1_recall") == pytest.approx(2 / 3)


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
