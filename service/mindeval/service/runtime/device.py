"""The device of a runner: parsing its name, setting MindSpore up for it, and its counters.

Ascend is the same code by configuration. What no NPU has run yet, and is written from MindSpore's documents: the
"ascend" target as a whole, `set_deterministic`, the memory counters, and the half-precision compute types.
"""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass

from mindeval.service.runtime.errors import RunnerError

THREADS_VARIABLE = "MINDEVAL_RUNNER_THREADS"
_NAME = re.compile(r"(cpu|ascend):([0-9]{1,4})\Z")


@dataclass(frozen=True)
class Device:
    """A device such as "cpu:0" or "ascend:3".

    Attributes:
        target: "cpu" or "ascend".
        index: Number of the NPU; on cpu it only tells runners apart.
    """

    target: str
    index: int

    @classmethod
    def parse(cls, name: str) -> Device:
        """Reads a name.

        Raises:
            RunnerError: INVALID_FIELD.
        """
        match = _NAME.match(name)
        if match is None:
            raise RunnerError(
                "INVALID_FIELD", f"device {name[:40]!r} is not 'cpu:N' or 'ascend:N'", {"field": "device"}
            )
        return cls(match.group(1), int(match.group(2)))

    def __str__(self) -> str:
        return f"{self.target}:{self.index}"

    def set_up(self) -> str:
        """Loads MindSpore and prepares it: GRAPH mode, this device, its default threads.

        MINDEVAL_RUNNER_THREADS, when set, bounds MindSpore's threads; the default is MindSpore's own choice. It has to
        be called once, on the thread that will do all MindSpore work.

        Returns:
            MindSpore's version.

        Raises:
            RunnerError: INVALID_FIELD when the device is not there or the variable is no number.
        """
        threads = _threads()
        if threads:
            # Read by the kernels' OpenMP runtime when it is loaded, so before MindSpore is.
            os.environ["OMP_NUM_THREADS"] = str(threads)
        import mindspore as ms

        ms.set_context(mode=ms.GRAPH_MODE)
        if threads:
            ms.runtime.dispatch_threads_num(threads)
        try:
            if self.target == "ascend":
                ms.set_device("Ascend", self.index)
                ms.set_deterministic(True)
            else:
                ms.set_device("CPU")
        except (RuntimeError, ValueError) as error:
            raise RunnerError(
                "INVALID_FIELD", f"device {self}: {str(error).strip().splitlines()[0]}", {"field": "device"}
            ) from error
        return str(ms.__version__)

    def peak_memory_bytes(self) -> int:
        """Most memory in use so far: the NPU's where it counts, else the process's resident set."""
        if self.target == "ascend":
            import mindspore as ms

            return int(ms.runtime.max_memory_allocated())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _threads() -> int:
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise RunnerError(
            "INVALID_FIELD",
            f"{THREADS_VARIABLE} must be a whole number from 1 to 1024, not {text[:40]!r}",
            {"field": THREADS_VARIABLE},
        )
    return int(text)
