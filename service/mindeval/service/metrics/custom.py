"""What a custom metric is made of, and how the installed ones are found.

A package offers a metric as an entry point of the group `mindeval.metrics`; the name is the family's:

    [project.entry-points."mindeval.metrics"]
    numeric = "my_package.numeric:NumericState"

and the metric is a class of about thirty lines:

    from collections.abc import Sequence
    from dataclasses import dataclass
    import numpy as np
    from mindeval.service.metrics.custom import Column, Estimator, Mean, Rows, Settings, TableState, id_list

    @dataclass(frozen=True)
    class NumericSettings(Settings):
        scale: float = 1.0

    class NumericState(TableState):
        family = "numeric"
        settings_type = NumericSettings
        metrics = {"mae": False}                       # name: whether higher is better

        def _columns(self) -> Sequence[Column]:        # what is kept of each sample
            return (Column("error", "float64"),)

        def update(self, *, sample_ids, predictions, targets) -> None:
            errors = np.abs(np.asarray(predictions, float) - np.asarray(targets, float))
            self._table.add(id_list(sample_ids), {"error": errors * self.settings.scale})

        def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
            return {name: Mean(len(rows), rows["error"]) for name in names}

        @classmethod
        def example_batch(cls):                        # for the checks of `checking.check_family`
            return {"sample_ids": ["a", "b", "c"], "predictions": [1.0, 2.0, 4.0], "targets": [1.0, 2.5, 3.0]}

Repeats, merging, serialising, standard errors, clusters and paired comparison then come from `TableState`. Only
installed packages can add metrics: nothing is imported from a path or a message.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError, MetricStateError
from mindeval.service.metrics.estimators import Constant, Estimator, Given, Mean, Ratio, Statistic
from mindeval.service.metrics.interface import MetricState, MetricValue
from mindeval.service.metrics.settings import Settings
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState

GROUP = "mindeval.metrics"

__all__ = [
    "GROUP",
    "Column",
    "Constant",
    "Estimator",
    "Given",
    "Mean",
    "MetricInputError",
    "MetricSettingsError",
    "MetricState",
    "MetricStateError",
    "MetricValue",
    "Ratio",
    "Rows",
    "Settings",
    "Statistic",
    "TableState",
    "check_lengths",
    "custom_state",
    "group_list",
    "id_list",
    "installed_families",
]


def installed_families() -> tuple[str, ...]:
    """Names of the custom families that installed packages offer, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


@lru_cache(maxsize=64)
def custom_state(family: str) -> type[MetricState] | None:
    """The state class of a custom family, or None when no installed package offers it.

    Raises:
        MetricStateError: The entry point cannot be imported or is no state class of that family (`broken_plugin`), or
            two packages offer the family (`ambiguous_plugin`).
    """
    points = [point for point in entry_points(group=GROUP) if point.name == family]
    if not points:
        return None
    if len({point.value for point in points}) > 1:
        raise MetricStateError(f"several packages offer the family {family!r}", reason="ambiguous_plugin")
    return _load(points[0])


def _load(point: EntryPoint) -> type[MetricState]:
    try:
        found = point.load()
    except Exception as error:  # an import runs other people's code, which may raise anything
        raise MetricStateError(f"{point.value} cannot be imported: {error}", reason="broken_plugin") from error
    if not isinstance(found, type) or not issubclass(found, MetricState):
        raise MetricStateError(f"{point.value} is not a MetricState", reason="broken_plugin")
    if getattr(found, "family", None) != point.name or not found.metrics:
        raise MetricStateError(
            f"{point.value} must have family {point.name!r} and name its metrics", reason="broken_plugin"
        )
    return found
