"""From names to states: create a state, or read one of any family."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mindeval.service.metrics.classification import ClassificationState
from mindeval.service.metrics.errors import MetricSettingsError, MetricStateError
from mindeval.service.metrics.interface import MetricState
from mindeval.service.metrics.language_modeling import LanguageModelingState
from mindeval.service.metrics.serial import Payload

_STATES: Mapping[str, type[MetricState]] = MappingProxyType(
    {
        state.family: state
        for state in (
            LanguageModelingState,
            ClassificationState,
        )
    }
)


def state_type(family: str) -> type[MetricState]:
    """The state class of a family.

    Raises:
        MetricStateError: The family is unknown (`unknown_family`).
    """
    if family not in _STATES:
        raise MetricStateError(f"no metric family {family!r}; there are {', '.join(_STATES)}", reason="unknown_family")
    return _STATES[family]


def create(family: str, settings: Mapping[str, Any] | None = None) -> MetricState:
    """A new, empty state.

    Args:
        family: Such as `language_modeling`; see `FAMILIES` for the family of each task type.
        settings: The family's settings by name; missing ones take their defaults.

    Raises:
        MetricSettingsError: The family or a setting is unknown, or a value is refused; `.field` names it.
    """
    if family not in _STATES:
        raise MetricSettingsError(
            f"no metric family {family!r}; there are {', '.join(_STATES)}", field="family", reason="unknown_family"
        )
    return state_type(family)(settings)


def state_from_dict(data: Mapping[str, Any]) -> MetricState:
    """Read a state of any family from `MetricState.to_dict`; raises MetricStateError when it cannot be read."""
    payload = Payload.from_dict(data)
    return state_type(payload.family).from_payload(payload)


def state_from_bytes(data: bytes) -> MetricState:
    """Read a state of any family from `MetricState.to_bytes`; raises MetricStateError when it cannot be read."""
    payload = Payload.from_bytes(data)
    return state_type(payload.family).from_payload(payload)
