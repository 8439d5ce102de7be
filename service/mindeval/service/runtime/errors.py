"""Errors of a runner, and what a runner says about errors that are not its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindeval.formats.errors import MindEvalError

# Texts by which MindSpore and the operating system report a device or host that is out of memory.
_OUT_OF_MEMORY = ("out of memory", "memory not enough", "allocate memory failed", "memory isn't enough", "bad_alloc")
_NAMES_SHOWN = 20


class RunnerError(MindEvalError):
    """An evaluation, or one task of it, cannot be done; the runner itself is well."""


class JobCancelled(Exception):  # noqa: N818 - it is an outcome, not an error
    """The service asked to stop this job."""


def shown(names: Iterable[str]) -> str:
    """Names as text for a message or metadata; only the first 20 are written out."""
    listed = list(names)
    tail = f" and {len(listed) - _NAMES_SHOWN} more" if len(listed) > _NAMES_SHOWN else ""
    return ", ".join(listed[:_NAMES_SHOWN]) + tail


def describe(error: BaseException) -> dict[str, Any]:
    """The `error` object of a frame: reason, message and metadata.

    An error with a reason of its own keeps it. Memory exhaustion is recognised by type or text; everything else is
    RUNNER_ERROR with the exception's type and first line.
    """
    if isinstance(error, MindEvalError):
        metadata = {key: str(value) for key, value in error.metadata.items()}
        return {"reason": error.reason, "message": error.message, "metadata": metadata}
    lines = str(error).strip().splitlines()
    first = lines[0][:500] if lines else ""
    kind = type(error).__name__
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in _OUT_OF_MEMORY):
        return {
            "reason": "OUT_OF_MEMORY",
            "message": f"the device ran out of memory ({first or kind}); lower the task's batch_tokens or max_length, "
            "or evaluate on a device with more memory",
            "metadata": {"exception": kind},
        }
    return {
        "reason": "RUNNER_ERROR",
        "message": f"the runner raised {kind}: {first}; the runner's log has the traceback",
        "metadata": {"exception": kind},
    }
