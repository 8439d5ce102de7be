"""How fast the metrics are against the libraries whose values they give, on one core.

    python benchmarks/metrics.py [--pairs 10000 100000] [--labels 10000000] [--rounds 3]

Ours is timed end to end, through `update` in batches and `result`; a reference is timed on the part of the same pairs
that takes it a few seconds, and both are compared as CPU seconds a pair. Each round runs ours and the reference in
turn, so that a slow moment of the machine meets both; the ratio is the median of the rounds. Every comparison also
checks that the values agree. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mindeval.service.metrics import MetricState, create
from mindeval.service.metrics.ngrams import native_scorer
from mindeval.service.metrics.rouge import TYPES

BATCH = 4096
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("RAYON", "OMP", "OPENBLAS", "MKL")}


def english(generator: np.random.Generator, pairs: int) -> tuple[list[str], list[str]]:
    """Pairs of about 83 words with the frequencies of natural text; the prediction changes a third of them."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    sizes = generator.integers(2, 11, 30_000)
    vocabulary = ["".join(generator.choice(letters, size, p=weights / weights.sum())) for size in sizes]
    marks = np.array([*[""] * 13, ",", ",", ".", "'s", "-based", " (so)", ".\n"])  # a line about every 20 words
    words = np.array([word + mark for word, mark in zip(vocabulary, generator.choice(marks, len(vocabulary)))])
    frequencies = 1 / np.arange(1, len(words) + 1)
    return _texts(generator, words, frequencies / frequencies.sum(), pairs, 83, " ")


def chinese(generator: np.random.Generator, pairs: int) -> tuple[list[str], list[str]]:
    """Pairs of about 83 characters."""
    # The 3,500 first ideographs and three full-width marks: comma, full stop, exclamation mark.
    characters = np.array([chr(k) for k in (*generator.permutation(range(0x4E00, 0x5BAC)), 0xFF0C, 0x3002, 0xFF01)])
    frequencies = 1 / np.arange(1, len(characters) + 1)
    return _texts(generator, characters, frequencies / frequencies.sum(), pairs, 83, "")


def _texts(
    generator: np.random.Generator, words: Any, frequencies: Any, pairs: int, length: int, gap: str
) -> tuple[list[str], list[str]]:
    pool = generator.choice(words, 1_000_000, p=frequencies)
    predictions, references = [], []
    for size in generator.integers(length - 30, length + 31, pairs):
        start = int(generator.integers(0, pool.size - size))
        text = pool[start : start + size]
        kept = generator.random(size) < 0.67
        references.append(gap.join(text))
        predictions.append(gap.join(np.where(kept, text, generator.choice(pool, size))))
    return predictions, references


def ours(settings: dict[str, Any], predictions: Sequence[str], references: Sequence[str]) -> MetricState:
    """All pairs through a state and to its results."""
    state = create("generation", settings)
    ids = [f"sample-{k}" for k in range(len(predictions))]
    for start in range(0, len(ids), BATCH):
        part = slice(start, start + BATCH)
        state.update(sample_ids=ids[part], predictions=predictions[part], references=references[part])
    state.result()
    return state


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of the process, and what the work returns."""
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def alternate(
    own: Callable[[], Any], other: Callable[[], Any], sizes: tuple[int, int], rounds: int
) -> tuple[float, float, Any, Any]:
    """Ratio of CPU time a pair, our pairs a second, and both results of the last round."""
    ratios, rates, mine, theirs = [], [], None, None
    for _ in range(rounds):
        own_time, mine = cpu_seconds(own)
        other_time, theirs = cpu_seconds(other)
        ratios.append((other_time / sizes[1]) / (own_time / sizes[0]))
        rates.append(sizes[0] / own_time)
    return statistics.median(ratios), statistics.median(rates), mine, theirs


def rouge_score(predictions: Sequence[str], references: Sequence[str]) -> list[Any]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(TYPES))
    return [scorer.score(reference, prediction) for prediction, reference in zip(predictions, references)]


def rouge_chinese(predictions: Sequence[str], references: Sequence[str]) -> Any:
    from rouge_chinese import Rouge

    return Rouge().get_scores([" ".join(text) for text in predictions], [" ".join(text) for text in references])


def sacrebleu_corpus(tokenizer: str, predictions: Sequence[str], references: Sequence[str]) -> Any:
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenizer)
    # Its cache of whole lines would answer every round after the first.
    for cached in (metric.tokenizer, getattr(metric.tokenizer, "_post_tokenizer", metric.tokenizer)):
        type(cached).__call__.cache_clear()
    return metric.corpus_score(list(predictions), [list(references)])


def nltk_corpus(predictions: Sequence[str], references: Sequence[str]) -> float:
    from nltk.translate.bleu_score import corpus_bleu

    return float(corpus_bleu([[text.split()] for text in references], [text.split() for text in predictions]))


class TextBenchmark:
    """The comparisons on one set of pairs."""

    def __init__(self, predictions: list[str], references: list[str], rounds: int) -> None:
        self.predictions, self.references, self.rounds = predictions, references, rounds
        self.size = len(predictions)

    def against(
        self,
        name: str,
        settings: dict[str, Any],
        reference: Callable[[Sequence[str], Sequence[str]], Any],
        part: int,
        unit: str,
        target: float,
        agrees: Callable[[MetricState, Any], bool],
    ) -> dict[str, Any]:
        """Time ours on all pairs and the reference on the first `part`, and check that both agree on those."""
        part = min(self.size, part)
        few = self.predictions[:part], self.references[:part]
        ratio, rate, _, expected = alternate(
            lambda: ours(settings, self.predictions, self.references),
            lambda: reference(*few),
            (self.size, part),
            self.rounds,
        )
        if not agrees(ours(settings, *few), expected):
            raise AssertionError(f"{name}: the values differ from the reference")
        return row(f"{name}_{self.size}", ratio, unit, target, rate)


def text_benchmarks(pairs: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    results = []
    generator = np.random.default_rng(0)
    rouge, bleu = list(TYPES), ["bleu"]
    for size in pairs:
        lines = english(generator, size)
        run = TextBenchmark(*lines, rounds).against
        results += [
            run("rouge_en_sentences", {"metrics": rouge}, rouge_score, 400, "x rouge-score", 80, same_rouge),
            run("bleu_13a", {"metrics": bleu}, partial(sacrebleu_corpus, "13a"), 2000, "x sacrebleu", 3, same_counts),
            run("bleu_presplit", {"metrics": ["bleu_nltk"]}, nltk_corpus, 2000, "x nltk", 5, same_nltk),
        ]
        # With one line a text, Lsum is L and costs nothing more.
        predictions, references = ([text.replace("\n", " ") for text in side] for side in lines)
        run = TextBenchmark(predictions, references, rounds).against
        results.append(run("rouge_en", {"metrics": rouge}, rouge_score, 400, "x rouge-score", 80, same_rouge))
        run = TextBenchmark(*chinese(generator, size), rounds).against
        zh, zh_bleu = {"language": "zh"}, partial(sacrebleu_corpus, "zh")
        results += [
            # Its definition is another one (sets of n-grams), so only the time is compared.
            run("rouge_zh", {"metrics": rouge, **zh}, rouge_chinese, 400, "x rouge-chinese", 80, lambda *_: True),
            run("bleu_zh", {"metrics": bleu, **zh}, zh_bleu, 2000, "x sacrebleu", 3, same_counts),
        ]
    return results


def same_rouge(state: MetricState, expected: list[Any]) -> bool:
    """Whether each pair's twelve values have the same bits."""
    rows = state.rows()  # type: ignore[attr-defined]
    order = [int(name.rpartition("-")[2]) for name in rows.ids]
    wanted = [[value for name in TYPES for value in expected[k][name]] for k in order]
    return bool(rows["rouge"].tolist() == wanted)


def same_counts(state: MetricState, expected: Any) -> bool:
    """Whether the ten integers of BLEU are equal."""
    counts = state.rows()["bleu"].sum(axis=0).tolist()  # type: ignore[attr-defined]
    return bool(counts == [expected.sys_len, expected.ref_len, *expected.counts, *expected.totals])


def same_nltk(state: MetricState, expected: float) -> bool:
    """Whether BLEU agrees to rounding."""
    return abs(state.result()["bleu_nltk"].value - expected) < 1e-12


def label_benchmarks(size: int, rounds: int) -> list[dict[str, Any]]:
    from sklearn.metrics import precision_recall_fscore_support

    generator = np.random.default_rng(1)
    true = generator.integers(0, 20, size)
    predicted = np.where(generator.random(size) < 0.7, true, generator.integers(0, 20, size))
    names = ["precision_macro", "recall_macro", "f1_macro"]

    def own(count: int = size) -> MetricState:
        state = create("classification_bounded", {"labels": list(range(20))})
        for start in range(0, count, 1_000_000):
            stop = min(start + 1_000_000, count)
            state.update(ordinals=range(start, stop), labels=true[start:stop], predictions=predicted[start:stop])
        state.result(names)
        return state

    ratio, rate, state, expected = alternate(
        own,
        lambda: precision_recall_fscore_support(true, predicted, average="macro"),
        (size, size),
        rounds,
    )
    got = [metric.value for metric in state.result(names).values()]
    assert got == list(expected[:3]), "precision, recall or F1 differ from scikit-learn"
    growth = len(own().to_bytes()) / len(own(size // 10).to_bytes())
    return [
        row(f"precision_recall_f1_{size}", ratio, "x scikit-learn", 15, rate),
        {
            "name": "state_size_at_10_times_the_samples",
            "value": round(growth, 3),
            "unit": "x",
            "target": 1.1,
            "met": growth <= 1.1,
        },
    ]


def row(name: str, ratio: float, unit: str, target: float, rate: float) -> dict[str, Any]:
    print(f"{name:32s} {ratio:8.1f} {unit:18s} target {target:5.1f}   {rate:12,.0f} a CPU second", flush=True)
    return {
        "name": name,
        "value": round(ratio, 2),
        "unit": unit,
        "target": target,
        "met": ratio >= target,
        "ours_per_cpu_second": round(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--labels", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Thread pools read these when they are loaded, so they must be there before the interpreter starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    warnings.simplefilter("ignore")
    if native_scorer(TYPES) is None:
        print("rouge-score-rs is not installed: text metrics run without compiled code", flush=True)
    results = [*text_benchmarks(options.pairs, options.rounds), *label_benchmarks(options.labels, options.rounds)]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one used"
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    print(json.dumps({"benchmark": "metrics", "date": date, "machine": machine, "results": results}))


if __name__ == "__main__":
    main()
