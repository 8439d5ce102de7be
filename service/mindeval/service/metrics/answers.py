"""Exact match and F1 of answers: SQuAD v1.1's for a text, Quoref's and DROP's for an answer of several spans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindeval.service.metrics.exact import FloatArray, IntArray
from mindeval.service.metrics.texts import answer_tokens


def answer_scores(
    prediction: str, references: Sequence[str], language: str, separator: str | None = None
) -> tuple[float, float]:
    """Exact match and F1 of an answer, each the best over the references; a blank prediction scores 0.

    Args:
        prediction: The answer.
        references: Alternatives, at least one.
        language: How answers are normalised; see `answer_tokens`.
        separator: None, or what stands between the spans of an answer. Then an answer matches exactly when its spans
            are those of the reference in any order, and F1 is the sum of the F1 of paired spans over the number of
            spans on the side that has more, in the pairing that makes it largest (Dua et al. 2019, section 5).
    """
    if not prediction.strip():
        return 0.0, 0.0
    if separator is None:
        mine = answer_tokens(prediction, language)
        scores = [_text_scores(mine, answer_tokens(text, language)) for text in references]
    else:
        spans = answer_spans(prediction, language, separator)
        scores = [_span_scores(spans, answer_spans(text, language, separator)) for text in references]
    return max(exact for exact, _ in scores), max(f1 for _, f1 in scores)


def answer_spans(text: str, language: str, separator: str) -> list[list[str]]:
    """Tokens of each span that is not blank."""
    return [answer_tokens(span, language) for span in text.split(separator) if span.strip()]


def _text_scores(mine: list[str], other: list[str]) -> tuple[float, float]:
    common = sum((Counter(mine) & Counter(other)).values())
    if not common:
        return float(mine == other), 0.0
    precision, recall = common / len(mine), common / len(other)
    return float(mine == other), 2 * precision * recall / (precision + recall)


def _span_scores(mine: list[list[str]], other: list[list[str]]) -> tuple[float, float]:
    exact = float(sorted(mine) == sorted(other))
    if not mine or not other:
        return exact, 0.0
    # Rows are the shorter side, which the references bound; a model that repeats itself makes columns only.
    rows, columns = (mine, other) if len(mine) <= len(other) else (other, mine)
    table = np.array([[_text_scores(left, right)[1] for right in columns] for left in rows])
    chosen = best_pairing(table)
    total = math.fsum(table[np.arange(len(rows)), chosen].tolist())
    return exact, total / len(columns)


def best_pairing(weights: FloatArray) -> IntArray:
    """The column of each row in a pairing of the largest total weight.

    The Hungarian algorithm by shortest augmenting paths (Kuhn 1955; Jonker and Volgenant 1987), with a row's step
    over all columns at once.

    Args:
        weights: Shape (rows, columns), finite, with at most as many rows as columns.
    """
    rows, columns = weights.shape
    # Column 0 is the root of each path; `owner` is the row (from 1) that holds a column.
    row_price, column_price = np.zeros(rows + 1), np.zeros(columns + 1)
    owner = np.zeros(columns + 1, dtype=np.int64)
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        slack, before = np.full(columns + 1, np.inf), np.zeros(columns + 1, dtype=np.int64)
        done = np.zeros(columns + 1, dtype=bool)
        while owner[column]:
            done[column] = True
            here = owner[column]
            cost = -weights[here - 1] - row_price[here] - column_price[1:]
            nearer = ~done[1:] & (cost < slack[1:])
            slack[1:][nearer], before[1:][nearer] = cost[nearer], column
            column = int(np.argmin(np.where(done, np.inf, slack)))
            step = slack[column]
            row_price[owner[done]] += step
            column_price[done] -= step
            slack[~done] -= step
        while column:
            owner[column], column = owner[before[column]], int(before[column])
    chosen = np.zeros(rows + 1, dtype=np.int64)
    chosen[owner[1:]] = np.arange(columns)
    return chosen[1:]
