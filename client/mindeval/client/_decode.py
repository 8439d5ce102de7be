"""From messages of the wire to the records of `_results`, and names of enum values both ways."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from google.protobuf import timestamp_pb2

from mindeval.client import _results as results
from mindeval.client._errors import read_status
from mindeval.formats import names
from mindeval.formats.errors import FormatError
from mindeval.v1 import capability_pb2, checkpoint_pb2, evaluation_pb2, registry_pb2

CONFLICT_POLICIES = {
    "use_existing": evaluation_pb2.CONFLICT_POLICY_USE_EXISTING,
    "fail": evaluation_pb2.CONFLICT_POLICY_FAIL,
    "rerun": evaluation_pb2.CONFLICT_POLICY_RERUN,
}
DATASET_FORMATS = {
    "text": registry_pb2.DATASET_FORMAT_TEXT,
    "text_lines": registry_pb2.DATASET_FORMAT_TEXT_LINES,
    "jsonl": registry_pb2.DATASET_FORMAT_JSONL,
    "tokens_npy": registry_pb2.DATASET_FORMAT_TOKENS_NPY,
}


def choice(value: str, choices: dict[str, Any], field: str) -> Any:
    """The enum value of a name.

    Raises:
        FormatError: INVALID_FIELD when the name is none of the choices.
    """
    if value not in choices:
        raise FormatError("INVALID_FIELD", f"{field}: {value!r} is none of {', '.join(choices)}", {"field": field})
    return choices[value]


def state_name(value: int) -> str:
    """Name of an evaluation state without its prefix."""
    return _enum_name(evaluation_pb2.EvaluationState, value, "EVALUATION_STATE_")


def evaluation(message: evaluation_pb2.Evaluation) -> results.EvaluationResult:
    """An Evaluation."""
    tasks = tuple(task(outcome) for outcome in message.tasks)
    spec, resolved = message.spec, message.resolved
    return results.EvaluationResult(
        name=message.name,
        state=state_name(message.state),
        suite=resolved.suite_version or spec.suite,
        checkpoint=resolved.checkpoint or spec.checkpoint.manifest,
        run=_last_part(spec.run),
        step=spec.step,
        epoch=spec.epoch,
        metrics={f"{entry.name}/{name}": metric for entry in tasks for name, metric in entry.metrics.items()},
        tasks=tasks,
        error=_failure(message),
        superseded_by=message.superseded_by,
        etag=message.etag,
        uid=message.uid,
        attempt=message.attempt,
        last_sequence=message.last_sequence,
        evaluator_build=resolved.evaluator_build,
        parameters=dict(spec.parameters),
        create_time=_time(message, "create_time"),
        start_time=_time(message, "start_time"),
        end_time=_time(message, "end_time"),
        statistics=_statistics(message),
    )


def task(message: evaluation_pb2.TaskOutcome) -> results.TaskResult:
    """A TaskOutcome."""
    return results.TaskResult(
        name=message.task,
        expected_count=message.expected_count,
        scored_count=message.scored_count,
        failed_count=message.failed_count,
        metrics={result.metric: _metric(result) for result in message.results},
        error=_failure(message),
        device_seconds=message.device_seconds,
    )


def event(message: evaluation_pb2.EvaluationEvent) -> results.EvaluationEvent | None:
    """An EvaluationEvent; None for a bookmark or a payload that this client does not know."""
    kind = message.WhichOneof("payload")
    shared: dict[str, Any] = {
        "sequence": message.sequence,
        "time": _time(message, "time"),
        "evaluation": message.evaluation,
    }
    if kind == "state_changed":
        return results.EvaluationEvent(**shared, state_change=evaluation(message.state_changed.evaluation))
    if kind == "task_finished":
        return results.EvaluationEvent(**shared, task=task(message.task_finished))
    if kind == "progress":
        done = message.progress
        progress = results.Progress(done.task, done.phase, done.done, done.total, done.unit)
        return results.EvaluationEvent(**shared, progress=progress)
    return None


def dataset(message: registry_pb2.Dataset, created: bool | None = None) -> results.Dataset:
    """A Dataset."""
    formats = {number: name for name, number in DATASET_FORMATS.items()}
    return results.Dataset(
        id=names.parse(message.version, "datasets", "version").id,
        version=message.version,
        files=tuple((file.path, file.size_bytes, file.digest) for file in message.files),
        format=formats.get(message.format, f"format_{message.format}"),
        language=message.language,
        text_field=message.text_field,
        padding_token=message.padding_token if message.HasField("padding_token") else None,
        create_time=_time(message, "create_time"),
        created=created,
    )


def suite(message: registry_pb2.Suite, created: bool | None = None) -> results.Suite:
    """A Suite."""
    return results.Suite(
        id=names.parse(message.version, "suites", "version").id,
        version=message.version,
        tasks=tuple(
            results.Task(entry.name, entry.type, entry.dataset, tuple(entry.metrics), _plain(entry.settings))
            for entry in message.tasks
        ),
        description=message.description,
        create_time=_time(message, "create_time"),
        created=created,
    )


def checkpoint(message: checkpoint_pb2.Checkpoint, created: bool | None = None) -> results.Checkpoint:
    """A Checkpoint."""
    return results.Checkpoint(
        name=message.name,
        digest=message.manifest,
        state=_enum_name(checkpoint_pb2.CheckpointState, message.state, "CHECKPOINT_STATE_"),
        size_bytes=message.size_bytes,
        own_size_bytes=message.own_size_bytes,
        tensor_count=message.tensor_count,
        pinned=message.pinned,
        steps=tuple((_last_part(entry.run), entry.step) for entry in message.steps),
        create_time=_time(message, "create_time"),
        use_time=_time(message, "use_time"),
        created=created,
    )


def checkpoint_diff(message: checkpoint_pb2.DiffCheckpointsResponse) -> results.CheckpointDiff:
    """The answer of DiffCheckpoints."""
    return results.CheckpointDiff(
        tuple(
            results.TensorDifference(
                name=entry.name,
                change=_enum_name(checkpoint_pb2.TensorChange, entry.change, "TENSOR_CHANGE_"),
                relative_change=entry.relative_change if entry.HasField("relative_change") else None,
                largest_difference=entry.largest_difference if entry.HasField("largest_difference") else None,
                size_bytes=entry.size_bytes,
            )
            for entry in message.differences
        ),
        message.equal_count,
        message.different_count,
    )


def capabilities(message: capability_pb2.GetCapabilitiesResponse) -> results.Capabilities:
    """The answer of GetCapabilities."""
    return results.Capabilities(
        version=message.version,
        evaluator_build=message.evaluator_build,
        task_types={entry.name: tuple(entry.metrics) for entry in message.task_types},
        devices={
            entry.name: _enum_name(capability_pb2.DeviceState, entry.state, "DEVICE_STATE_")
            for entry in message.devices
        },
        digest_algorithms=tuple(message.digest_algorithms),
    )


def _metric(message: evaluation_pb2.MetricResult) -> results.Metric:
    return results.Metric(
        value=message.value,
        standard_error=message.standard_error if message.HasField("standard_error") else None,
        standard_error_method=message.standard_error_method,
        count=message.count,
        higher_is_better=message.higher_is_better if message.HasField("higher_is_better") else None,
        signature=message.signature,
        flags=tuple(message.flags),
    )


def _failure(message: Any) -> results.Failure | None:
    return results.Failure(*read_status(message.error)) if message.HasField("error") else None


def _statistics(message: evaluation_pb2.Evaluation) -> results.Statistics | None:
    if not message.HasField("statistics"):
        return None
    spent = message.statistics
    return results.Statistics(
        spent.load_seconds,
        spent.compile_seconds,
        spent.compute_seconds,
        spent.compiled_graphs,
        spent.warm,
        spent.device,
    )


def _enum_name(enum: Any, value: int, prefix: str) -> str:
    try:
        name: str = enum.Name(value)
    except ValueError:  # a newer service
        return f"STATE_{value}"
    return name.replace(prefix, "", 1)


def _time(message: Any, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    stamp: timestamp_pb2.Timestamp = getattr(message, field)
    return datetime.fromtimestamp(stamp.seconds, timezone.utc).replace(microsecond=stamp.nanos // 1000)


def _plain(value: Any) -> Any:
    """A Struct as plain Python; whole numbers, which travel as doubles, become int again."""
    kind = value.DESCRIPTOR.full_name
    if kind == "google.protobuf.Struct":
        return {key: _plain(entry) for key, entry in value.fields.items()}
    if kind == "google.protobuf.ListValue":
        return [_plain(entry) for entry in value.values]
    which = value.WhichOneof("kind")
    if which in (None, "null_value"):
        return None
    inner = getattr(value, which)
    if which in ("struct_value", "list_value"):
        return _plain(inner)
    if which == "number_value" and math.isfinite(inner) and inner == int(inner) and abs(inner) < 2**53:
        return int(inner)
    return inner


def _last_part(name: str) -> str:
    return name.rsplit("/", 1)[-1]
