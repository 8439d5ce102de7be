"""What the training loop shows of itself: losses, steps, epochs, time per step.

MindSpore's callback parameters differ by mode: `cur_step_num` restarts at 1 when training resumes at a later epoch and
jumps by the sink size in data-sink mode; `net_outputs` is a scalar, or a tuple that begins with one. This module turns
them into one count of optimizer steps and a few plain numbers. It does not import MindSpore.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def loss_of(net_outputs: Any) -> float | None:
    """The loss in a network's outputs: a scalar, or the first item of a tuple or list; None when there is none."""
    if isinstance(net_outputs, (tuple, list)):
        return loss_of(net_outputs[0]) if net_outputs else None
    if isinstance(net_outputs, (int, float)):
        return float(net_outputs)
    if hasattr(net_outputs, "asnumpy"):
        net_outputs = net_outputs.asnumpy()
    if isinstance(net_outputs, (np.ndarray, np.generic)) and net_outputs.size:
        return float(np.mean(net_outputs.astype(np.float64)))
    return None


class IntervalCrossing:
    """Tells when a growing count has reached or passed the next multiple of an interval."""

    def __init__(self, every: int, start: int = 0) -> None:
        self._every = every
        self._done = start // every

    def crossed(self, count: int) -> bool:
        """True once for each multiple (or group of multiples jumped over at once)."""
        if count // self._every <= self._done:
            return False
        self._done = count // self._every
        return True


class StepCounter:
    """Optimizer steps done, over the whole run.

    Attributes:
        step: Steps done, those before a resumption included.
        epoch: Epochs done; fractions of an epoch where its length is known.
    """

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0.0
        self._last_seen: int | None = None

    def advance(self, params: Any) -> int:
        """Takes in the callback parameters at the end of a step, or of a sink of several.

        Returns:
            The number of steps just done.
        """
        current = int(params.cur_step_num)
        batches = int(params.get("batch_num") or 0)
        if self._last_seen is None:
            self.step = self._steps_before(params, current, batches)
        # A counter that went back was restarted by the loop: at least one step was done.
        jump = current - (self._last_seen or 0) if current > (self._last_seen or 0) else 1
        self._last_seen = current
        self.step += jump
        self.epoch = self.step / batches if batches else float(params.get("cur_epoch_num", 0))
        return jump

    @staticmethod
    def _steps_before(params: Any, current: int, batches: int) -> int:
        """Steps of the epochs that an `initial_epoch` skipped, which the loop's own counter leaves out."""
        before = (int(params.get("cur_epoch_num", 1)) - 1) * batches
        return before if current <= batches else 0


@dataclass(frozen=True)
class Throughput:
    """Samples and tokens of one step; None where unknown."""

    samples: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, params: Any, samples: int | None, tokens: int | None) -> Throughput:
        """Reads a batch: the first axis of its first column counts samples; whole numbers in two axes are tokens.

        Args:
            params: Callback parameters.
            samples: The user's word, which goes first.
            tokens: Likewise.
        """
        element = params.get("train_dataset_element")
        first = element[0] if isinstance(element, (tuple, list)) and element else None
        shape = tuple(getattr(first, "shape", ()))
        if samples is None and shape:
            samples = int(shape[0])
        if tokens is None and len(shape) == 2 and "Int" in str(getattr(first, "dtype", "")):
            tokens = int(shape[0]) * int(shape[1])
        return cls(samples, tokens)


class StepClock:
    """Mean wall time of a step, evaluation stalls left out."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._steps = 0
        self._excluded_s = 0.0

    def tick(self, steps: int) -> None:
        """Counts steps that have just ended. The first starts the clock: it holds the compilation of the graph."""
        if self._since is None:
            self._since = time.perf_counter()
        else:
            self._steps += steps

    def exclude(self, seconds: float) -> None:
        """Leaves out time that was not training."""
        self._excluded_s += seconds

    def lap_ms(self) -> float | None:
        """Mean time of a step since the lap before, in milliseconds; None when no step was timed."""
        if self._since is None or not self._steps:
            return None
        now = time.perf_counter()
        mean = max(0.0, now - self._since - self._excluded_s) / self._steps * 1000.0
        self._since, self._steps, self._excluded_s = now, 0, 0.0
        return mean


def host_memory_bytes() -> int | None:
    """Resident memory of this process; None where /proc does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
