"""The names: which metrics each family reports, which direction is better, which family a task type uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mindeval.service.metrics.errors import MetricStateError

_HIGHER, _LOWER, _NEITHER = True, False, None

# Direction by metric name. A name means the same in every family, so one table serves all.
_LANGUAGE_MODELING: dict[str, bool | None] = {
    "loss": _LOWER,
    "ppl": _LOWER,
    "token_ppl": _LOWER,
    "word_ppl": _LOWER,
    "byte_ppl": _LOWER,
    "bits_per_byte": _LOWER,
    "token_accuracy": _HIGHER,
    "top5_accuracy": _HIGHER,
}

_CLASSIFICATION: dict[str, bool | None] = {
    "accuracy": _HIGHER,
    **{
        f"{kind}{suffix}": _HIGHER
        for suffix in ("", "_binary", "_micro", "_macro", "_weighted")
        for kind in ("precision", "recall", "f1")
    },
    "matthews_corrcoef": _HIGHER,
    "cohen_kappa": _HIGHER,
    "roc_auc": _HIGHER,
    "log_loss": _LOWER,
    "brier": _LOWER,
    "ece": _LOWER,
}

_TABLES: dict[str, dict[str, bool | None]] = {
    "language_modeling": _LANGUAGE_MODELING,
    "classification": _CLASSIFICATION,
}

FAMILY_METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {family: tuple(table) for family, table in _TABLES.items()}
)
_DIRECTIONS: Mapping[str, bool | None] = MappingProxyType(
    {name: direction for table in _TABLES.values() for name, direction in table.items()}
)

# Task types as suites name them.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "language_modeling": "language_modeling",
        "perplexity": "language_modeling",
        "classification": "classification",
    }
)


def metric_names(family: str) -> tuple[str, ...]:
    """All metric names that a family can report; some need a setting or an optional input.

    Raises:
        MetricStateError: The family is unknown (`unknown_family`).
    """
    if family not in FAMILY_METRICS:
        raise MetricStateError(
            f"no metric family {family!r}; there are {', '.join(FAMILY_METRICS)}", reason="unknown_family"
        )
    return FAMILY_METRICS[family]


def family_of(task_type: str) -> str:
    """The family of metrics that a task of this type produces.

    Raises:
        MetricStateError: The task type is unknown (`unknown_task_type`).
    """
    if task_type not in FAMILIES:
        raise MetricStateError(
            f"no task type {task_type!r}; there are {', '.join(FAMILIES)}", reason="unknown_task_type"
        )
    return FAMILIES[task_type]


def higher_is_better(name: str) -> bool | None:
    """True or False by the metric's direction; None when neither direction is better, or the name is unknown."""
    return _DIRECTIONS.get(name)
