"""Records as messages of mindeval.v1. The event log holds its entries as they are sent, so this is below the api."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import status_pb2

from mindeval.service.errors import status_of
from mindeval.service.storage.records import (
    EvaluationRecord,
    Failure,
    MetricRecord,
    ProgressRecord,
    State,
    TaskRecord,
)
from mindeval.v1 import evaluation_pb2 as pb


def timestamp(time_us: int) -> Timestamp | None:
    """Microseconds since 1970 as a timestamp; None for 0."""
    if time_us == 0:
        return None
    return Timestamp(seconds=time_us // 1_000_000, nanos=time_us % 1_000_000 * 1000)


def evaluation_message(record: EvaluationRecord) -> pb.Evaluation:
    """The evaluation as it is."""
    message = pb.Evaluation(
        name=record.name if record.id else "",
        uid=record.uid,
        etag=record.etag if record.uid else "",
        spec=_spec(record),
        resolved=pb.ResolvedSpec(
            suite_version=record.suite_version,
            dataset_versions=record.dataset_versions,
            checkpoint=record.checkpoint,
            evaluator_build=record.evaluator_build,
        ),
        state=_state(record.state),
        attempt=record.attempt,
        last_sequence=record.last_sequence,
        tasks=[task_message(task) for task in record.tasks],
        error=_status(record.failure),
        superseded_by=record.superseded_by,
        create_time=timestamp(record.create_us),
        start_time=timestamp(record.start_us),
        end_time=timestamp(record.end_us),
    )
    if record.statistics is not None:
        message.statistics.CopyFrom(
            pb.RunnerStatistics(
                load_seconds=record.statistics.load_seconds,
                compile_seconds=record.statistics.compile_seconds,
                compute_seconds=record.statistics.compute_seconds,
                compiled_graphs=record.statistics.compiled_graphs,
                warm=record.statistics.warm,
                device=record.statistics.device,
            )
        )
    return message


def task_message(record: TaskRecord) -> pb.TaskOutcome:
    """What became of a task."""
    return pb.TaskOutcome(
        task=record.task,
        expected_count=record.expected_count,
        scored_count=record.scored_count,
        failed_count=record.failed_count,
        results=[_metric(record.task, result) for result in record.results],
        error=_status(record.failure),
        device_seconds=record.device_seconds,
    )


def state_event(record: EvaluationRecord, previous: State | None, time_us: int) -> bytes:
    """Entry of the log: the state changed to that of the record; its sequence is the record's newest."""
    changed = pb.StateChanged(evaluation=evaluation_message(record), previous_state=_state(previous))
    return _event(record, time_us, pb.EvaluationEvent(state_changed=changed))


def task_event(record: EvaluationRecord, task: TaskRecord, time_us: int) -> bytes:
    """Entry of the log: a task ended."""
    return _event(record, time_us, pb.EvaluationEvent(task_finished=task_message(task)))


def progress_event(record: EvaluationRecord, progress: ProgressRecord, time_us: int) -> bytes:
    """Entry of the log: work went on."""
    message = pb.Progress(
        task=progress.task, phase=progress.phase, done=progress.done, total=progress.total, unit=progress.unit
    )
    return _event(record, time_us, pb.EvaluationEvent(progress=message))


def _state(state: State | None) -> str:
    return f"EVALUATION_STATE_{'UNSPECIFIED' if state is None else state.name}"


def _event(record: EvaluationRecord, time_us: int, event: pb.EvaluationEvent) -> bytes:
    event.sequence = record.last_sequence
    event.evaluation = record.name
    event.time.CopyFrom(Timestamp(seconds=time_us // 1_000_000, nanos=time_us % 1_000_000 * 1000))
    return event.SerializeToString()


def _spec(record: EvaluationRecord) -> pb.EvaluationSpec:
    spec = pb.EvaluationSpec(
        suite=record.suite,
        checkpoint=_source(record),
        run=f"projects/{record.project}/runs/{record.run}" if record.run else "",
        step=record.step,
        epoch=record.epoch,
        parameters=record.parameters,
    )
    if record.timeout_s is not None:
        spec.timeout.FromMicroseconds(round(record.timeout_s * 1_000_000))
    return spec


def _source(record: EvaluationRecord) -> pb.CheckpointSource:
    if record.checkpoint_uri:
        return pb.CheckpointSource(uri=record.checkpoint_uri)
    return pb.CheckpointSource(manifest=record.checkpoint)


def _metric(task: str, record: MetricRecord) -> pb.MetricResult:
    message = pb.MetricResult(
        task=task,
        metric=record.metric,
        value=record.value,
        standard_error=record.standard_error,
        standard_error_method=record.standard_error_method,
        count=record.count,
        signature=record.signature,
        flags=record.flags,
    )
    if record.higher_is_better is not None:
        message.higher_is_better = record.higher_is_better
    return message


def _status(failure: Failure | None) -> status_pb2.Status | None:
    return None if failure is None else status_of(failure.as_error())
