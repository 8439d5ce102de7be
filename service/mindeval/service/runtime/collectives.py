"""MindSpore's collectives under the metrics' all-reduce: one merged state on every rank of a multi-rank job.

`metrics.reduction` needs a sum over arrays of one size and says in which dtype; backends differ in what they sum. The
CPU's MCCL all-reduces float16 and float32 only, and gathers int32: `gather` moves twice the bits an element, and adds
on the host. Ascend's HCCL all-reduces int32. A rank that fails before the collective leaves its peers waiting until
their timeout (`MS_NODE_TIMEOUT` on CPU, `HCCL_EXEC_TIMEOUT` on Ascend): report that every shard is done first, then
order the collective.

What no NPU has run yet: everything with target "ascend". It is written from MindSpore's documents, and its arithmetic
is that of the int32 sums which the tests run without a network; a backend that rounds or loses a rank is noticed by
the checksums of `metrics.reduction`, never silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics import MetricState
from mindeval.service.metrics.reduction import all_reduce_state

AnyArray = npt.NDArray[Any]

_DTYPES = {("cpu", "all_reduce"): "float32", ("cpu", "gather"): "int32", ("ascend", "all_reduce"): "int32"}


@dataclass(frozen=True)
class Collective:
    """A sum over the ranks of the job.

    Attributes:
        rank: This rank's number, from 0.
        world: The number of ranks.
        dtype: Of the arrays that `sum` takes: `float32` or `int32`.
        sum: Sums a one-dimensional array over all ranks; all of them must call it, with arrays of one size.
    """

    rank: int
    world: int
    dtype: str
    sum: Callable[[AnyArray], AnyArray]

    def merged(self, state: MetricState) -> MetricState:
        """The merged state of all ranks, on every rank; a rank without samples takes part with an empty state.

        Raises:
            MetricStateError: The backend did not sum exactly, or the states do not merge.
            RuntimeError: The collective failed or timed out; the group has to be made again.
        """
        return all_reduce_state(state, self.rank, self.world, self.sum, self.dtype)


def collective(target: str, method: str = "all_reduce") -> Collective:
    """The collective of this job's ranks; call `mindspore.communication.init()` before.

    Args:
        target: "cpu" or "ascend".
        method: "all_reduce", or on cpu "gather".

    Raises:
        ValueError: There is no such combination.
    """
    dtype = _DTYPES.get((target, method))
    if dtype is None:
        known = ", ".join(f"{way} on {name}" for name, way in _DTYPES)
        raise ValueError(f"no {method!r} on {target!r}; there are {known}")
    from mindspore.communication import get_group_size, get_rank

    rank, world = get_rank(), get_group_size()
    return Collective(rank, world, dtype, _summed if method == "all_reduce" else lambda array: _gathered(array, world))


def _summed(array: AnyArray) -> AnyArray:
    from mindspore import Tensor, ops

    # Always a copy: on CPU the array of a tensor shares its memory.
    return np.array(ops.AllReduce()(Tensor.from_numpy(np.ascontiguousarray(array))).asnumpy())


def _gathered(array: AnyArray, world: int) -> AnyArray:
    from mindspore import Tensor, ops

    parts = ops.AllGather()(Tensor.from_numpy(np.ascontiguousarray(array))).asnumpy()
    total: AnyArray = parts.reshape(world, -1).sum(axis=0, dtype=array.dtype)
    return total
