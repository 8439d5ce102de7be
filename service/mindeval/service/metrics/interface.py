"""The one interface of all metrics: a mergeable state, and the values that it reports.

A state holds what is needed to compute its metrics exactly, never an average. `update` adds a batch, `merge` adds
another state, `result` computes; none of the values depends on how the samples were split, ordered or repeated.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from mindeval.service.metrics.catalog import FAMILY_DIRECTIONS
from mindeval.service.metrics.errors import MetricError, MetricStateError
from mindeval.service.metrics.serial import Payload
from mindeval.service.metrics.settings import Settings, parse_settings, settings_text

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class MetricValue:
    """One number with everything needed to trust it.

    Attributes:
        name: The metric, such as `word_ppl`.
        value: The value; nan when it cannot be computed, and then `flags` says why.
        standard_error: In the unit of `value`; None when one unit, or no formula, gives no standard error.
        standard_error_method: How it was computed, such as `ratio_by_document`; `none` without a standard error.
        count: The denominator: tokens, words or bytes for per-token values, samples for means.
        higher_is_better: None when neither direction is better.
        signature: The settings that produced the value.
        flags: Conditions a reader must know of: `empty`, `non_finite`, `overflow`, and others documented by a family.
    """

    name: str
    value: float
    standard_error: float | None
    standard_error_method: str
    count: int
    higher_is_better: bool | None
    signature: str
    flags: tuple[str, ...] = ()


class MetricState(ABC):
    """The mergeable state of one family of metrics.

    Subclasses set `family`, `version` (of the serialised form), `settings_type` and `exact_over_samples`; those
    outside this package also `metrics`, which maps each metric's name to whether higher is better. A state
    that is exact over samples keeps one small row a sample: it can drop repeats across states, be compared in pairs,
    and its memory grows with the number of samples. Other states have bounded memory.
    """

    family: ClassVar[str]
    version: ClassVar[int] = 1
    settings_type: ClassVar[type[Settings]]
    exact_over_samples: ClassVar[bool] = True
    metrics: ClassVar[Mapping[str, bool | None]] = MappingProxyType({})

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = parse_settings(self.settings_type, settings or {})

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add one batch; the keyword arguments are the family's own. On an error the state is unchanged."""

    @abstractmethod
    def result(self, names: Sequence[str] | None = None) -> dict[str, MetricValue]:
        """Compute the named metrics, or all that this state's settings and data support.

        Args:
            names: Metric names of this family.

        Returns:
            The values by name, in the order asked for.

        Raises:
            MetricStateError: A name is unknown (`unknown_metric`).
        """

    @abstractmethod
    def _merge(self, other: Self) -> None:
        """Add `other`, which has the same family and settings."""

    @abstractmethod
    def _payload(self) -> Payload:
        """The state's content in canonical order, so that equal states give equal bytes."""

    @abstractmethod
    def _restore(self, payload: Payload) -> None:
        """Fill a new state from a payload; raise MetricStateError when it does not fit."""

    def merge(self, other: MetricState) -> None:
        """Add another state of the same family and settings, in place; `other` is not changed.

        Raises:
            MetricStateError: The family (`family_mismatch`) or the settings (`settings_mismatch`) differ, or both
                states hold a sample with different content (`conflicting_repeat`).
        """
        if type(other) is not type(self):
            raise MetricStateError(f"cannot merge {other.family!r} into {self.family!r}", reason="family_mismatch")
        if other.settings != self.settings:
            raise MetricStateError(
                f"cannot merge {other.signature()} into {self.signature()}", reason="settings_mismatch"
            )
        self._merge(other)

    def signature(self) -> str:
        """Settings as stable text, such as `family:language_modeling|v:1|ignore_index:-100`."""
        return f"family:{self.family}|v:{self.version}{settings_text(self.settings)}"

    @classmethod
    def directions(cls) -> Mapping[str, bool | None]:
        """Whether higher is better, by name, for all metrics of the family."""
        return cls.metrics or FAMILY_DIRECTIONS[cls.family]

    @classmethod
    def example_batch(cls) -> Mapping[str, Any]:
        """Keyword arguments of one `update` with a few samples, for checks; optional.

        Raises:
            NotImplementedError: The class offers none.
        """
        raise NotImplementedError(f"{cls.__name__} has no example batch")

    @classmethod
    def example_settings(cls) -> Mapping[str, Any]:
        """Settings that `example_batch` fits; the defaults unless a class needs others."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON-able data: header, settings, strings as lists and arrays as base64."""
        return self._payload().to_dict()

    def to_bytes(self) -> bytes:
        """The state as compact bytes: a JSON header and deflated little-endian arrays."""
        return self._payload().to_bytes()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a state from `to_dict`.

        Raises:
            MetricStateError: The data are damaged, of another family, or of a newer version.
        """
        return cls.from_payload(Payload.from_dict(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Rebuild a state from `to_bytes`; raises as `from_dict` does."""
        return cls.from_payload(Payload.from_bytes(data))

    @classmethod
    def from_payload(cls, payload: Payload) -> Self:
        """Rebuild a state from its decoded payload; raises as `from_dict` does."""
        if payload.family != cls.family:
            raise MetricStateError(
                f"the state is of family {payload.family!r}, not {cls.family!r}", reason="family_mismatch"
            )
        if not 1 <= payload.version <= cls.version:
            raise MetricStateError(
                f"{cls.family} state has version {payload.version}; this release reads up to {cls.version}",
                reason="unsupported_version",
            )
        try:
            state = cls(payload.settings)
            state._restore(payload)
        except MetricStateError:
            raise
        except (MetricError, KeyError, TypeError) as error:
            raise MetricStateError(f"damaged {cls.family} state: {error}", reason="damaged_state") from error
        return state

    def _new_payload(self) -> Payload:
        # Settings go through JSON once, so that a payload equals what a reader of its bytes sees.
        settings = json.loads(json.dumps(self.settings.as_dict()))
        return Payload(family=self.family, version=self.version, settings=settings)
