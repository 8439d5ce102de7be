"""From logits to the few numbers that leave the device."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import nn, ops

from mindeval.service.runtime.models.adapter import TokenScores


class ScoreCell(nn.Cell):  # type: ignore[misc]
    """float32 logits [R, V], targets int32 [R, 1] → (log-probability of the target [R, 1], argmax int32 [R]).

    LogSoftmax, not the logarithm of Softmax: the latter is twice as fast on the CPU target, and sums 49,152 float32
    terms so plainly that the loss of a real model came out 6e-6 too low (LogSoftmax: 7e-7).
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_softmax = ops.LogSoftmax(-1)
        self.argmax = ops.ArgMaxWithValue(-1)
        self.take = ops.GatherD()

    def construct(self, logits: Any, targets: Any) -> Any:
        """Two numbers a row."""
        return self.take(self.log_softmax(logits), 1, targets), self.argmax(logits)[0]


class RankCell(nn.Cell):  # type: ignore[misc]
    """float32 logits [R, V], targets int32 [R, 1] → how many logits are at least the target's, float32 [R].

    Counting takes a sixth of the time of TopK on the CPU target. Tile and a comparison of equal shapes are five times
    as fast as a comparison that broadcasts.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.take = ops.GatherD()
        self.tile = ops.Tile()
        self.at_least = ops.GreaterEqual()
        self.cast = ops.Cast()
        self.sum = ops.ReduceSum(False)

    def construct(self, logits: Any, targets: Any) -> Any:
        """The count, the target itself included."""
        target = self.tile(self.take(logits, 1, targets), (1, self.vocab_size))
        return self.sum(self.cast(self.at_least(logits, target), ms.float32), -1)


def to_scores(
    log_probability: npt.NDArray[np.float32],
    index: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
    rank: npt.NDArray[np.float32] | None,
) -> TokenScores:
    """Joins what came from the device; all arrays have one row a target.

    A target without a finite NLL is no hit, whatever an argmax over NaN says. Ties at the fifth place count against
    the target: equal logits say nothing, and must not look like knowledge.
    """
    nll = -log_probability.reshape(-1)
    finite = np.isfinite(nll)
    correct = (index.reshape(-1) == targets) & finite
    top5 = None if rank is None else (rank.reshape(-1) <= 5) & finite | correct
    return TokenScores(nll, correct, top5)


def host(tensor: ms.Tensor) -> npt.NDArray[Any]:
    """A copy in host memory: on CPU `asnumpy` is a live view of memory that the next call reuses."""
    return np.array(tensor.asnumpy())
