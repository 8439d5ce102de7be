"""Reading evaluations: from rows of three tables to records."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from mindeval.service.storage.records import EvaluationRecord, Failure, MetricRecord, State, Statistics, TaskRecord
from mindeval.service.storage.sql.schema import metric_results, task_outcomes

_UIDS_A_QUERY = 500


def evaluation_records(connection: Connection, rows: Sequence[Row[Any]]) -> list[EvaluationRecord]:
    """Rows of the table evaluations, with the outcomes of their tasks."""
    tasks = _tasks(connection, [row.uid for row in rows])
    return [_evaluation(row, tuple(tasks.get(row.uid, ()))) for row in rows]


def insert_task(connection: Connection, uid: str, position: int, task: TaskRecord) -> None:
    """Writes the outcome of a task."""
    connection.execute(
        insert(task_outcomes).values(
            uid=uid,
            task=task.task,
            position=position,
            expected_count=task.expected_count,
            scored_count=task.scored_count,
            failed_count=task.failed_count,
            device_seconds=task.device_seconds,
            failure=failure_text(task.failure),
        )
    )
    values = [
        {
            "uid": uid,
            "task": task.task,
            "metric": result.metric,
            "position": place,
            "value": None if math.isnan(result.value) else result.value,
            "standard_error": result.standard_error,
            "standard_error_method": result.standard_error_method,
            "count": result.count,
            "higher_is_better": result.higher_is_better,
            "signature": result.signature,
            "flags": json.dumps(result.flags),
        }
        for place, result in enumerate(task.results)
    ]
    if values:
        connection.execute(insert(metric_results), values)


def failure_text(failure: Failure | None) -> str | None:
    """A failure as it is kept in a column."""
    return None if failure is None else json.dumps(asdict(failure), sort_keys=True)


def statistics_text(statistics: Statistics | None) -> str | None:
    """Statistics as they are kept in a column."""
    return None if statistics is None else json.dumps(asdict(statistics), sort_keys=True)


def _failure(text: str | None) -> Failure | None:
    return None if text is None else Failure(**json.loads(text))


def _tasks(connection: Connection, uids: Sequence[str]) -> dict[str, list[TaskRecord]]:
    results: dict[tuple[str, str], list[MetricRecord]] = defaultdict(list)
    tasks: dict[str, list[TaskRecord]] = defaultdict(list)
    for begin in range(0, len(uids), _UIDS_A_QUERY):
        part = uids[begin : begin + _UIDS_A_QUERY]
        metrics = select(metric_results).where(metric_results.c.uid.in_(part)).order_by(metric_results.c.position)
        for row in connection.execute(metrics):
            results[row.uid, row.task].append(_metric(row))
        outcomes = select(task_outcomes).where(task_outcomes.c.uid.in_(part)).order_by(task_outcomes.c.position)
        for row in connection.execute(outcomes):
            tasks[row.uid].append(
                TaskRecord(
                    row.task,
                    row.expected_count,
                    row.scored_count,
                    row.failed_count,
                    tuple(results[row.uid, row.task]),
                    _failure(row.failure),
                    row.device_seconds,
                )
            )
    return tasks


def _metric(row: Row[Any]) -> MetricRecord:
    # `count` and others are methods of a row, so columns are taken by name.
    values = row._mapping
    return MetricRecord(
        metric=values["metric"],
        value=math.nan if values["value"] is None else values["value"],
        standard_error=values["standard_error"],
        standard_error_method=values["standard_error_method"],
        count=values["count"],
        higher_is_better=values["higher_is_better"],
        signature=values["signature"],
        flags=tuple(json.loads(values["flags"])),
    )


def _evaluation(row: Row[Any], tasks: tuple[TaskRecord, ...]) -> EvaluationRecord:
    return EvaluationRecord(
        serial=row.serial,
        uid=row.uid,
        project=row.project,
        id=row.id,
        suite=row.suite,
        suite_version=row.suite_version,
        dataset_versions=tuple(json.loads(row.dataset_versions)),
        checkpoint=row.checkpoint,
        checkpoint_uri=row.checkpoint_uri,
        evaluator_build=row.evaluator_build,
        run=row.run,
        step=row.step,
        epoch=row.epoch,
        timeout_s=row.timeout_s,
        parameters=json.loads(row.parameters),
        state=State(row.state),
        attempt=row.attempt,
        attempt_token=row.attempt_token,
        revision=row.revision,
        last_sequence=row.last_sequence,
        tasks=tasks,
        failure=_failure(row.failure),
        superseded_by=row.superseded_by,
        create_us=row.create_us,
        start_us=row.start_us,
        end_us=row.end_us,
        statistics=None if row.statistics is None else Statistics(**json.loads(row.statistics)),
    )
