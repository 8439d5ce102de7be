from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime import reference

from mindeval.service.runtime.models.batching import bucketed_batches, equal_length_batches, length_ladder, padded_rows
from mindeval.service.runtime.tasks.windows import rolling_windows

BOS = 999


@given(count=st.integers(0, 70), max_length=st.integers(2, 20))
def test_windows_are_those_of_the_reference(count: int, max_length: int) -> None:
    tokens = list(range(count))
    ours = [
        (window.inputs.tolist(), window.targets.tolist())
        for window in rolling_windows(np.array(tokens, dtype=np.int64), prefix=BOS, max_length=max_length)
    ]
    assert ours == reference.rolling_windows(tokens, BOS, max_length)


@given(count=st.integers(0, 70), max_length=st.integers(2, 20), prefix=st.sampled_from([BOS, None]))
def test_each_token_is_scored_once_from_the_token_before_it(count: int, max_length: int, prefix: int | None) -> None:
    tokens = np.arange(count, dtype=np.int64)
    scored = []
    for window in rolling_windows(tokens, prefix=prefix, max_length=max_length):
        assert window.inputs.size <= max_length
        before = window.inputs[window.positions]
        np.testing.assert_array_equal(np.where(window.targets == 0, BOS, window.targets - 1), before)
        scored += window.targets.tolist()
    assert scored == list(range(0 if prefix is not None else 1, count))


def test_without_a_prefix_only_the_first_token_goes() -> None:
    tokens = np.arange(10, dtype=np.int64)
    (window,) = rolling_windows(tokens, prefix=None, max_length=32)
    assert window.inputs.tolist() == list(range(9))
    assert window.targets.tolist() == list(range(1, 10))


def test_a_masked_token_is_seen_and_not_scored() -> None:
    tokens = np.array([5, 6, 0, 7], dtype=np.int64)
    (window,) = rolling_windows(tokens, prefix=BOS, max_length=8, scored=tokens != 0)
    assert window.inputs.tolist() == [BOS, 5, 6, 0]
    assert window.targets.tolist() == [5, 6, 7]
    assert window.positions.tolist() == [0, 1, 3]


@given(lengths=st.lists(st.integers(1, 200), max_size=60), batch_tokens=st.integers(1, 1000))
def test_batches_hold_each_window_once_within_the_bound(lengths: list[int], batch_tokens: int) -> None:
    ladder = length_ladder(max(lengths, default=1), lambda length: length)
    for batches in (
        bucketed_batches(lengths, ladder, batch_tokens),
        equal_length_batches(lengths, batch_tokens),
    ):
        assert sorted(member for batch in batches for member in batch.members) == list(range(len(lengths)))
        for batch in batches:
            assert all(lengths[member] <= batch.length for member in batch.members)
            assert len(batch.members) == 1 or padded_rows(len(batch.members)) * batch.length <= batch_tokens
    assert all(
        lengths[member] == batch.length
        for batch in equal_length_batches(lengths, batch_tokens)
        for member in batch.members
    )


def test_shapes_are_few() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 5000).tolist()
    batches = bucketed_batches(lengths, length_ladder(max(lengths), lambda length: length), 4096)
    shapes = {(padded_rows(len(batch.members)), batch.length) for batch in batches}
    assert len(shapes) <= 2 * len({batch.length for batch in batches}) <= 26


@pytest.mark.parametrize(("windows", "rows"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16)])
def test_rows_are_powers_of_two(windows: int, rows: int) -> None:
    assert padded_rows(windows) == rows
