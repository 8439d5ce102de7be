"""What the store takes and gives: frozen values without behaviour beyond reading themselves.

Times are microseconds since 1970 (UTC); 0 stands for "not yet".
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindeval.formats.errors import MindEvalError


def now_us() -> int:
    """The time, in microseconds since 1970."""
    return time.time_ns() // 1000


class State(enum.IntEnum):
    """Where an evaluation stands; the numbers are those of `mindeval.v1.EvaluationState`."""

    QUEUED = 1
    RUNNING = 2
    CANCELLING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    SUPERSEDED = 7

    @property
    def is_terminal(self) -> bool:
        """Whether it never changes again."""
        return self >= State.SUCCEEDED


class ConflictPolicy(enum.Enum):
    """What to do about an evaluation of the same natural key."""

    USE_EXISTING = "use_existing"
    FAIL = "fail"
    RERUN = "rerun"


@dataclass(frozen=True)
class Failure:
    """Why something failed: a reason of `mindeval.v1.ErrorReason`, a message, and what was at fault."""

    reason: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: MindEvalError) -> Failure:
        """The failure that an error stands for."""
        return cls(error.reason, error.message, dict(error.metadata))

    def as_error(self) -> MindEvalError:
        """The error that it was made from."""
        return MindEvalError(self.reason, self.message, self.metadata)


@dataclass(frozen=True)
class MetricRecord:
    """One value of one metric; the fields of `mindeval.v1.MetricResult`."""

    metric: str
    value: float
    standard_error: float | None
    standard_error_method: str
    count: int
    higher_is_better: bool | None
    signature: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskRecord:
    """What became of one task; the fields of `mindeval.v1.TaskOutcome`."""

    task: str
    expected_count: int = 0
    scored_count: int = 0
    failed_count: int = 0
    results: tuple[MetricRecord, ...] = ()
    failure: Failure | None = None
    device_seconds: float = 0.0


@dataclass(frozen=True)
class Statistics:
    """How a runner spent its time; the fields of `mindeval.v1.RunnerStatistics`."""

    load_seconds: float = 0.0
    compile_seconds: float = 0.0
    compute_seconds: float = 0.0
    compiled_graphs: int = 0
    warm: bool = False
    device: str = ""


@dataclass(frozen=True)
class NewEvaluation:
    """An evaluation that is about to be created, everything checked and resolved.

    Attributes:
        project: Id of the project.
        request_id: Chosen by the client; "" for none.
        payload_hash: Of everything in the request but its id.
        suite: As asked for.
        suite_version: Full name of the version that it stood for.
        dataset_versions: Full names, one a task.
        checkpoint: Digest of the manifest.
        run: Id of the run, "" for none.
        timeout_s: None for the service's default.
        natural_key: Hash over what makes two evaluations the same; "" without a run.
    """

    project: str
    request_id: str
    payload_hash: str
    suite: str
    suite_version: str
    dataset_versions: tuple[str, ...]
    checkpoint: str
    evaluator_build: str
    run: str
    step: int
    epoch: float
    timeout_s: float | None
    parameters: Mapping[str, str]
    natural_key: str
    conflict_policy: ConflictPolicy


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation as it is.

    Attributes:
        serial: Place in the order of creation, over all projects.
        revision: Counts the changes other than progress; the etag is made of it.
        attempt_token: Names the attempt that may report; "" when there is none.
    """

    serial: int
    uid: str
    project: str
    id: str
    suite: str
    suite_version: str
    dataset_versions: tuple[str, ...]
    checkpoint: str
    evaluator_build: str
    run: str
    step: int
    epoch: float
    timeout_s: float | None
    parameters: Mapping[str, str]
    state: State
    attempt: int = 0
    attempt_token: str = ""
    revision: int = 0
    last_sequence: int = 0
    tasks: tuple[TaskRecord, ...] = ()
    failure: Failure | None = None
    superseded_by: str = ""
    create_us: int = 0
    start_us: int = 0
    end_us: int = 0
    statistics: Statistics | None = None

    @property
    def name(self) -> str:
        """Full resource name."""
        return f"projects/{self.project}/evaluations/{self.id}"

    @property
    def etag(self) -> str:
        """Changes with every change other than progress."""
        return f"{self.uid[:8]}-{self.revision}"


@dataclass(frozen=True)
class ProgressRecord:
    """How far a runner is; the fields of `mindeval.v1.Progress`."""

    task: str
    phase: str
    done: int
    total: int
    unit: str


@dataclass(frozen=True)
class EventRecord:
    """One entry of an evaluation's log; `body` is a serialised `mindeval.v1.EvaluationEvent`."""

    sequence: int
    is_final: bool
    body: bytes


@dataclass(frozen=True)
class VersionRecord:
    """One immutable version of a dataset or a suite.

    Attributes:
        collection: "datasets" or "suites".
        digest: 64 hexadecimal digits over the content.
        content: JSON-able; see api/registry.py.
    """

    project: str
    collection: str
    id: str
    digest: str
    content: Mapping[str, Any]
    create_us: int

    @property
    def name(self) -> str:
        """Full resource name of the version."""
        return f"projects/{self.project}/{self.collection}/{self.id}/versions/{self.digest}"


@dataclass(frozen=True)
class UploadRecord:
    """Bytes on their way to become a blob."""

    project: str
    id: str
    digest: str
    size_bytes: int
    committed_offset: int
    complete: bool
    expire_us: int

    @property
    def name(self) -> str:
        """Full resource name."""
        return f"projects/{self.project}/uploads/{self.id}"


@dataclass(frozen=True)
class RunRecord:
    """One training job."""

    project: str
    id: str
    create_us: int
    last_step: int

    @property
    def name(self) -> str:
        """Full resource name."""
        return f"projects/{self.project}/runs/{self.id}"


@dataclass(frozen=True)
class PointRecord:
    """What a trainer reported at one step; `body` is a serialised `mindeval.v1.TrainingMetrics`."""

    step: int
    body: bytes


@dataclass(frozen=True)
class Condition:
    """One condition of a list: a field of `EvaluationRecord`, an operator (= != < <= > >=), a value."""

    field: str
    operator: str
    value: str | int


@dataclass(frozen=True)
class EvaluationQuery:
    """What to list.

    Attributes:
        order: "create_time" or "step"; equal steps are ordered by creation.
        descending: Whether the largest comes first.
        after: (step, serial) of the last one seen; None from the beginning.
    """

    project: str
    conditions: tuple[Condition, ...] = ()
    order: str = "create_time"
    descending: bool = True
    after: tuple[int, int] | None = None
    limit: int = 50
