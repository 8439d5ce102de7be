"""From what a runner reports to what is stored: metric states become values, tasks become a verdict."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mindeval.service.execution.job import TaskReport
from mindeval.service.metrics import MetricError, MetricValue, state_from_dict
from mindeval.service.storage.records import Failure, MetricRecord, TaskRecord

_log = logging.getLogger(__name__)

INCOMPLETE = "incomplete"
"""Flag of a value that does not cover every sample of its dataset."""


def scored_task(report: TaskReport, metrics: Sequence[str]) -> TaskRecord:
    """Computes the values of a task; takes time with large states.

    Args:
        report: With the metric state.
        metrics: Names to compute; all when empty.
    """
    counts = (report.expected_count, report.scored_count, report.failed_count)
    try:
        values = state_from_dict(report.state).result(metrics or None)
    except MetricError as error:
        _log.error("a metric state cannot be used: %s", error, extra={"task": report.task})
        failure = Failure(
            "RUNNER_ERROR",
            f"task {report.task!r}: the runner's metric state cannot be used: {error}",
            {"task": report.task},
        )
        return TaskRecord(report.task, *counts, failure=failure, device_seconds=report.device_seconds)
    complete = report.failed_count == 0 and report.scored_count == report.expected_count
    results = tuple(_metric(value, complete) for value in values.values())
    return TaskRecord(report.task, *counts, results=results, device_seconds=report.device_seconds)


def failed_task(task: str, failure: Failure) -> TaskRecord:
    """A task that could not be scored."""
    return TaskRecord(task, failure=Failure(failure.reason, failure.message, {"task": task, **failure.metadata}))


def unreported_task(task: str) -> TaskRecord:
    """A task about which its runner said nothing before it called the job finished."""
    return failed_task(task, Failure("RUNNER_ERROR", f"task {task!r}: the runner reported no result"))


def verdict(tasks: Sequence[TaskRecord]) -> Failure | None:
    """Why an evaluation with these outcomes FAILED; None when it SUCCEEDED."""
    failed = [task for task in tasks if task.failure is not None]
    if not failed:
        return None
    if len(failed) == 1:
        return failed[0].failure
    reasons = {f"task.{task.task}": task.failure.reason for task in failed if task.failure is not None}
    listed = "; ".join(f"{task.task}: {task.failure.message}" for task in failed if task.failure is not None)
    return Failure("TASKS_FAILED", f"{len(failed)} of {len(tasks)} tasks failed: {listed}", reasons)


def _metric(value: MetricValue, complete: bool) -> MetricRecord:
    flags = tuple(value.flags) if complete else (*value.flags, INCOMPLETE)
    return MetricRecord(
        metric=value.name,
        value=float(value.value),
        standard_error=None if value.standard_error is None else float(value.standard_error),
        standard_error_method=value.standard_error_method,
        count=int(value.count),
        higher_is_better=value.higher_is_better,
        signature=value.signature,
        flags=flags,
    )
