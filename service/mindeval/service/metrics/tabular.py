"""Base of the states that keep one row of statistics a sample."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mindeval.service.metrics.errors import MetricStateError
from mindeval.service.metrics.estimators import Estimator
from mindeval.service.metrics.exact import IntArray
from mindeval.service.metrics.interface import MetricState, MetricValue
from mindeval.service.metrics.serial import Payload
from mindeval.service.metrics.table import Column, Rows, SampleTable
from mindeval.service.metrics.uncertainty import Bootstrap, standard_errors

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Clustering:
    """Which units are independent of each other.

    Attributes:
        codes: Cluster numbers of shape (n,), or None when each row is a unit.
        unit: The unit's name, as it appears in `standard_error_method`.
    """

    codes: IntArray | None
    unit: str


class TableState(MetricState):
    """A state that keeps one row a sample; the subclasses say which columns, and what to compute from them."""

    exact_over_samples: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(settings)
        self._table = SampleTable(self._columns())

    @abstractmethod
    def _columns(self) -> Sequence[Column]:
        """The columns under this state's settings."""

    @abstractmethod
    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        """An estimator for each of the names."""

    def sample_ids(self) -> list[str]:
        """The ids of all samples in the state, ascending."""
        return list(self._table.rows().ids)

    def counts(self) -> dict[str, int]:
        """How much was scored."""
        return {"samples": len(self._table)}

    def default_names(self) -> tuple[str, ...]:
        """The metrics that `result` computes when none are named."""
        return tuple(self.directions())

    def bootstrap(self) -> Bootstrap:
        """How values without a formula for the standard error are resampled."""
        return Bootstrap()

    def rows(self) -> Rows:
        """The rows of all samples in canonical order; do not write to their arrays."""
        return self._table.rows()

    def estimators(self, names: Sequence[str]) -> dict[str, Estimator]:
        """Estimators of known metrics over all samples."""
        return self._estimators(self._table.rows(), names)

    def result(self, names: Sequence[str] | None = None) -> dict[str, MetricValue]:
        """See `MetricState.result`."""
        wanted = self.check_names(names)
        rows = self._table.rows()
        clustering = self.clustering(rows)
        signature = self.signature()
        values = {}
        estimators = self._estimators(rows, wanted)
        errors = standard_errors(estimators, clustering.codes, self.bootstrap())
        for name, estimator in estimators.items():
            value, error = estimator.value(), errors[name]
            flags = list(estimator.flags)
            if not len(rows):
                flags.append("empty")
            if math.isinf(value) and estimator.kind == "ratio":
                flags.append("overflow")
            values[name] = MetricValue(
                name=name,
                value=value,
                standard_error=error,
                standard_error_method="none" if error is None else f"{estimator.kind}_by_{clustering.unit}",
                count=estimator.count,
                higher_is_better=self.directions()[name],
                signature=signature,
                flags=tuple(flags),
            )
        return values

    def check_names(self, names: Sequence[str] | None) -> list[str]:
        """The names to compute, without repeats; raises MetricStateError (`unknown_metric`)."""
        known = self.directions()
        for name in names or ():
            if name not in known:
                raise MetricStateError(
                    f"{self.family} has no metric {name!r}; it has {', '.join(known)}", reason="unknown_metric"
                )
        return list(dict.fromkeys(self.default_names() if names is None else names))

    def clustering(self, rows: Rows) -> Clustering:
        """Which rows are independent of each other: groups, where they are given."""
        codes = rows.clusters()
        return Clustering(codes, "sample" if codes is None else "group")

    def _merge(self, other: Self) -> None:
        self._table.merge(other._table)

    def _payload(self) -> Payload:
        payload = self._new_payload()
        self._table.fill_payload(payload)
        return payload

    def _restore(self, payload: Payload) -> None:
        self._table.restore(payload)
