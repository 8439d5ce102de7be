"""Settings of a metric family: a frozen dataclass, checked when built, printed into the signature."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mindeval.service.metrics.errors import MetricSettingsError

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Base of the families' settings. Fields hold str, int, float, bool, None, or tuples of them."""

    def as_dict(self) -> dict[str, Any]:
        """The settings as a plain dict; tuples stay tuples."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def parse_settings(kind: type[S], values: Mapping[str, Any]) -> S:
    """Build settings from a mapping, as it comes from a suite's definition.

    Args:
        kind: The settings dataclass; its `__post_init__` checks the values.
        values: Setting by name; lists become tuples; a missing setting takes its default.

    Raises:
        MetricSettingsError: A name is unknown or a value is refused; `.field` names it.
    """
    known = {field.name for field in dataclasses.fields(kind)}
    for name in values:
        if name not in known:
            raise MetricSettingsError(
                f"unknown setting; known are {', '.join(sorted(known)) or 'none'}",
                field=str(name),
                reason="unknown_setting",
            )
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def settings_text(settings: Settings) -> str:
    """Settings as `|name:value` text in the order of declaration; settings that are None are left out."""
    parts = []
    for name, value in settings.as_dict().items():
        if value is None:
            continue
        if isinstance(value, tuple):
            value = _tuple_text(value)
        parts.append(f"|{name}:{value}")
    return "".join(parts)


def _tuple_text(values: tuple[object, ...]) -> str:
    # Quoted, because label names may hold any of the separators; a long label set is named by its digest.
    text = ",".join(repr(item) for item in values)
    if len(text) <= 200:
        return text
    return f"{len(values)}#{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"


def check_int(name: str, value: object, *, low: int | None = None, high: int | None = None) -> None:
    """Raise MetricSettingsError unless `value` is an int (not a bool) within the closed range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise MetricSettingsError(f"must be an integer, not {value!r}", field=name)
    if (low is not None and value < low) or (high is not None and value > high):
        raise MetricSettingsError(f"{value} is outside [{low}, {high}]", field=name)


def check_number(name: str, value: object, *, low: float | None = None, high: float | None = None) -> None:
    """Raise MetricSettingsError unless `value` is a finite number within the closed range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise MetricSettingsError(f"must be a finite number, not {value!r}", field=name)
    if (low is not None and value < low) or (high is not None and value > high):
        raise MetricSettingsError(f"{value} is outside [{low}, {high}]", field=name)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise MetricSettingsError unless `value` is one of `choices`."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise MetricSettingsError(f"{value!r} is not one of {', '.join(map(repr, choices))}", field=name)


def check_bool(name: str, value: object) -> None:
    """Raise MetricSettingsError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise MetricSettingsError(f"must be true or false, not {value!r}", field=name)
