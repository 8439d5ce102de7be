"""What a runner is asked to do and what it reports (docs/formats.md, "Service ↔ runner")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, Union

from mindeval.formats import frames
from mindeval.service.errors import ServiceError, known_reason
from mindeval.service.runtime.messages import BlobLocation
from mindeval.service.storage.records import Failure, ProgressRecord, Statistics

T = TypeVar("T")

# An error of a runner is kept for good and sent with every event that shows it.
_MAX_MESSAGE_LENGTH = 2_000
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_LENGTH = 500
_MAX_FAILURES = 20


class ReportError(Exception):
    """A runner's report does not follow the protocol."""


@dataclass(frozen=True)
class Job:
    """One attempt at one evaluation.

    Attributes:
        id: Names the attempt; every report repeats it.
        manifest: Where the manifest lies.
        checkpoint: Its digest.
        blobs: Where everything that the manifest names lies, by digest.
        tasks: As in docs/formats.md.
    """

    id: str
    manifest: BlobLocation
    checkpoint: str
    blobs: Mapping[str, BlobLocation]
    tasks: Sequence[Mapping[str, Any]]

    @cached_property
    def encoded(self) -> bytes:
        """The frame that hands it over; takes a while to make for a checkpoint of very many tensors.

        Raises:
            ServiceError: MANIFEST_INVALID when the frame would be too long.
        """
        message = {
            "type": "evaluate",
            "job": self.id,
            "manifest": self.manifest,
            "checkpoint": self.checkpoint,
            "blobs": dict(self.blobs),
            "tasks": [dict(task) for task in self.tasks],
        }
        try:
            return frames.encode(message)
        except frames.FrameError as error:
            raise ServiceError("MANIFEST_INVALID", f"the checkpoint names too many blobs: {error}") from None


@dataclass(frozen=True)
class ProgressReport:
    """Work goes on."""

    progress: ProgressRecord


@dataclass(frozen=True)
class TaskReport:
    """A task was scored; `state` is a metric state as `MetricState.to_dict` gives it, `failures` are for the log."""

    task: str
    state: Mapping[str, Any]
    expected_count: int
    scored_count: int
    failed_count: int
    device_seconds: float
    failures: Sequence[str]


@dataclass(frozen=True)
class TaskFailedReport:
    """A task could not be scored."""

    task: str
    failure: Failure


@dataclass(frozen=True)
class Finished:
    """The job is done: every task was reported."""

    statistics: Statistics


@dataclass(frozen=True)
class Failed:
    """The job could not be done, or its runner is gone."""

    failure: Failure


@dataclass(frozen=True)
class Cancelled:
    """The job was stopped, because that was asked for."""


Report = Union[ProgressReport, TaskReport, TaskFailedReport, Finished, Failed, Cancelled]


def is_last(report: Report) -> bool:
    """Whether nothing follows for this job."""
    return isinstance(report, (Finished, Failed, Cancelled))


def parse_report(frame: Mapping[str, Any], device: str) -> Report:
    """Reads a report.

    Raises:
        ReportError: When it is not one of the protocol's messages.
    """
    kind = frame["type"]
    if kind == "progress":
        return ProgressReport(
            ProgressRecord(
                task=_get(frame, "task", str),
                phase=_get(frame, "phase", str),
                done=_get(frame, "done", int),
                total=_get(frame, "total", int),
                unit=_get(frame, "unit", str),
            )
        )
    if kind == "task_result":
        return TaskReport(
            task=_get(frame, "task", str),
            state=_get(frame, "state", dict),
            expected_count=_count(frame, "expected_count"),
            scored_count=_count(frame, "scored_count"),
            failed_count=_count(frame, "failed_count"),
            device_seconds=_number(frame, "device_seconds"),
            failures=[str(failure)[:_MAX_METADATA_LENGTH] for failure in _get(frame, "failures", list)[:_MAX_FAILURES]],
        )
    if kind == "task_failed":
        return TaskFailedReport(_get(frame, "task", str), _failure(frame))
    if kind == "finished":
        statistics = _get(frame, "statistics", dict)
        return Finished(
            Statistics(
                load_seconds=_number(statistics, "load_seconds"),
                compile_seconds=_number(statistics, "compile_seconds"),
                compute_seconds=_number(statistics, "compute_seconds"),
                compiled_graphs=_count(statistics, "compiled_graphs"),
                warm=_get(statistics, "warm", bool),
                device=device,
            )
        )
    if kind == "failed":
        return Failed(_failure(frame))
    if kind == "cancelled":
        return Cancelled()
    raise ReportError(f"unknown message type {kind[:40]!r}")


def _failure(frame: Mapping[str, Any]) -> Failure:
    error = _get(frame, "error", dict)
    reason, message = _get(error, "reason", str), _get(error, "message", str)[:_MAX_MESSAGE_LENGTH]
    pairs = list(_get(error, "metadata", dict).items())[:_MAX_METADATA_PAIRS]
    metadata = {str(key)[:64]: str(value)[:_MAX_METADATA_LENGTH] for key, value in pairs}
    if not known_reason(reason):
        return Failure("RUNNER_ERROR", message, {**metadata, "runner_reason": reason})
    return Failure(reason, message, metadata)


def _get(frame: Mapping[str, Any], field: str, kind: type[T]) -> T:
    value = frame.get(field)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ReportError(f"{field} of a {frame.get('type', 'report')!r} is not {kind.__name__}")
    return value


def _count(frame: Mapping[str, Any], field: str) -> int:
    value = _get(frame, field, int)
    if not 0 <= value < 2**62:
        raise ReportError(f"{field} is out of range")
    return value


def _number(frame: Mapping[str, Any], field: str) -> float:
    value = frame.get(field)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ReportError(f"{field} is not a number")
    return float(value)
