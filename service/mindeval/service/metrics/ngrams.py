"""Clipped n-gram counts of coded lines (see tokenizers.py): the integers behind BLEU and chrF."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mindeval.service.metrics.exact import IntArray

_CHUNK = 256  # few enough that their scores stay in the cache until they are copied


def line_length(line: str) -> int:
    """The number of codes in a line."""
    return line.count(" ") + 1 if line else 0


def matched_ngrams(candidates: Sequence[str], lengths: IntArray, references: Sequence[str], order: int) -> IntArray:
    """For each pair of lines and n = 1..order, the n-grams of the candidate that the reference covers, clipped.

    Args:
        candidates: n coded lines.
        lengths: Their numbers of codes, shape (n,).
        references: n coded lines of the same coder.
        order: The largest n, at most 9.

    Returns:
        Shape (n, order), int64.
    """
    scorer = native_scorer(tuple(f"rouge{n}" for n in range(1, order + 1)))
    if scorer is None:
        return np.array([_counted(a, [b], order) for a, b in zip(candidates, references)], dtype=np.int64).reshape(
            -1, order
        )
    parts = [np.empty((0, order), dtype=np.int64)]
    for start in range(0, len(candidates), _CHUNK):
        chosen, given = candidates[start : start + _CHUNK], references[start : start + _CHUNK]
        scores = scorer.score_batch(list(given), list(chosen))
        precisions = flat_scores(scores, 3 * order)[:, ::3]
        totals = lengths[start : start + _CHUNK, None] - np.arange(order)
        # The scorer gives hits / max(total, 1); rounding recovers the integer exactly below 2**52.
        parts.append(np.rint(precisions * np.maximum(totals, 1)).astype(np.int64))
    return np.concatenate(parts)


def matched_ngrams_any(candidate: str, references: Sequence[str], order: int) -> list[int]:
    """As `matched_ngrams` for one candidate, where an n-gram is clipped at its largest count in any reference."""
    return _counted(candidate, references, order)


@lru_cache(maxsize=16)
def native_scorer(types: tuple[str, ...], stemmer: bool = False) -> Any:
    """The compiled ROUGE scorer for these types, or None when its package is not installed."""
    try:
        package = importlib.import_module("rouge_score_rs")
    except ImportError:
        return None
    return package.RougeScorer(list(types), use_stemmer=stemmer)


def flat_scores(scores: Sequence[dict[str, tuple[float, float, float]]], width: int) -> Any:
    """Scores of a batch as a float64 array of shape (n, width): precision, recall, F of each type in turn."""
    chain = itertools.chain.from_iterable
    flat = np.fromiter(chain(chain(map(dict.values, scores))), np.float64, len(scores) * width)
    return flat.reshape(-1, width)


def _counted(candidate: str, references: Sequence[str], order: int) -> list[int]:
    mine = candidate.split()
    others = [reference.split() for reference in references]
    hits = []
    for n in range(1, order + 1):
        limits: Counter[tuple[str, ...]] = Counter()
        for other in others:
            limits |= Counter(_ngrams(other, n))
        counts = Counter(_ngrams(mine, n))
        hits.append(sum(min(count, limits[gram]) for gram, count in counts.items()))
    return hits


def _ngrams(tokens: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[k:] for k in range(n)))
