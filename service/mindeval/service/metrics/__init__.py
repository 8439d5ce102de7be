"""Exact, mergeable evaluation metrics; needs numpy and, for some families, the metric libraries. No MindSpore.

    from mindeval.service.metrics import create

    state = create("classification", {"labels": ["negative", "positive"]})
    state.update(sample_ids=["a", "b"], labels=[0, 1], predictions=[0, 0])
    print(state.result(["accuracy"])["accuracy"])

Values do not depend on batches, shards, ranks, order, padding or repeats: states hold exact sums, and `merge` joins
states made anywhere. `to_bytes` and `to_dict` carry a state between processes.
"""

from mindeval.service.metrics.catalog import FAMILIES, family_of, higher_is_better
from mindeval.service.metrics.comparison import Comparison, compare
from mindeval.service.metrics.errors import MetricError, MetricInputError, MetricSettingsError, MetricStateError
from mindeval.service.metrics.interface import MetricState, MetricValue
from mindeval.service.metrics.registry import create, metric_names, state_from_bytes, state_from_dict

__all__ = [
    "FAMILIES",
    "Comparison",
    "MetricError",
    "MetricInputError",
    "MetricSettingsError",
    "MetricState",
    "MetricStateError",
    "MetricValue",
    "compare",
    "create",
    "family_of",
    "higher_is_better",
    "metric_names",
    "state_from_bytes",
    "state_from_dict",
]
