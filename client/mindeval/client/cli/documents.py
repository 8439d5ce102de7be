"""Documents of --json. Keys are only ever added; times are RFC 3339 in UTC; numbers that are not finite are the texts
"NaN", "Infinity" and "-Infinity", as in the JSON form of protobuf.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from mindeval.client._results import (
    Checkpoint,
    CheckpointDiff,
    Dataset,
    EvaluationResult,
    Failure,
    Metric,
    PushedCheckpoint,
    Suite,
)


def evaluation(result: EvaluationResult) -> dict[str, Any]:
    """An evaluation."""
    spent = result.statistics
    return {
        "name": result.name,
        "uid": result.uid,
        "etag": result.etag,
        "state": result.state,
        "suite": result.suite,
        "checkpoint": result.checkpoint,
        "run": result.run,
        "step": result.step,
        "epoch": number(result.epoch),
        "parameters": dict(result.parameters),
        "metrics": {name: _metric(metric) for name, metric in result.metrics.items()},
        "tasks": [
            {
                "name": task.name,
                "expected_count": task.expected_count,
                "scored_count": task.scored_count,
                "failed_count": task.failed_count,
                "device_seconds": number(task.device_seconds),
                "error": _failure(task.error),
            }
            for task in result.tasks
        ],
        "error": _failure(result.error),
        "superseded_by": result.superseded_by,
        "attempt": result.attempt,
        "last_sequence": result.last_sequence,
        "evaluator_build": result.evaluator_build,
        "create_time": _time(result.create_time),
        "start_time": _time(result.start_time),
        "end_time": _time(result.end_time),
        "statistics": None
        if spent is None
        else {
            "load_seconds": number(spent.load_seconds),
            "compile_seconds": number(spent.compile_seconds),
            "compute_seconds": number(spent.compute_seconds),
            "compiled_graphs": spent.compiled_graphs,
            "warm": spent.warm,
            "device": spent.device,
        },
    }


def suite(value: Suite) -> dict[str, Any]:
    """A suite."""
    return {
        "name": value.id,
        "version": value.version,
        "description": value.description,
        "tasks": [
            {
                "name": task.name,
                "type": task.type,
                "dataset": task.dataset,
                "metrics": list(task.metrics),
                "settings": dict(task.settings),
            }
            for task in value.tasks
        ],
        "create_time": _time(value.create_time),
        **_created(value.created),
    }


def dataset(value: Dataset) -> dict[str, Any]:
    """A dataset."""
    return {
        "name": value.id,
        "version": value.version,
        "format": value.format,
        "language": value.language,
        "text_field": value.text_field,
        "padding_token": value.padding_token,
        "files": [{"path": path, "size_bytes": size, "digest": digest} for path, size, digest in value.files],
        "create_time": _time(value.create_time),
        **_created(value.created),
    }


def checkpoint(value: Checkpoint) -> dict[str, Any]:
    """A checkpoint."""
    return {
        "name": value.name,
        "digest": value.digest,
        "state": value.state,
        "size_bytes": value.size_bytes,
        "own_size_bytes": value.own_size_bytes,
        "tensor_count": value.tensor_count,
        "pinned": value.pinned,
        "steps": [{"run": run, "step": step} for run, step in value.steps],
        "create_time": _time(value.create_time),
        "use_time": _time(value.use_time),
        **_created(value.created),
    }


def checkpoint_diff(value: CheckpointDiff) -> dict[str, Any]:
    """What differs between two checkpoints."""
    return {
        "equal_count": value.equal_count,
        "different_count": value.different_count,
        "differences": [
            {
                "name": entry.name,
                "change": entry.change,
                "relative_change": number(entry.relative_change),
                "largest_difference": number(entry.largest_difference),
                "size_bytes": entry.size_bytes,
            }
            for entry in value.differences
        ],
    }


def pushed(value: PushedCheckpoint) -> dict[str, Any]:
    """A push."""
    return {
        "digest": value.digest,
        "bytes_total": value.bytes_total,
        "bytes_sent": value.bytes_sent,
        "blobs_total": value.blobs_total,
        "blobs_sent": value.blobs_sent,
        "seconds": round(value.seconds, 3),
    }


def number(value: float | None) -> float | str | None:
    """A number that JSON can carry."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "value": number(metric.value),
        "standard_error": number(metric.standard_error),
        "standard_error_method": metric.standard_error_method,
        "count": metric.count,
        "higher_is_better": metric.higher_is_better,
        "signature": metric.signature,
        "flags": list(metric.flags),
    }


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {"reason": failure.reason, "message": failure.message, "metadata": dict(failure.metadata)}


def _created(created: bool | None) -> dict[str, Any]:
    return {} if created is None else {"created": created}


def _time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
