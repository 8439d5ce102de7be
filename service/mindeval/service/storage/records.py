"""What the store takes and gives: frozen values without behaviour beyond reading themselves.

Times are microseconds since 1970 (UTC); 0 stands for "not yet".
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mindeval.formats.digest import digest_bytes, digest_hex
from mindeval.formats.errors import MindEvalError
from mindeval.formats.manifest import Manifest


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
class CheckpointContent:
    """What a checkpoint is made of.

    Attributes:
        manifest: Digest of its manifest.
        blobs: Size in bytes of every blob that it needs, the manifest included, by digest.
        tensor_count: Tensors in it.
    """

    manifest: str
    blobs: Mapping[str, int]
    tensor_count: int

    @classmethod
    def of(cls, manifest: Manifest) -> CheckpointContent:
        """What a manifest says; writes it out, which takes a while when it is long."""
        data = manifest.to_bytes()
        digest = digest_bytes(data)
        return cls(digest, {**manifest.blobs(), digest: len(data)}, len(manifest.tensors))


@dataclass(frozen=True, order=True)
class CheckpointStepRecord:
    """A step of a run that a checkpoint is; `run` is the run's id."""

    run: str
    step: int


@dataclass(frozen=True)
class CheckpointRecord:
    """One checkpoint as it is.

    Attributes:
        manifest: Digest of its manifest.
        size_bytes: Of all its blobs, the manifest included.
        own_size_bytes: Of the blobs that no other checkpoint of the project needs.
        missing_count: Blobs of it that the project does not hold.
        steps: By run and step.
    """

    project: str
    manifest: str
    size_bytes: int
    own_size_bytes: int
    tensor_count: int
    missing_count: int
    pinned: bool
    steps: tuple[CheckpointStepRecord, ...]
    create_us: int
    use_us: int

    @property
    def name(self) -> str:
        """Full resource name."""
        return f"projects/{self.project}/checkpoints/{digest_hex(self.manifest)}"


@dataclass(frozen=True)
class CheckpointQuery:
    """Which checkpoints to list.

    Attributes:
        run: Id of the run; "" for all checkpoints of the project.
        after: Of the last one seen: its use time, or (with a run) its lowest step in it, and its manifest; None from
            the beginning.
    """

    project: str
    run: str = ""
    after: tuple[int, str] | None = None
    limit: int = 50


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
        content: What the checkpoint is made of, to be registered with it; None leaves the register alone.
        checkpoint_uri: Where the checkpoint was read from; "" when it was pushed.
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
    content: CheckpointContent | None = None
    checkpoint_uri: str = ""


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
    checkpoint_uri: str = ""
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
class BlobRecord:
    """A visible blob.

    Attributes:
        pack: Id of the pack that holds it; "" when it is an object of its own.
        offset: Its first byte in the pack.
        use_us: When it was last asked for, or used.
    """

    project: str
    digest: str
    size_bytes: int
    pack: str
    offset: int
    use_us: int


@dataclass(frozen=True)
class PackRecord:
    """An object that holds many small blobs; its id is chosen at random.

    Attributes:
        digest: Of the whole pack.
        live_bytes: Bytes of it that visible blobs need; the others are left over.
    """

    project: str
    id: str
    digest: str
    size_bytes: int
    live_bytes: int = 0


@dataclass(frozen=True)
class PackedBlob:
    """A blob in a pack that is about to become visible."""

    digest: str
    offset: int
    size_bytes: int


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
