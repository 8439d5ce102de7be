"""Longest common subsequences of token lists, with whole rows of the table held in the bits of one integer.

The recurrence is the bit-vector one of Hyyrö (2004). Bit j of row i is 0 where the table grows from column j to j+1,
so a length is a count of zeros, and a million cells take 125 kB instead of 4 MB.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

_WHOLE_TABLE_BITS = 1 << 28


def lcs_length(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """The length of a longest common subsequence."""
    row = (1 << len(right)) - 1
    for following in _rows(left, _positions(right), row, len(right)):
        row = following
    return _zeros(row, len(right))


def lcs_indices(reference: Sequence[Hashable], candidate: Sequence[Hashable]) -> list[int]:
    """Positions in `reference` of the longest common subsequence that rouge-score's backtracking finds, ascending.

    Among equally long ones the choice matters for ROUGE-Lsum: from the end of the table, step left only where that
    is strictly longer than stepping up. Memory grows with the square root of the reference's length beyond a
    table of 32 MB, at the price of computing each row twice.
    """
    rows, columns = len(reference), len(candidate)
    if not rows or not columns:
        return []
    positions = _positions(candidate)
    full = (1 << columns) - 1
    block = rows if rows * columns <= _WHOLE_TABLE_BITS else math.isqrt(rows) + 1
    marks = [full]
    for done, row in enumerate(_rows(reference, positions, full, columns), start=1):
        if done % block == 0:
            marks.append(row)
    table = _Table(reference, positions, columns, marks, block)
    found: list[int] = []
    i, j = rows, columns
    here, above = _zeros(table.row(i), j), _zeros(table.row(i - 1), j)
    while i and j:
        if reference[i - 1] == candidate[j - 1]:
            found.append(i - 1)
            i, j, here = i - 1, j - 1, here - 1
            above = _zeros(table.row(i - 1), j) if i else 0
            continue
        left = here - _grows(table.row(i), j)
        if left > above:
            above -= _grows(table.row(i - 1), j)
            j, here = j - 1, left
        else:
            i, here = i - 1, above
            above = _zeros(table.row(i - 1), j) if i else 0
    return found[::-1]


def summary_hits(reference: Sequence[Sequence[str]], candidate: Sequence[Sequence[str]]) -> int:
    """Tokens of the reference sentences covered by the union of their subsequences with all candidate sentences.

    A token counts at most as often as it occurs on either side (Lin 2004, section 3.2, as ROUGE-1.5.5 clips it).
    """
    left = Counter(token for sentence in reference for token in sentence)
    right = Counter(token for sentence in candidate for token in sentence)
    hits = 0
    for sentence in reference:
        union: set[int] = set()
        for other in candidate:
            union.update(lcs_indices(sentence, other))
        for index in sorted(union):
            token = sentence[index]
            if right[token] > 0 and left[token] > 0:
                hits += 1
                right[token] -= 1
                left[token] -= 1
    return hits


class _Table:
    """Rows on demand: the block of rows that backtracking is in is held, earlier ones are computed again."""

    def __init__(
        self,
        reference: Sequence[Hashable],
        positions: dict[Hashable, int],
        columns: int,
        marks: list[int],
        block: int,
    ) -> None:
        self._reference, self._positions, self._columns = reference, positions, columns
        self._marks, self._block = marks, block
        self._held: dict[int, list[int]] = {}

    def row(self, index: int) -> int:
        number, offset = divmod(index, self._block)
        if number not in self._held:
            start = number * self._block
            part = self._reference[start : start + self._block]
            # Two neighbouring blocks suffice: backtracking looks one row up.
            self._held = {k: rows for k, rows in self._held.items() if k == number + 1}
            self._held[number] = [
                self._marks[number],
                *_rows(part, self._positions, self._marks[number], self._columns),
            ]
        return self._held[number][offset]


def _positions(tokens: Sequence[Hashable]) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    bit = 1
    for token in tokens:
        found[token] = found.get(token, 0) | bit
        bit <<= 1
    return found


def _rows(tokens: Sequence[Hashable], positions: dict[Hashable, int], row: int, columns: int) -> Iterator[int]:
    full = (1 << columns) - 1
    for token in tokens:
        matches = row & positions.get(token, 0)
        if matches:
            row = ((row + matches) | (row - matches)) & full
        yield row


def _zeros(row: int, columns: int) -> int:
    return columns - (row & ((1 << columns) - 1)).bit_count()


def _grows(row: int, column: int) -> int:
    return 1 - ((row >> (column - 1)) & 1)
