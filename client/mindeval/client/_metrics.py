"""Training metrics: from plain mappings to messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mindeval.formats.errors import FormatError
from mindeval.v1 import run_pb2

METRICS_PER_CALL = 1_000
_INTEGERS = frozenset({"step", "host_memory_bytes", "device_memory_bytes"})
_NUMBERS = frozenset(
    {"epoch", "loss", "step_time_ms", "samples_per_second", "tokens_per_second", "device_utilization", "time"}
)


def training_point(point: Mapping[str, Any]) -> run_pb2.TrainingMetrics:
    """A TrainingMetrics message. Fields that are None are left out.

    Args:
        point: Fields of the message by name; `time` in seconds since 1970.

    Raises:
        FormatError: INVALID_FIELD; metadata name the field.
    """
    if not isinstance(point, Mapping):
        raise FormatError("INVALID_FIELD", "points: each must be a mapping", {"field": "points"})
    message = run_pb2.TrainingMetrics()
    if point.get("step") is None:
        raise _invalid("step", "is required")
    for name, value in point.items():
        if value is None:
            continue
        if name in _INTEGERS:
            setattr(message, name, _integer(name, value))
        elif name not in _NUMBERS:
            raise _invalid(str(name), "is not a training metric")
        elif name == "time":
            seconds = _number(name, value)
            if not 0 <= seconds < 2**33:
                raise _invalid(name, "must be seconds since 1970")
            message.time.seconds = math.floor(seconds)
            message.time.nanos = int((seconds - math.floor(seconds)) * 1e9)
        else:
            setattr(message, name, _number(name, value))
    return message


def _integer(name: str, value: Any) -> int:
    number = _number(name, value)
    if not (number == math.floor(number) if math.isfinite(number) else False) or not 0 <= number < 2**63:
        raise _invalid(name, "must be a whole number from 0")
    return int(value)


def _number(name: str, value: Any) -> float:
    try:
        # numpy's scalars, too; text is refused although float() would take it.
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _invalid(name, f"must be a number, not {type(value).__name__}") from None


def _invalid(field: str, rule: str) -> FormatError:
    return FormatError("INVALID_FIELD", f"points: {field} {rule}", {"field": field})
