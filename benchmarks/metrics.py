"""How fast the metrics are against the libraries whose values they give, on one core.

    python benchmarks/metrics.py [--pairs 10000 100000] [--labels 10000000] [--memory-samples 1000000] [--rounds 3]

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
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mindeval.service.metrics import MetricState, create
from mindeval.service.metrics.catalog import FAMILY_METRICS
from mindeval.service.metrics.ngrams import native_scorer
from mindeval.service.metrics.registry import state_type
from mindeval.service.metrics.rouge import TYPES

BATCH = 4096
_ALLOCATOR = 0.02  # integers of exact sums grow by a few bytes, and caches of the interpreter fill
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("RAYON", "OMP", "OPENBLAS", "MKL")}


def english(generator: np.random.Generator, pairs: int) -> tuple[list[str], list[str]]:
    """Pairs of about 83 words with the frequencies of natural text; the prediction changes a third of them."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    sizes = generator.integers(2, 11, 30_000)
    vocabulary = ["".join(generator.choice(letters, size, p=weights / weights.sum())) for size in sizes]
    marks = np.array([*[""] * 13, ",", ",", ".", "'s", "-based", " (so)", "."])
    words = np.array([word + mark for word, mark in zip(vocabulary, generator.choice(marks, len(vocabulary)))])
    frequencies = 1 / np.arange(1, len(words) + 1)
    texts = _texts(generator, words, frequencies / frequencies.sum(), pairs, 83, " ")
    return _with_lines(generator, texts[0]), _with_lines(generator, texts[1])


def _with_lines(generator: np.random.Generator, texts: list[str], words: int = 20) -> list[str]:
    """A line end in place of a space after 10 to 30 words, as many as a sentence has."""
    found = []
    for text in texts:
        pieces = text.split(" ")
        places = np.cumsum(generator.integers(words // 2, words * 3 // 2 + 1, len(pieces) // words + 1))
        edges = [0, *(place for place in places.tolist() if place < len(pieces)), len(pieces)]
        found.append("\n".join(" ".join(pieces[a:b]) for a, b in zip(edges, edges[1:])))
    return found


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
    return [row(f"precision_recall_f1_{size}", ratio, "x scikit-learn", 15, rate)]


def memory_benchmarks(size: int) -> list[dict[str, Any]]:
    """Memory of every family that is not declared exact over samples, at a tenth of the samples and at all of them."""
    bounded = [name for name in FAMILY_METRICS if not state_type(name).exact_over_samples]
    assert bounded == ["classification_bounded"], "a bounded family without a benchmark"
    held = [_held_bytes(count) for count in (size // 10, size)]
    growth = held[1] / held[0]
    print(f"classification_bounded holds {held[0]:,} bytes after {size // 10:,} samples, {held[1]:,} after {size:,}")
    name = f"memory_of_classification_bounded_{size}_against_a_tenth"
    return [{"name": name, "value": round(growth, 4), "unit": "x", "target": 1.0, "met": growth <= 1.0 + _ALLOCATOR}]


def _held_bytes(samples: int) -> int:
    """What Python and numpy hold for a state after so many samples, scores included."""
    batch = 10_000
    generator = np.random.default_rng(2)
    labels, scores = generator.integers(0, 10, batch), generator.dirichlet(np.ones(10), batch)
    tracemalloc.start()
    state = create("classification_bounded", {"labels": list(range(10))})
    for start in range(0, samples, batch):
        state.update(ordinals=range(start, start + batch), labels=labels, scores=scores)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert state.result(["roc_auc"])["roc_auc"].count == samples
    return held


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
    parser.add_argument("--memory-samples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # Thread pools read these when they are loaded, so they must be there before the interpreter starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    warnings.simplefilter("ignore")
    if native_scorer(TYPES) is None:
        print("rouge-score-rs is not installed: text metrics run without compiled code", flush=True)
    results = [
        *text_benchmarks(options.pairs, options.rounds),
        *label_benchmarks(options.labels, options.rounds),
        *memory_benchmarks(options.memory_samples),
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one used"
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    print(json.dumps({"benchmark": "metrics", "date": date, "machine": machine, "results": results}))


if __name__ == "__main__":
    main()
