"""Checks that a metric keeps the promises of `MetricState`: the same bits however its samples arrive.

Meant for the authors of custom metrics, and run on every metric of this package. A check needs a factory of empty
states and one batch of samples; it replays the batch in many ways and compares every bit of the results.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindeval.service.metrics.examples import EXAMPLES
from mindeval.service.metrics.registry import state_type
from mindeval.service.metrics.replays import CHECKS, Batch, Factory, Subject, bits, sample_count, select

__all__ = ["CheckFailure", "CheckReport", "bits", "check_family", "check_metric", "sample_count", "select"]


@dataclass(frozen=True)
class CheckFailure:
    """One broken promise.

    Attributes:
        check: The check's name, such as `shards`.
        detail: What differed, or the error that was raised.
        trial: The trial's number; the same seed and trial repeat it.
        example: The states of the failing trial: for each, the positions in the batch of the samples of each update.
    """

    check: str
    detail: str
    trial: int
    example: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """The outcome of `check_metric`.

    Attributes:
        checks: Names of all checks that ran.
        failures: At most one failure a check, the first seen.
        samples: Number of samples in the batch.
    """

    checks: tuple[str, ...]
    failures: tuple[CheckFailure, ...]
    samples: int

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures


def check_metric(
    factory: Factory,
    batch: Batch,
    *,
    names: Sequence[str] | None = None,
    trials: int = 20,
    seed: int = 0,
    overlaps: bool = True,
) -> CheckReport:
    """Replay a batch in many ways and compare the results bit by bit.

    Args:
        factory: Makes an empty state; called often.
        batch: Keyword arguments of one `update`: sequences or arrays whose first axis is the sample, or None.
        names: The metrics to compare; all by default.
        trials: Random replays of each check.
        seed: Seed of the replays.
        overlaps: Whether states that share samples may be merged; False for states of bounded memory.

    Returns:
        The report. An exception inside the metric is a failure of the check that met it, not an error here.

    Raises:
        ValueError: The batch has no samples, or its arguments differ in length.
    """
    samples = sample_count(batch)
    if samples == 0:
        raise ValueError("the batch has no samples")
    failures = []
    checks = [check for check in CHECKS if overlaps or not check.overlapping]
    for check in checks:
        generator = random.Random(f"{seed}/{check.name}")
        for trial in range(trials):
            subject = Subject(factory, batch, samples, names)
            try:
                detail = check.replay(subject, generator)
            except Exception as error:  # a metric under test may raise anything, and each is a finding
                detail = f"{type(error).__name__}: {error}"
            if detail:
                example = tuple(tuple(tuple(update) for update in updates) for updates in subject.made)
                failures.append(CheckFailure(check.name, detail, trial, example))
                break
    return CheckReport(tuple(check.name for check in checks), tuple(failures), samples)


def check_family(
    family: str, settings: Mapping[str, Any] | None = None, *, trials: int = 20, seed: int = 0
) -> CheckReport:
    """Run `check_metric` on an installed family with its own example.

    Args:
        family: One of this package's families, or of an installed package's.
        settings: Replace those of the example, one by one.
        trials: Random replays of each check.
        seed: Seed of the replays.

    Raises:
        MetricError: The family is unknown or its package broken, or a setting is refused.
        NotImplementedError: The family has no example batch.
        ValueError: Its example batch has no samples, or arguments that differ in length.
    """
    kind = state_type(family)
    if family in EXAMPLES:
        example = EXAMPLES[family]()
        own, batch = example.settings, example.batch
    else:
        own, batch = kind.example_settings(), kind.example_batch()
    chosen = {**own, **(settings or {})}
    kind(chosen)
    return check_metric(lambda: kind(chosen), batch, trials=trials, seed=seed, overlaps=kind.exact_over_samples)
