"""Python client of MindEval.

    from mindeval.client import Client

    with Client("127.0.0.1:7860") as client:
        result = client.evaluate("path/to/checkpoint", suite="valid")
        print(result.metrics["val/loss"])

`AsyncClient` has the same methods as coroutines. Names are loaded on first use, so importing the package is quick and
loads neither gRPC nor protobuf.

A process must not fork while a client is open: gRPC's threads do not survive it. A training process therefore uses no
client at all; it starts `python -m mindeval.client.agent` and talks to it over pipes (docs/formats.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindeval.client._async_client import AsyncClient
    from mindeval.client._channel import TlsFiles
    from mindeval.client._errors import (
        AccessDenied,
        CheckpointChanged,
        Conflict,
        EvaluationFailed,
        InvalidRequest,
        NotFound,
        PreconditionFailed,
        ServiceError,
        ServiceUnavailable,
    )
    from mindeval.client._results import (
        Capabilities,
        Checkpoint,
        CheckpointDiff,
        Dataset,
        EvaluationEvent,
        EvaluationResult,
        Failure,
        FetchedCheckpoint,
        Metric,
        Progress,
        PushedCheckpoint,
        PushProgress,
        Statistics,
        Suite,
        Task,
        TaskResult,
        TensorDifference,
    )
    from mindeval.client._sync_client import Client
    from mindeval.formats.errors import FormatError, MindEvalError

_HOMES = {
    "mindeval.client._async_client": ("AsyncClient",),
    "mindeval.client._channel": ("TlsFiles",),
    "mindeval.client._errors": (
        "AccessDenied",
        "CheckpointChanged",
        "Conflict",
        "EvaluationFailed",
        "InvalidRequest",
        "NotFound",
        "PreconditionFailed",
        "ServiceError",
        "ServiceUnavailable",
    ),
    "mindeval.client._results": (
        "Capabilities",
        "Checkpoint",
        "CheckpointDiff",
        "Dataset",
        "EvaluationEvent",
        "EvaluationResult",
        "Failure",
        "FetchedCheckpoint",
        "Metric",
        "Progress",
        "PushProgress",
        "PushedCheckpoint",
        "Statistics",
        "Suite",
        "Task",
        "TaskResult",
        "TensorDifference",
    ),
    "mindeval.client._sync_client": ("Client",),
    "mindeval.formats.errors": ("FormatError", "MindEvalError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "Capabilities",
    "Checkpoint",
    "CheckpointChanged",
    "CheckpointDiff",
    "Client",
    "Conflict",
    "Dataset",
    "EvaluationEvent",
    "EvaluationFailed",
    "EvaluationResult",
    "Failure",
    "FetchedCheckpoint",
    "FormatError",
    "InvalidRequest",
    "Metric",
    "MindEvalError",
    "NotFound",
    "PreconditionFailed",
    "Progress",
    "PushProgress",
    "PushedCheckpoint",
    "ServiceError",
    "ServiceUnavailable",
    "Statistics",
    "Suite",
    "Task",
    "TaskResult",
    "TensorDifference",
    "TlsFiles",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
