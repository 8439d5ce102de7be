"""What a custom metric is made of, and how the installed ones are found.

A package offers a metric as an entry point of the group `mindeval.metrics`; the name is the family's:

    [project.entry-points."mindeval.metrics"]
    numeric = "my_package.numeric:NumericState"

and the metric is a class of about thirty lines, of which docs/metrics.md has one in full: a subclass of `TableState`
that says which `Column`s are kept of each sample, fills them in `update`, and names an `Estimator` for each metric.
Repeats, merging, serialising, standard errors, clusters and paired comparison come from `TableState`; `mindeval metrics
check` replays the class's `example_batch` in many ways. Only installed packages can add metrics: nothing is imported
from a path or a message.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError, MetricStateError
from mindeval.service.metrics.estimators import Constant, Estimator, Given, Mean, Median, Ratio, Statistic
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
    "Median",
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
