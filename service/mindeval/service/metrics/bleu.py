"""Corpus BLEU from integer counts, as sacreBLEU and as nltk's corpus_bleu compute it.

Per sample there are ten integers: candidate length, closest reference length, and for n = 1..4 the matched and the
possible n-grams. Everything else is a function of their sums (Papineni et al. 2002).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from mindeval.service.metrics.exact import FloatArray, IntArray
from mindeval.service.metrics.ngrams import line_length, matched_ngrams, matched_ngrams_any
from mindeval.service.metrics.tokenizers import Coder

ORDER = 4
WIDTH = 2 + 2 * ORDER
SMOOTHING = ("exp", "floor", "add-k", "none")
NLTK_SMOOTHING = ("method0", "method1", "method2", "method3", "method4")
SMOOTHING_DEFAULTS = {"floor": 0.1, "add-k": 1.0}


def bleu_counts(coder: Coder, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> IntArray:
    """The ten integers of each sample, shape (n, 10).

    Args:
        coder: The tokenizer.
        predictions: n texts.
        references: n non-empty lists of texts.
    """
    coder.trim()
    candidates = [coder.line(text) for text in predictions]
    coded = [[coder.line(text) for text in texts] for texts in references]
    counts = np.zeros((len(candidates), WIDTH), dtype=np.int64)
    counts[:, 0] = [line_length(line) for line in candidates]
    counts[:, 1] = [_closest(own, lines) for own, lines in zip(counts[:, 0].tolist(), coded)]
    counts[:, 2 : 2 + ORDER] = matched_ngrams(candidates, counts[:, 0], [lines[0] for lines in coded], ORDER)
    for k, lines in enumerate(coded):
        if len(lines) > 1:
            counts[k, 2 : 2 + ORDER] = matched_ngrams_any(candidates[k], lines, ORDER)
    counts[:, 2 + ORDER :] = np.maximum(counts[:, :1] - np.arange(ORDER), 0)
    return counts


def sacre_bleu(totals: FloatArray, smoothing: str, smoothing_value: float | None, effective_order: bool) -> float:
    """BLEU on a scale of 100 from summed counts of shape (10,).

    Args:
        totals: Sums of the ten integers.
        smoothing: One of `SMOOTHING`, which are those of Chen and Cherry (2014) under sacreBLEU's names.
        smoothing_value: The parameter of `floor` and `add-k`; None for the default.
        effective_order: Whether orders without any n-gram are left out of the mean.
    """
    length, reference = totals[0], totals[1]
    matched, possible = totals[2 : 2 + ORDER].tolist(), totals[2 + ORDER :].tolist()
    if not any(matched):
        return 0.0
    extra = SMOOTHING_DEFAULTS.get(smoothing, 0.0) if smoothing_value is None else smoothing_value
    precisions, order, halves = [0.0] * ORDER, ORDER, 1.0
    for n in range(ORDER):
        if smoothing == "add-k" and n:
            matched[n] += extra
            possible[n] += extra
        if not possible[n]:
            break
        if effective_order:
            order = n + 1
        if matched[n]:
            precisions[n] = 100.0 * matched[n] / possible[n]
        elif smoothing == "exp":
            halves *= 2
            precisions[n] = 100.0 / (halves * possible[n])
        elif smoothing == "floor":
            precisions[n] = 100.0 * extra / possible[n]
    # sacreBLEU takes -9999999999 for log 0, which the exponential turns into 0.
    logs = sum(math.log(p) if p else -9999999999.0 for p in precisions[:order])
    return _brevity(length, reference) * math.exp(logs / order)


def nltk_bleu(totals: FloatArray, smoothing: str) -> float:
    """BLEU-4 on a scale of 1, as nltk's corpus_bleu with uniform weights.

    Args:
        totals: Sums of the ten integers, the possible n-grams of each sample being at least 1 (as nltk counts them).
        smoothing: One of `NLTK_SMOOTHING`; methods 5 to 7 look at the last text only and are not sums, so they are
            not offered.
    """
    length, reference = totals[0], totals[1]
    matched, possible = totals[2 : 2 + ORDER].tolist(), totals[2 + ORDER :].tolist()
    if not matched[0]:
        return 0.0
    precisions, zeros = [], 0
    for n in range(ORDER):
        if smoothing == "method2" and n:
            precisions.append((matched[n] + 1) / (possible[n] + 1))
        elif matched[n]:
            precisions.append(matched[n] / possible[n])
        elif smoothing in ("method0", "method2"):
            precisions.append(sys.float_info.min)
        elif smoothing == "method1":
            precisions.append(0.1 / possible[n])
        else:
            zeros += 1
            if smoothing == "method3":
                precisions.append(1 / (2**zeros * possible[n]))
            else:
                shrink = math.log(length) / (2**zeros * 5) if length > 1 else 0.0
                precisions.append(shrink / possible[n])
    return _brevity(length, reference) * math.exp(math.fsum(0.25 * math.log(p) for p in precisions if p > 0))


def at_least_one(counts: IntArray) -> IntArray:
    """Counts with the possible n-grams of each sample raised to at least 1, as nltk counts them."""
    raised = counts.copy()
    raised[:, 2 + ORDER :] = np.maximum(raised[:, 2 + ORDER :], 1)
    return raised


def _closest(length: int, lines: Sequence[str]) -> int:
    if len(lines) == 1:
        return line_length(lines[0])
    return min((abs(length - other), other) for other in map(line_length, lines))[1]


def _brevity(length: float, reference: float) -> float:
    if length >= reference:
        return 1.0
    return math.exp(1 - reference / length) if length else 0.0
