"""Grouping windows into batches of a few fixed shapes.

Graphs are compiled for static shapes, so shapes are rationed: lengths are rounded up to a short ladder, and the number
of windows in a batch to a power of two. Both depend on the lengths only; the next checkpoint on the same dataset meets
the same shapes and compiles nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """Windows that are scored together.

    Attributes:
        members: Indices of the windows.
        length: Length to which their inputs are padded on the right.
    """

    members: tuple[int, ...]
    length: int


def length_ladder(longest: int, round_up: Callable[[int], int]) -> list[int]:
    """Allowed lengths: 16, 24, 32, 48, 64, 96 and so on, each rounded up, and `longest` rounded up as the last.

    Neighbours differ by a third to a half, so padding wastes a sixth on average.
    """
    steps: list[int] = []
    size = 16
    while not steps or steps[-1] < longest:
        for step in (size, size + size // 2):
            rounded = round_up(step)
            if not steps or rounded > steps[-1]:
                steps.append(rounded)
        size *= 2
    last = round_up(longest)
    # The longest length is the one that long documents use: it gets a step of its own, without padding.
    return [step for step in steps if step < last] + [last]


def bucketed_batches(lengths: Sequence[int], ladder: Sequence[int], batch_tokens: int) -> list[Batch]:
    """Groups windows by the step of the ladder that holds them.

    Windows of one step keep their order. A step with too few windows to be worth a graph of its own (fewer tokens
    than half a batch) joins the next longer step that is in use.

    Args:
        lengths: Length of each window.
        ladder: Ascending; the last is at least the longest window.
        batch_tokens: About how many tokens a batch may have.

    Returns:
        Batches, the longest first: the largest need of memory shows at once.
    """
    by_step: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_step.setdefault(ladder[bisect_left(ladder, length)], []).append(index)
    used = sorted(by_step)
    for step, longer in zip(used, used[1:]):
        if len(by_step[step]) * step * 2 < batch_tokens:
            by_step[longer] = sorted(by_step[longer] + by_step.pop(step))
    return _cut(by_step, batch_tokens)


def equal_length_batches(lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
    """Groups windows of exactly equal length, for networks that nothing is known about: no padding is ever seen.

    Returns:
        As `bucketed_batches`.
    """
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    return _cut(by_length, batch_tokens)


def _cut(by_length: dict[int, list[int]], batch_tokens: int) -> list[Batch]:
    batches: list[Batch] = []
    for length in sorted(by_length, reverse=True):
        rows = 1 << (max(1, batch_tokens // length).bit_length() - 1)
        members = by_length[length]
        batches += [Batch(tuple(members[at : at + rows]), length) for at in range(0, len(members), rows)]
    return batches


def padded_rows(windows: int) -> int:
    """Rows of the static shape that holds a batch of `windows`: the next power of two."""
    return 1 << (windows - 1).bit_length()
