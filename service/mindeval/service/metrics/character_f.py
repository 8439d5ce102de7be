"""chrF and chrF++ from integer counts (Popović 2015, 2017), as sacreBLEU computes them, and TER's edits.

Per sample and order there are three integers: n-grams of the candidate, of the reference, and matched ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mindeval.service.metrics.errors import MetricInputError
from mindeval.service.metrics.exact import FloatArray, IntArray
from mindeval.service.metrics.ngrams import line_length, matched_ngrams
from mindeval.service.metrics.tokenizers import Coder

CHARACTER_ORDER = 6
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_MOST_TER_WORDS = 5_000
_EPSILON = 1e-16


def chrf_counts(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    word_order: int,
    lowercase: bool,
    score: Callable[[FloatArray], float],
) -> IntArray:
    """The integers of each sample, shape (n, 3 * (6 + word_order)).

    Of several references the first with the best score counts, as in sacreBLEU; among references that match nothing
    that is the first one, so there the order of the references matters.
    """
    owners = [k for k, texts in enumerate(references) for _ in texts]
    left = [predictions[k] for k in owners]
    right = [text for texts in references for text in texts]
    if lowercase:
        left, right = [text.lower() for text in left], [text.lower() for text in right]
    counts = _order_counts(Coder(lambda text: list("".join(text.split()))), left, right, CHARACTER_ORDER)
    if word_order:
        counts = np.concatenate([counts, _order_counts(Coder(_split_punctuation), left, right, word_order)], axis=1)
    if len(owners) == len(predictions):
        return counts
    best = np.zeros((len(predictions), counts.shape[1]), dtype=np.int64)
    scores = [-1.0] * len(predictions)
    for k, row in zip(owners, counts):
        if (own := score(row.astype(np.float64))) > scores[k]:
            scores[k], best[k] = own, row
    return best


def chrf(totals: FloatArray, beta: float, smooth: bool) -> float:
    """The F-score on a scale of 100.

    Args:
        totals: Sums of the integers, shape (3 * orders,).
        beta: How much more recall weighs than precision.
        smooth: False: the F-score of mean precision and mean recall over the orders that both sides have. True: the
            mean of the orders' F-scores, with 1e-16 for what is missing, as in chrF++.py.
    """
    weight = beta**2
    precision = recall = score = 0.0
    orders = 0
    table = totals.reshape(-1, 3).tolist()
    for candidate, reference, matched in table:
        own_precision = matched / candidate if candidate > 0 else _EPSILON
        own_recall = matched / reference if reference > 0 else _EPSILON
        both = weight * own_precision + own_recall
        score += (1 + weight) * own_precision * own_recall / both if both > 0 else _EPSILON
        if candidate > 0 and reference > 0:
            precision += own_precision
            recall += own_recall
            orders += 1
    if smooth:
        return float(100 * score / len(table))
    if not orders or not precision + recall:
        return 0.0
    precision, recall = precision / orders, recall / orders
    return 100 * ((1 + weight) * precision * recall / (weight * precision + recall))


def _order_counts(coder: Coder, left: Sequence[str], right: Sequence[str], order: int) -> IntArray:
    candidates, references = [coder.line(text) for text in left], [coder.line(text) for text in right]
    steps = np.arange(order)
    lengths = np.array([line_length(line) for line in candidates], np.int64)
    own = np.maximum(lengths[:, None] - steps, 0)
    other = np.maximum(np.array([line_length(line) for line in references], np.int64)[:, None] - steps, 0)
    # Where the reference is too short for an order, sacreBLEU does not count the candidate's n-grams either.
    own = np.where(other > 0, own, 0)
    counts: IntArray = np.stack([own, other, matched_ngrams(candidates, lengths, references, order)], axis=2)
    return counts.reshape(-1, 3 * order)


def _split_punctuation(text: str) -> list[str]:
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words


def ter_counts(
    ids: Sequence[str], predictions: Sequence[str], references: Sequence[Sequence[str]], options: tuple[bool, ...]
) -> FloatArray:
    """Least edits over the references and mean reference length of each sample, shape (n, 2).

    The edits are sacreBLEU's (Snover et al. 2006, as in Tercom).

    Args:
        ids: Sample ids, for messages.
        predictions: n texts.
        references: n non-empty lists of texts.
        options: Normalise, drop punctuation, treat CJK characters, keep case.

    Raises:
        MetricInputError: A text has more than 5,000 words (`text_too_long`); the search for shifts would take hours.
    """
    from sacrebleu.metrics.lib_ter import translation_edit_rate

    tokenizer = _ter_tokenizer(options)
    counts = np.zeros((len(ids), 2))
    for k, texts in enumerate(references):
        candidate = tokenizer(predictions[k].rstrip()).split()
        # Twice, as sacreBLEU does with references (and only with them); it shows on text like "it's".
        others = [tokenizer(tokenizer(text.rstrip()).rstrip()).split() for text in texts]
        if max(len(candidate), *map(len, others)) > _MOST_TER_WORDS:
            raise MetricInputError("too long for TER", reason="text_too_long", sample_id=ids[k])
        edits = [translation_edit_rate(candidate, other) for other in others]
        counts[k] = min(number for number, _ in edits), sum(length for _, length in edits) / len(edits)
    return counts


def ter(totals: FloatArray) -> float:
    """Edits over reference words, on a scale of 100."""
    edits, length = totals.tolist()
    if length > 0:
        return float(100 * (edits / length))
    return 100.0 if edits > 0 else 0.0


@lru_cache(maxsize=16)
def _ter_tokenizer(options: tuple[bool, ...]) -> Any:
    from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

    normalized, no_punct, asian_support, case_sensitive = options
    return TercomTokenizer(
        normalized=normalized, no_punct=no_punct, asian_support=asian_support, case_sensitive=case_sensitive
    )
