"""Paired comparison of two states over the same samples: is the second checkpoint better than the first?

Checkpoints of one run err on much the same samples, so the difference is known far better than either value. Its
standard error comes from differences per sample: of first-order effects where the metric has them, else of a
bootstrap that resamples both states alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindeval.service.metrics.errors import MetricStateError
from mindeval.service.metrics.estimators import Estimator, Ratio
from mindeval.service.metrics.exact import FloatArray, IntArray
from mindeval.service.metrics.interface import MetricState
from mindeval.service.metrics.student import quantile, two_sided
from mindeval.service.metrics.tabular import TableState
from mindeval.service.metrics.uncertainty import linear_standard_error, spread, unit_count


@dataclass(frozen=True)
class Comparison:
    """How a metric differs between two states over the same samples.

    Attributes:
        name: The metric.
        before: Its value in the first state.
        after: Its value in the second.
        difference: `after - before`.
        standard_error: Of the difference; None with fewer than two independent units, or undefined values.
        standard_error_method: Such as `paired_mean_by_sample`, or `none`.
        interval: Bounds of the confidence interval of the difference, or None.
        confidence: Of the interval.
        p_value: Two-sided, of no difference; None without a standard error.
        verdict: `better` or `worse` for the second state when the interval excludes 0; `different` when no direction
            is better; `indistinguishable` when it includes 0; `undecided` without an interval.
        units: Number of independent units: clusters, or samples.
        flags: Conditions of either value, such as `non_finite`.
    """

    name: str
    before: float
    after: float
    difference: float
    standard_error: float | None
    standard_error_method: str
    interval: tuple[float, float] | None
    confidence: float
    p_value: float | None
    verdict: str
    units: int
    flags: tuple[str, ...] = ()


def compare(
    before: MetricState, after: MetricState, names: Sequence[str] | None = None, *, confidence: float = 0.95
) -> dict[str, Comparison]:
    """Compare two states sample by sample.

    Args:
        before: The state of the first checkpoint.
        after: The state of the second, with the same settings, over the same samples.
        names: The metrics; by default those of `before.result()`.
        confidence: Of the intervals, in (0, 1).

    Returns:
        A comparison by name.

    Raises:
        MetricStateError: The states keep no samples (`not_paired`), their settings or samples differ
            (`settings_mismatch`, `different_samples`), or a name is unknown (`unknown_metric`).
        ValueError: The confidence is out of range.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie in (0, 1), not {confidence}")
    if not isinstance(before, TableState) or not isinstance(after, TableState):
        raise MetricStateError("only states that are exact over samples can be paired", reason="not_paired")
    if before.signature() != after.signature():
        raise MetricStateError(
            f"cannot compare {before.signature()} with {after.signature()}", reason="settings_mismatch"
        )
    left, right = before.rows(), after.rows()
    if left.ids != right.ids or left.groups != right.groups:
        apart = sorted(set(left.ids) ^ set(right.ids))
        raise MetricStateError(
            f"the states hold different samples or groups; {len(apart)} samples are in one only",
            reason="different_samples",
            sample_id=apart[0] if apart else None,
        )
    wanted = before.check_names(names)
    clustering = before.clustering(left)
    old, new = before.estimators(wanted), after.estimators(wanted)
    units = unit_count(len(left), clustering.codes)
    comparisons = {}
    for name in wanted:
        first, second = old[name].value(), new[name].value()
        difference = second - first
        error = interval = p_value = None
        linear = _linear(old[name], new[name], clustering.codes, confidence, units)
        if linear is not None:
            error, interval, p_value = linear
        elif old[name].kind == new[name].kind == "bootstrap" and units >= 2:
            samples = np.concatenate(
                [
                    np.subtract(new[name].resampled(weights), old[name].resampled(weights))
                    for weights in before.bootstrap().weights(len(left), clustering.codes)
                ]
            )
            error, interval = spread(samples), _percentiles(samples, confidence)
            p_value = _bootstrap_p(samples)
        comparisons[name] = Comparison(
            name=name,
            before=first,
            after=second,
            difference=difference,
            standard_error=error,
            standard_error_method="none" if error is None else f"paired_{old[name].kind}_by_{clustering.unit}",
            interval=interval,
            confidence=confidence,
            p_value=p_value,
            verdict=_verdict(interval, before.directions()[name]),
            units=units,
            flags=tuple(dict.fromkeys((*old[name].flags, *new[name].flags))),
        )
    return comparisons


def _linear(
    old: Estimator, new: Estimator, clusters: IntArray | None, confidence: float, units: int
) -> tuple[float, tuple[float, float], float] | None:
    """Standard error, interval and p-value by differences of first-order effects; None where there are none.

    Perplexities are compared by their logarithms: exp is monotone, so the verdict must be that of the loss. The
    interval of the ratio is then shown as differences from the first value.
    """
    scale, exponential = old.value(), False
    if isinstance(old, Ratio) and isinstance(new, Ratio) and old.link == new.link == "exp" and math.isfinite(scale):
        old, new, exponential = replace(old, link="identity"), replace(new, link="identity"), True
    effects = old.influence(), new.influence()
    if effects[0] is None or effects[1] is None:
        return None
    error = linear_standard_error(effects[1] - effects[0], clusters)
    if error is None:
        return None
    difference = new.value() - old.value()
    reach = quantile(confidence, units - 1) * error
    p_value = two_sided(_ratio(difference, error), units - 1)
    bounds = (difference - reach, difference + reach)
    if not exponential:
        return error, bounds, p_value
    with np.errstate(over="ignore"):
        low, high = (float(scale * np.expm1(bound)) for bound in bounds)
        return float(scale * np.exp(difference) * error), (low, high), p_value


def _ratio(difference: float, error: float) -> float:
    if error:
        return difference / error
    return math.inf if difference else 0.0


def _percentiles(samples: FloatArray, confidence: float) -> tuple[float, float]:
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(samples, (tail, 1.0 - tail))
    return float(low), float(high)


def _bootstrap_p(samples: FloatArray) -> float:
    # Twice the smaller tail; one is added so that a finite number of resamples never claims certainty.
    below, above = int((samples <= 0).sum()), int((samples >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (samples.size + 1))


def _verdict(interval: tuple[float, float] | None, direction: bool | None) -> str:
    if interval is None or math.isnan(interval[0]) or math.isnan(interval[1]):
        return "undecided"
    if interval[0] <= 0.0 <= interval[1]:
        return "indistinguishable"
    if direction is None:
        return "different"
    return "better" if (interval[0] > 0.0) == direction else "worse"
