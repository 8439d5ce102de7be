"""Joining ranks by sums of float32 or int32 arrays: the bits of a merge on the host, uneven and empty shards."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

from mindeval.service.metrics import MetricState, MetricStateError, create
from mindeval.service.metrics.checking import bits
from mindeval.service.metrics.ordinals import OrdinalSet
from mindeval.service.metrics.reduction import all_reduce_state, pack_size, unpack_sizes


def classification(ids: list[int]) -> MetricState:
    state = create("classification", {"labels": [0, 1, 2]})
    labels = np.array(ids, dtype=np.int64) % 3
    state.update(sample_ids=[f"s{k}" for k in ids], labels=labels, predictions=(labels + np.array(ids, int) % 2) % 3)
    return state


def bounded(ids: list[int]) -> MetricState:
    state = create("classification_bounded", {"labels": [0, 1, 2]})
    labels = np.array(ids, dtype=np.int64) % 3
    state.update(ordinals=np.array(ids, dtype=np.int64), labels=labels, predictions=labels)
    # Every sample stands for 2**24 + 1 of them: counts that float32 cannot hold.
    many = 16_777_217
    state._matrix *= many
    state._seen = OrdinalSet()
    if ids:
        state._seen._add_intervals(np.array([[ids[0] * many, (ids[-1] + 1) * many]]))
    return state


def run(states: list[MetricState], dtype: str, damage: Callable[[Any], Any] = lambda array: array) -> list[MetricState]:
    """One thread a rank, and a sum in the backend's own dtype in place of a network."""
    world = len(states)
    barrier, slots, results = Barrier(world), [None] * world, [None] * world
    errors: list[BaseException] = []

    def rank_main(rank: int) -> None:
        def all_reduce(array: np.ndarray) -> np.ndarray:
            slots[rank] = array
            barrier.wait(20)
            total = np.sum(np.stack(slots), axis=0, dtype=array.dtype)
            barrier.wait(20)
            return damage(total)

        try:
            results[rank] = all_reduce_state(states[rank], rank, world, all_reduce, dtype)
        except MetricStateError as error:
            errors.append(error)

    threads = [Thread(target=rank_main, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("make", [classification, bounded])
@pytest.mark.parametrize("shards", [[[0, 1, 2], [3]], [[], list(range(40)), []], [[], []], [[5]]])
def test_every_rank_gets_the_bits_of_a_merge_on_the_host(
    dtype: str, make: Callable[[list[int]], MetricState], shards: list[list[int]]
) -> None:
    states = [make(shard) for shard in shards]
    host = make([])
    for state in states:
        host.merge(state)
    for state in run(states, dtype):
        assert bits(state.result()) == bits(host.result())
        assert state.signature() == host.signature()


def test_samples_repeated_across_ranks_count_once() -> None:
    total = run([classification([0, 1, 2, 3]), classification([3, 4, 0])], "float32")[1]
    assert bits(total.result()) == bits(classification([0, 1, 2, 3, 4]).result())


def bfloat16(array: np.ndarray) -> np.ndarray:
    """The float32 values with the lower half of their bits cut off, as a matrix unit may do."""
    return (array.view(np.uint32) & 0xFFFF0000).view(np.float32)


def test_a_backend_that_rounds_is_noticed() -> None:
    states = [classification(list(range(50))), classification([60])]
    with pytest.raises(MetricStateError) as caught:
        run(states, "float32", damage=bfloat16)
    assert caught.value.reason == "inexact_reduction"
    # Damage of a single element of the bytes, with the sizes intact.
    with pytest.raises(MetricStateError) as caught:
        run(states, "int32", damage=lambda array: array + (np.arange(array.size) == 20) * (array.size > 14))
    assert caught.value.reason == "inexact_reduction"
    twice = pack_size(b"abc", 0, 1, "int32") * 2
    with pytest.raises(MetricStateError):
        unpack_sizes(twice, 1)
