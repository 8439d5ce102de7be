"""ROUGE-1, -2, -L and -Lsum of pairs, bit for bit those of rouge-score 0.1.2.

Pairs go to the compiled scorer where it is installed; pairs of very long texts, whose table would not fit into
memory there, and every pair without it, are scored here with integers as bit vectors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindeval.service.metrics.exact import FloatArray
from mindeval.service.metrics.ngrams import flat_scores, native_scorer
from mindeval.service.metrics.subsequence import lcs_length, summary_hits
from mindeval.service.metrics.tokenizers import RougeCoder

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
WIDTH = 3 * len(TYPES)

_CHUNK = 256  # few enough that their scores stay in the cache until they are copied
# The compiled scorer holds a 4-byte table of all token pairs for Lsum: this many character pairs are 100 MB at worst.
_LARGEST_PRODUCT = 100_000_000
_TOKEN = re.compile("[a-z0-9]+")


def rouge_scores(
    coder: RougeCoder | None, stemmer: bool, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> FloatArray:
    """Precision, recall and F of each type, of the reference with the best F.

    Where two references tie in F, the one with the larger recall counts: rouge-score takes the first, so that its
    precision and recall depend on the order of the references.

    Args:
        coder: A tokenizer for texts that are not plain English; None for rouge-score's own.
        stemmer: Whether rouge-score's tokenizer stems (Porter); only without a coder.
        predictions: n texts.
        references: n non-empty lists of texts.

    Returns:
        Shape (n, 12): three values of each of `TYPES` in turn.
    """
    owners, left, right = [], [], []
    if coder is not None:
        coder.trim()
    for k, texts in enumerate(references):
        own = predictions[k] if coder is None else coder.text(predictions[k])
        for text in texts:
            owners.append(k)
            left.append(text if coder is None else coder.text(text))
            right.append(own)
    scores = _pairs(left, right, stemmer)
    if len(owners) == len(predictions):
        return scores
    best = np.full((len(predictions), WIDTH), -1.0)
    for k, row in zip(owners, scores):
        for start in range(0, WIDTH, 3):
            if (row[start + 2], row[start + 1]) > (best[k, start + 2], best[k, start + 1]):
                best[k, start : start + 3] = row[start : start + 3]
    return best


def _pairs(references: Sequence[str], predictions: Sequence[str], stemmer: bool) -> FloatArray:
    scores = np.empty((len(predictions), WIDTH))
    single, several = [], []
    for k, (reference, prediction) in enumerate(zip(references, predictions)):
        if len(reference) * len(prediction) > _LARGEST_PRODUCT:
            scores[k] = pair_scores(reference, prediction, stemmer)
        elif "\n" in reference or "\n" in prediction:
            several.append(k)
        else:
            single.append(k)
    # With one sentence on each side Lsum is L, and half of the work is saved by not computing it twice.
    _score(TYPES[:3], single, references, predictions, stemmer, scores)
    scores[single, 9:] = scores[single, 6:9]
    _score(TYPES, several, references, predictions, stemmer, scores)
    return scores


def _score(
    types: tuple[str, ...],
    chosen: list[int],
    references: Sequence[str],
    predictions: Sequence[str],
    stemmer: bool,
    scores: FloatArray,
) -> None:
    """Fill the first columns of the chosen rows of `scores`."""
    scorer, width = native_scorer(types, stemmer), 3 * len(types)
    if scorer is None:
        for k in chosen:
            scores[k] = pair_scores(references[k], predictions[k], stemmer)
        return
    for start in range(0, len(chosen), _CHUNK):
        part = chosen[start : start + _CHUNK]
        batch = scorer.score_batch([references[k] for k in part], [predictions[k] for k in part])
        scores[part, :width] = flat_scores(batch, width)


def pair_scores(reference: str, prediction: str, stemmer: bool) -> list[float]:
    """The twelve values of one pair, without compiled code."""
    left, right = _tokens(reference, stemmer), _tokens(prediction, stemmer)
    values = [*_ngram_scores(left, right, 1), *_ngram_scores(left, right, 2)]
    hits = lcs_length(left, right) if left and right else 0
    values += _scores(hits, len(left), len(right))
    left_lines = [_tokens(line, stemmer) for line in reference.split("\n") if line]
    right_lines = [_tokens(line, stemmer) for line in prediction.split("\n") if line]
    if len(left_lines) > 1 or len(right_lines) > 1:
        hits = summary_hits(left_lines, right_lines)
    # With one line on each side the union is the subsequence itself, so the length above serves.
    return values + _scores(hits, sum(map(len, left_lines)), sum(map(len, right_lines)))


def _tokens(text: str, stemmer: bool) -> list[str]:
    tokens = _TOKEN.findall(text.lower())
    if not stemmer:
        return tokens
    from nltk.stem.porter import PorterStemmer

    stem = PorterStemmer().stem
    # Words of up to three letters are left alone, as in ROUGE-1.5.5.
    return [stem(token) if len(token) > 3 else token for token in tokens]


def _ngram_scores(left: list[str], right: list[str], n: int) -> list[float]:
    reference = Counter(zip(*(left[k:] for k in range(n))))
    candidate = Counter(zip(*(right[k:] for k in range(n))))
    hits = sum(min(count, candidate[gram]) for gram, count in reference.items())
    return _scores(hits, max(len(left) - n + 1, 0), max(len(right) - n + 1, 0))


def _scores(hits: int, reference: int, candidate: int) -> list[float]:
    precision, recall = hits / max(candidate, 1), hits / max(reference, 1)
    both = precision + recall
    return [precision, recall, 2 * precision * recall / both if both > 0 else 0.0]
