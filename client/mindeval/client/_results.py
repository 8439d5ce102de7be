"""What calls return: small frozen records of plain Python values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mindeval.client._errors import EvaluationFailed

TERMINAL_STATES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "SUPERSEDED"})


@dataclass(frozen=True)
class Failure:
    """Why an evaluation or a task failed.

    Attributes:
        reason: Name of an `ErrorReason` without its prefix, such as "TENSOR_MISSING".
        message: What is wrong and what to do.
        metadata: What was at fault: "file", "tensor", "sample" and the like.
    """

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]"


@dataclass(frozen=True)
class Metric:
    """One value of one metric.

    Attributes:
        value: The value; may be NaN or infinite, then `flags` says why.
        standard_error: Its standard error; None where none is defined.
        standard_error_method: How that was computed, such as "ratio_by_document".
        count: Units (tokens, samples) that the value is over.
        higher_is_better: None for a metric without a direction.
        signature: Every setting that changes the value.
        flags: Remarks, such as "overflow".
    """

    value: float
    standard_error: float | None = None
    standard_error_method: str = ""
    count: int = 0
    higher_is_better: bool | None = None
    signature: str = ""
    flags: tuple[str, ...] = ()

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return format_with_error(self.value, self.standard_error)

    def __repr__(self) -> str:
        flags = f" {' '.join(self.flags)}" if self.flags else ""
        return f"<{self}, n={self.count:,}{flags}>"


@dataclass(frozen=True)
class TaskResult:
    """What became of one task of a suite.

    Attributes:
        name: Name of the task.
        expected_count: Samples that the dataset holds.
        scored_count: Samples that were scored.
        failed_count: Samples that could not be scored.
        metrics: The values by name of the metric.
        error: Why the task failed; None when it did not.
        device_seconds: Device time it took.
    """

    name: str
    expected_count: int = 0
    scored_count: int = 0
    failed_count: int = 0
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    error: Failure | None = None
    device_seconds: float = 0.0


@dataclass(frozen=True)
class Statistics:
    """How a runner spent its time on an evaluation; seconds."""

    load_seconds: float
    compile_seconds: float
    compute_seconds: float
    compiled_graphs: int
    warm: bool
    device: str


@dataclass(frozen=True, repr=False)
class EvaluationResult:
    """An evaluation as the service held it when it was asked; final once `done`.

    Attributes:
        name: "projects/{project}/evaluations/{evaluation}".
        state: "QUEUED", "RUNNING", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED" or "SUPERSEDED".
        suite: Full name of the suite version.
        checkpoint: Digest of the checkpoint's manifest.
        run: Id of the run, or "".
        step: Optimizer steps done.
        epoch: Epochs done.
        metrics: Every value under "task/metric", such as "val/loss".
        tasks: The same by task, with counts and errors.
        error: Why it FAILED or was CANCELLED; None otherwise.
        superseded_by: Name of the evaluation of a newer step that took its place, or "".
        etag: Changes with every change.
        uid: Identifies it for ever.
        attempt: How many times a runner was given it.
        last_sequence: Sequence of its newest event.
        evaluator_build: Version and code digest of the evaluator.
        parameters: Free text pairs of the caller.
        create_time: When it was created (UTC).
        start_time: When a runner first took it.
        end_time: When it ended.
        statistics: How the last attempt spent its time; None before it ended.
    """

    name: str
    state: str
    suite: str = ""
    checkpoint: str = ""
    run: str = ""
    step: int = 0
    epoch: float = 0.0
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    tasks: tuple[TaskResult, ...] = ()
    error: Failure | None = None
    superseded_by: str = ""
    etag: str = ""
    uid: str = ""
    attempt: int = 0
    last_sequence: int = 0
    evaluator_build: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    create_time: datetime | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    statistics: Statistics | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL_STATES

    @property
    def succeeded(self) -> bool:
        """Whether every task was scored."""
        return self.state == "SUCCEEDED"

    @property
    def queued_s(self) -> float | None:
        """Seconds between creation and start; None before the start."""
        return _seconds_between(self.create_time, self.start_time)

    @property
    def run_s(self) -> float | None:
        """Seconds between start and end; None before the end."""
        return _seconds_between(self.start_time, self.end_time)

    def raise_for_state(self) -> EvaluationResult:
        """Returns itself when it SUCCEEDED.

        Raises:
            EvaluationFailed: Otherwise, with the reason, message and metadata of its error.
        """
        if self.succeeded:
            return self
        if self.error is not None:
            raise EvaluationFailed(self.error.reason, f"{self.name}: {self.error.message}", self.error.metadata)
        raise EvaluationFailed(self.state, f"{self.name}: the evaluation is {self.state}", {"evaluation": self.name})

    def __repr__(self) -> str:
        parts = [f"EvaluationResult({self.name!r}, {self.state}"]
        if self.run:
            parts.append(f"run={self.run!r}, step={self.step}")
        parts.extend(f"{name}={metric}" for name, metric in self.metrics.items())
        if self.error is not None:
            parts.append(f"error={str(self.error)!r}")
        return ", ".join(parts) + ")"


@dataclass(frozen=True)
class Progress:
    """How far a running evaluation is: `done` of `total` `unit`s of `task`; phase is "loading", "compiling" or
    "scoring".
    """

    task: str
    phase: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True)
class EvaluationEvent:
    """One entry of an evaluation's log. Exactly one of `state_change`, `progress` and `task` is set.

    Attributes:
        sequence: Position in the log, from 1.
        time: When it was written (UTC).
        evaluation: Name of the evaluation.
        state_change: The evaluation after its state changed.
        progress: How far it is.
        task: A task that ended.
    """

    sequence: int
    time: datetime | None
    evaluation: str
    state_change: EvaluationResult | None = None
    progress: Progress | None = None
    task: TaskResult | None = None

    @property
    def terminal(self) -> bool:
        """Whether it is the last one."""
        return self.state_change is not None and self.state_change.done


@dataclass(frozen=True)
class PushProgress:
    """How far a push is. It hashes and sends at the same time, so `bytes_to_send` grows until all is hashed.

    Attributes:
        bytes_sent: What of `bytes_to_send` is on its way or there.
        bytes_to_send: What the service is known to lack.
        bytes_total: Everything.
        blobs_sent: Blobs of those to send that are there.
        blobs_to_send: Blobs that the service is known to lack.
        bytes_checked: What was hashed and asked for.
    """

    bytes_sent: int
    bytes_to_send: int
    bytes_total: int
    blobs_sent: int
    blobs_to_send: int
    bytes_checked: int = 0

    @property
    def bytes_saved(self) -> int:
        """What the service had already, of what was asked for."""
        return max(self.bytes_checked - self.bytes_to_send, 0)


@dataclass(frozen=True)
class PushedCheckpoint:
    """A checkpoint that the service holds.

    Attributes:
        digest: Digest of its manifest: the checkpoint's identity.
        bytes_total: Size of its distinct blobs, the manifest among them.
        bytes_sent: Bytes that travelled; the rest was there already.
        blobs_total: Number of its distinct blobs.
        blobs_sent: Blobs that travelled.
        seconds: Wall time, digests included.
    """

    digest: str
    bytes_total: int
    bytes_sent: int
    blobs_total: int
    blobs_sent: int
    seconds: float


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as the service keeps it.

    Attributes:
        name: "projects/{project}/checkpoints/{64 hexadecimal digits}".
        digest: Digest of its manifest.
        state: "READY", or "MISSING" when some of it was collected or lost and has to be pushed again.
        size_bytes: Bytes of all its blobs.
        own_size_bytes: Bytes that no other checkpoint of the project shares.
        tensor_count: Tensors in it.
        pinned: Whether it is kept whatever the budget says.
        steps: (id of the run, step) of each training that it was pushed for.
        create_time: When it was first registered (UTC).
        use_time: When it was last pushed, evaluated or read.
        created: Whether this call registered it; None when it was only read.
    """

    name: str
    digest: str
    state: str
    size_bytes: int = 0
    own_size_bytes: int = 0
    tensor_count: int = 0
    pinned: bool = False
    steps: tuple[tuple[str, int], ...] = ()
    create_time: datetime | None = None
    use_time: datetime | None = None
    created: bool | None = None


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs between two checkpoints.

    Attributes:
        name: Its name.
        change: "VALUES", "SHAPE" (or dtype), "ADDED" or "REMOVED".
        relative_change: Euclidean norm of the difference over that of the base; None where it was not computed.
        largest_difference: Largest absolute difference of an element; None likewise.
        size_bytes: Bytes of the tensor.
    """

    name: str
    change: str
    relative_change: float | None
    largest_difference: float | None
    size_bytes: int


@dataclass(frozen=True)
class CheckpointDiff:
    """What differs between two checkpoints.

    Attributes:
        differences: The tensors that differ, by name; at most 10,000.
        equal_count: Tensors that are the same.
        different_count: Tensors that differ, also those beyond the list.
    """

    differences: tuple[TensorDifference, ...]
    equal_count: int
    different_count: int


@dataclass(frozen=True)
class FetchedCheckpoint:
    """A checkpoint that was written to disk.

    Attributes:
        digest: Digest of its manifest.
        weights: Path of the safetensors file.
        files: Paths of the files that ride along, when a folder was asked for.
        bytes_received: Bytes that travelled.
    """

    digest: str
    weights: str
    files: tuple[str, ...]
    bytes_received: int


@dataclass(frozen=True)
class Dataset:
    """One version of a dataset.

    Attributes:
        id: Id within the project.
        version: Full name of the version.
        files: (path, size in bytes, digest) of each file, in reading order.
        format: "text", "text_lines", "jsonl" or "tokens_npy".
        language: "en", "zh" or "mixed".
        text_field: Field of a JSONL record that holds the text.
        padding_token: Token that is never scored, or None.
        create_time: When it was registered (UTC).
        created: Whether this call made the version; None when it was only read.
    """

    id: str
    version: str
    files: tuple[tuple[str, int, str], ...]
    format: str
    language: str
    text_field: str = ""
    padding_token: int | None = None
    create_time: datetime | None = None
    created: bool | None = None


@dataclass(frozen=True)
class Task:
    """One task of a suite: a dataset scored in one way."""

    name: str
    type: str
    dataset: str
    metrics: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """One version of a suite.

    Attributes:
        id: Id within the project.
        version: Full name of the version.
        tasks: Its tasks.
        description: What it is for.
        create_time: When it was registered (UTC).
        created: Whether this call made the version; None when it was only read.
    """

    id: str
    version: str
    tasks: tuple[Task, ...]
    description: str = ""
    create_time: datetime | None = None
    created: bool | None = None


@dataclass(frozen=True)
class Capabilities:
    """What a service can do.

    Attributes:
        version: Version of the service.
        evaluator_build: Version and code digest of its evaluator.
        task_types: Metrics of each task type.
        devices: State ("IDLE", "BUSY", ...) of each device.
        digest_algorithms: Accepted ones, best first.
    """

    version: str
    evaluator_build: str
    task_types: Mapping[str, tuple[str, ...]]
    devices: Mapping[str, str]
    digest_algorithms: tuple[str, ...]


def format_with_error(value: float, standard_error: float | None) -> str:
    """A value to five digits or more with its standard error to two, such as "2.7061 ± 0.079"; six when it has none.

    The value keeps digits that its standard error seems to forbid: two checkpoints are compared on the same samples,
    and their difference is known much better than either value.
    """
    if standard_error is None or not math.isfinite(standard_error) or not math.isfinite(value):
        return f"{value:.6g}"
    if standard_error <= 0:
        return f"{value:.6g} ± 0"
    decimals = max(0, 1 - math.floor(math.log10(standard_error)))
    if decimals <= 12 and abs(value) < 1e9 and standard_error < 1e9:
        digits = 4 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:.{max(decimals, min(digits, 12))}f} ± {standard_error:.{decimals}f}"
    return f"{value:.6g} ± {standard_error:.2g}"


def _seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()
