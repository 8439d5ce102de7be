"""Types of tasks and their settings, checked without loading MindSpore.

The service checks every suite with `check_task` before anything runs, and a runner checks again what it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from mindeval.formats.errors import FormatError
from mindeval.service.metrics import metric_names

TASK_TYPES: Mapping[str, str] = MappingProxyType({"language_modeling": "language_modeling"})
"""The metric family of each task type."""

PREFIXES = ("auto", "none")
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
MAX_BATCH_TOKENS = 1 << 20
MAX_LENGTH = 1 << 20


@dataclass(frozen=True)
class LanguageModelingSettings:
    """Settings of a language_modeling task.

    Attributes:
        max_length: Tokens in a window, at most the model's own; None for the model's own.
        prefix: What stands before the first token of a document. "auto": the model's BOS token, else its EOS token, so
            that the first token is scored as well. "none": nothing, and the first token is not scored.
        batch_tokens: About how many tokens the device takes at once. It changes speed and memory, not the values.
        compute_dtype: Type of the network's own computation on Ascend; the log-softmax is float32 always. The CPU
            target computes in float32 only, and so does a MindIR graph in the type it was exported with.
    """

    max_length: int | None = None
    prefix: str = "auto"
    batch_tokens: int = 4096
    compute_dtype: str = "float32"

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> LanguageModelingSettings:
        """Reads the settings of a suite; whole numbers may arrive as floats, as in a protobuf Struct.

        Raises:
            FormatError: INVALID_FIELD; metadata name the setting.
        """
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise _invalid(name, f"is not a setting of language_modeling; there are {', '.join(known)}")
        max_length = settings.get("max_length")
        return cls(
            max_length=None if max_length is None else _whole_number("max_length", max_length, 2, MAX_LENGTH),
            prefix=_choice("prefix", settings.get("prefix", cls.prefix), PREFIXES),
            batch_tokens=_whole_number(
                "batch_tokens", settings.get("batch_tokens", cls.batch_tokens), 1, MAX_BATCH_TOKENS
            ),
            compute_dtype=_choice("compute_dtype", settings.get("compute_dtype", cls.compute_dtype), COMPUTE_DTYPES),
        )


def check_task(task_type: str, metrics: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Checks a task of a suite.

    Args:
        task_type: Such as "language_modeling"; `TASK_TYPES` lists them.
        metrics: Names of metrics; empty for all.
        settings: As written in the suite.

    Raises:
        FormatError: UNKNOWN_TASK_TYPE, UNKNOWN_METRIC or INVALID_FIELD; metadata name the value at fault.
    """
    if task_type not in TASK_TYPES:
        raise FormatError(
            "UNKNOWN_TASK_TYPE",
            f"no task type {str(task_type)[:80]!r}; there are {', '.join(TASK_TYPES)}",
            {"field": "type", "type": str(task_type)[:80]},
        )
    available = metric_names(TASK_TYPES[task_type])
    for metric in metrics:
        if metric not in available:
            raise FormatError(
                "UNKNOWN_METRIC",
                f"{task_type} does not compute {str(metric)[:80]!r}; it computes {', '.join(available)}",
                {"field": "metrics", "metric": str(metric)[:80]},
            )
    LanguageModelingSettings.parse(settings)


def _whole_number(name: str, value: Any, low: int, high: int) -> int:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value != value or value in (float("inf"), float("-inf")) or int(value) != value:
        raise _invalid(name, f"must be a whole number, not {str(value)[:80]!r}")
    if not low <= value <= high:
        raise _invalid(name, f"must be from {low} to {high}, not {str(value)[:80]}")
    return int(value)


def _choice(name: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise _invalid(name, f"must be one of {', '.join(choices)}, not {str(value)[:80]!r}")
    return value


def _invalid(name: str, rule: str) -> FormatError:
    field = f"settings.{str(name)[:80]}"
    return FormatError("INVALID_FIELD", f"{field} {rule}", {"field": field})
