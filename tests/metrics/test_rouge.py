"""ROUGE against rouge-score, bit by bit, with and without the compiled scorer, in two languages."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from tests.metrics.generation_samples import samples_of, state_of, value, wmt17

from mindeval.service.metrics import ngrams, rouge
from mindeval.service.metrics.tokenizers import RougeCoder


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


def test_jieba_segments_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba's own imports are deprecated
        pytest.importorskip("jieba")
        state = state_of([("我来到北京清华大学", ["我来到北京大学"])], language="zh", rouge_tokenizer="jieba")
    assert value(state, "rouge1_recall") == pytest.approx(2 / 3)
