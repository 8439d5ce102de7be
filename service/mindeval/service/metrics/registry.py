"""From names to states: create a state, or read one of any family."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mindeval.service.metrics.bounded_classification import BoundedClassificationState
from mindeval.service.metrics.classification import ClassificationState
from mindeval.service.metrics.custom import custom_state, installed_families
from mindeval.service.metrics.errors import MetricSettingsError, MetricStateError
from mindeval.service.metrics.frechet import FrechetState
from mindeval.service.metrics.generation import GenerationState
from mindeval.service.metrics.image_quality import ImageQualityState
from mindeval.service.metrics.interface import MetricState
from mindeval.service.metrics.language_modeling import LanguageModelingState
from mindeval.service.metrics.multilabel import MultilabelState
from mindeval.service.metrics.multiple_choice import MultipleChoiceState
from mindeval.service.metrics.retrieval import MatchingState, RetrievalState
from mindeval.service.metrics.serial import Payload

_STATES: Mapping[str, type[MetricState]] = MappingProxyType(
    {
        state.family: state
        for state in (
            LanguageModelingState,
            MultipleChoiceState,
            ClassificationState,
            BoundedClassificationState,
            MultilabelState,
            GenerationState,
            RetrievalState,
            MatchingState,
            ImageQualityState,
            FrechetState,
        )
    }
)


def state_type(family: str) -> type[MetricState]:
    """The state class of a family: one of this package's, or one that an installed package offers.

    Raises:
        MetricStateError: The family is unknown (`unknown_family`), or its package is broken.
    """
    found = _STATES.get(family) or custom_state(family)
    if found is None:
        known = ", ".join((*_STATES, *installed_families()))
        raise MetricStateError(f"no metric family {family!r}; there are {known}", reason="unknown_family")
    return found


def metric_names(family: str) -> tuple[str, ...]:
    """All metric names that a family can report; some need a setting or an optional input.

    Raises:
        MetricStateError: The family is unknown (`unknown_family`).
    """
    return tuple(state_type(family).directions())


def create(family: str, settings: Mapping[str, Any] | None = None) -> MetricState:
    """A new, empty state.

    Args:
        family: Such as `language_modeling`; see `FAMILIES` for the family of each task type.
        settings: The family's settings by name; missing ones take their defaults.

    Raises:
        MetricSettingsError: The family or a setting is unknown, or a value is refused; `.field` names it.
    """
    try:
        kind = state_type(family)
    except MetricStateError as error:
        raise MetricSettingsError(str(error), field="family", reason=error.reason) from error
    return kind(settings)


def state_from_dict(data: Mapping[str, Any]) -> MetricState:
    """Read a state of any family from `MetricState.to_dict`; raises MetricStateError when it cannot be read."""
    payload = Payload.from_dict(data)
    return state_type(payload.family).from_payload(payload)


def state_from_bytes(data: bytes) -> MetricState:
    """Read a state of any family from `MetricState.to_bytes`; raises MetricStateError when it cannot be read."""
    payload = Payload.from_bytes(data)
    return state_type(payload.family).from_payload(payload)
