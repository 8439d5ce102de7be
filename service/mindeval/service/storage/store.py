"""The interface of the database. Every method is one transaction: done and durable when it returns, or not done.

Methods block; async code calls them through `access.StoreAccess`. Implementations are held to one contract suite
(tests/service/test_store_contract.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindeval.service.storage.records import (
    BlobRecord,
    CheckpointContent,
    CheckpointQuery,
    CheckpointRecord,
    CheckpointStepRecord,
    EvaluationQuery,
    EvaluationRecord,
    EventRecord,
    Failure,
    NewEvaluation,
    PackedBlob,
    PackRecord,
    PointRecord,
    ProgressRecord,
    RunRecord,
    State,
    Statistics,
    TaskRecord,
    UploadRecord,
    VersionRecord,
)


@dataclass(frozen=True)
class Collected:
    """What `BlobIndex.collect` did.

    Attributes:
        removed: Blobs that are invisible now.
        after: Where to go on; None when everything was looked at.
    """

    removed: Sequence[BlobRecord]
    after: tuple[int, str] | None


class BlobIndex(ABC):
    """Which blobs are visible, where they lie, and which uploads are open. The bytes are in a `blobs.BlobStore`."""

    @abstractmethod
    def sizes(self, project: str, digests: Sequence[str]) -> dict[str, int]:
        """Size in bytes of each of these blobs that the project holds."""

    @abstractmethod
    def find(self, project: str, digests: Sequence[str]) -> dict[str, BlobRecord]:
        """Each of these blobs that the project holds, by digest."""

    @abstractmethod
    def below(self, project: str, prefix: str) -> list[BlobRecord]:
        """Blobs of a project whose digest begins so, by digest."""

    @abstractmethod
    def touch(self, project: str, digests: Sequence[str], use_us: int) -> set[str]:
        """Notes that blobs are used, and tells which of them are there."""

    @abstractmethod
    def remove(self, project: str, digests: Sequence[str]) -> None:
        """Makes blobs invisible; harmless when they are not there."""

    @abstractmethod
    def collect(self, project: str, wanted_bytes: int, before_us: int, after: tuple[int, str], limit: int) -> Collected:
        """Makes blobs invisible that nothing needs, longest unused first.

        What a pinned checkpoint, one of a queued or running evaluation, or a registered dataset needs stays, and so
        does what was used since `before_us`.

        Args:
            project: Id of the project.
            wanted_bytes: Bytes to be freed; stops when they are reached.
            before_us: Time in microseconds since 1970.
            after: Where an earlier call ended, to go on from there; (0, "") to begin.
            limit: How many blobs to look at.
        """

    @abstractmethod
    def usage(self, project: str) -> int:
        """Bytes of all visible blobs of a project."""

    @abstractmethod
    def projects(self) -> list[str]:
        """Projects that hold blobs."""

    @abstractmethod
    def add_pack(self, pack: PackRecord, blobs: Sequence[PackedBlob]) -> int:
        """Makes the blobs of a pack visible that are not visible yet, and tells how many; without any, forgets it."""

    @abstractmethod
    def replace_pack(self, old: str, pack: PackRecord, blobs: Sequence[PackedBlob]) -> int:
        """Moves blobs that lie in an old pack to a new one, and tells how many; without any, forgets the new one."""

    @abstractmethod
    def forget_packs(self, project: str, packs: Sequence[str]) -> None:
        """Forgets packs that no visible blob needs; others stay."""

    @abstractmethod
    def packs(self, project: str) -> list[PackRecord]:
        """All packs of a project."""

    @abstractmethod
    def find_packs(self, project: str, packs: Sequence[str]) -> dict[str, PackRecord]:
        """Each of these packs that is known, by id; `live_bytes` is left out."""

    @abstractmethod
    def packed(self, project: str, pack: str) -> list[BlobRecord]:
        """Visible blobs that lie in a pack, by offset."""

    @abstractmethod
    def open_upload(self, project: str, digest: str, size_bytes: int, expire_us: int) -> UploadRecord:
        """The open upload of this digest and size, its expiry moved; a new one when there is none."""

    @abstractmethod
    def upload(self, project: str, upload_id: str) -> UploadRecord | None:
        """An upload, open or complete."""

    @abstractmethod
    def advance(self, upload_id: str, committed_offset: int, expire_us: int) -> None:
        """Records how many bytes of an open upload are durable."""

    @abstractmethod
    def complete(self, upload_id: str) -> UploadRecord:
        """Makes the blob of an upload visible, and the upload complete.

        Raises:
            ServiceError: UPLOAD_NOT_FOUND.
        """

    @abstractmethod
    def discard(self, upload_id: str) -> None:
        """Forgets an upload; harmless when it is not there."""

    @abstractmethod
    def uploads(self) -> list[UploadRecord]:
        """All uploads, of all projects."""

    @abstractmethod
    def open_bytes(self) -> int:
        """Bytes that open uploads have yet to write, over all projects."""

    @abstractmethod
    def declared_bytes(self, project: str, expire_after_us: int, but_for: str) -> int:
        """Sizes of a project's open uploads that expire after that time, summed up; one of them is left out."""


class Registry(ABC):
    """Immutable versions of datasets and suites, and which version is the newest of a name."""

    @abstractmethod
    def put(
        self, project: str, collection: str, item_id: str, digest: str, content: Mapping[str, Any]
    ) -> tuple[VersionRecord, bool]:
        """Stores a version unless it is there, makes it the newest, and tells whether it was new."""

    @abstractmethod
    def get(self, project: str, collection: str, item_id: str, digest: str = "") -> VersionRecord | None:
        """One version; the newest when no digest is given."""

    @abstractmethod
    def page(self, project: str, collection: str, after_id: str, limit: int) -> list[VersionRecord]:
        """The newest version of each name beyond `after_id`, by name."""


class Runs(ABC):
    """What training jobs report about themselves."""

    @abstractmethod
    def report(self, project: str, run_id: str, points: Sequence[PointRecord]) -> RunRecord:
        """Adds points, replacing those of the same steps; makes the run when it is new."""

    @abstractmethod
    def get(self, project: str, run_id: str) -> RunRecord | None:
        """One run."""

    @abstractmethod
    def page(self, project: str, after_id: str, limit: int) -> list[RunRecord]:
        """Runs beyond `after_id`, by name."""

    @abstractmethod
    def points(self, project: str, run_id: str, after_step: int, limit: int) -> list[PointRecord]:
        """Points after a step, by step."""


class Checkpoints(ABC):
    """Which checkpoints a project knows, and which blobs each of them needs."""

    @abstractmethod
    def register(
        self, project: str, content: CheckpointContent, step: CheckpointStepRecord | None = None
    ) -> tuple[CheckpointRecord, bool]:
        """Makes a checkpoint known, or adds a step to one that is, and tells whether it was new; counts as a use.

        Raises:
            BlobsMissingError: When blobs of it have gone meanwhile; nothing is changed then.
        """

    @abstractmethod
    def get(self, project: str, manifest: str) -> CheckpointRecord | None:
        """One checkpoint."""

    @abstractmethod
    def page(self, query: CheckpointQuery) -> list[CheckpointRecord]:
        """Checkpoints of a project, most recently used first, or those of a run, lowest step first."""

    @abstractmethod
    def pin(self, project: str, manifest: str, pinned: bool) -> CheckpointRecord | None:
        """Pins a checkpoint, or lets go of it; None when there is none."""

    @abstractmethod
    def remove(self, project: str, manifest: str) -> list[BlobRecord] | None:
        """Forgets a checkpoint, and makes those of its blobs invisible that nothing else needs.

        Returns:
            These blobs; None when there is no such checkpoint.

        Raises:
            ServiceError: CHECKPOINT_IN_USE when it is pinned, or a queued or running evaluation needs it.
        """

    @abstractmethod
    def touch(self, project: str, manifest: str) -> None:
        """Notes that a checkpoint is used now; harmless when it is not known."""

    @abstractmethod
    def find_import(self, project: str, uri: str, stamp: str) -> str:
        """Digest of the manifest that a URI in this state was read into; "" when it was not."""

    @abstractmethod
    def record_import(self, project: str, uri: str, stamp: str, manifest: str) -> None:
        """Notes what a URI in this state was read into."""


class Evaluations(ABC):
    """Evaluations, their logs, and the attempts at them.

    Each change of an evaluation writes its event in the same transaction. Methods that take an attempt token change
    nothing, and return None, when it is not that of the evaluation's current attempt: the reporter is stale.
    """

    @abstractmethod
    def find_request(self, project: str, request_id: str, payload_hash: str) -> EvaluationRecord | None:
        """The evaluation that an earlier call with this request id led to.

        Raises:
            ServiceError: REQUEST_ID_REUSED when that call had another payload.
        """

    @abstractmethod
    def create(self, new: NewEvaluation) -> tuple[EvaluationRecord, bool]:
        """Creates an evaluation, or finds the one to attach to, and tells whether it was created.

        Raises:
            ServiceError: REQUEST_ID_REUSED; EVALUATION_EXISTS when the policy is FAIL.
        """

    @abstractmethod
    def preview(self, new: NewEvaluation) -> EvaluationRecord:
        """What `create` would return; raises as `create` does, and changes nothing."""

    @abstractmethod
    def get(self, project: str, evaluation_id: str) -> EvaluationRecord | None:
        """One evaluation."""

    @abstractmethod
    def page(self, query: EvaluationQuery) -> list[EvaluationRecord]:
        """Evaluations that meet all conditions, in order."""

    @abstractmethod
    def events(self, uid: str, after_sequence: int, limit: int) -> list[EventRecord]:
        """Entries of the log after a sequence, in order."""

    @abstractmethod
    def cancel(self, project: str, evaluation_id: str, etag: str) -> EvaluationRecord:
        """Asks for the end: QUEUED becomes CANCELLED, RUNNING becomes CANCELLING; others ending that way stay.

        Raises:
            ServiceError: EVALUATION_NOT_FOUND; ETAG_MISMATCH; EVALUATION_TERMINAL when it SUCCEEDED, FAILED or was
                SUPERSEDED.
        """

    @abstractmethod
    def start_next(self, device: str, evaluator_build: str) -> EvaluationRecord | None:
        """Takes the oldest QUEUED evaluation: RUNNING, one attempt more, a new attempt token.

        Outcomes of tasks that an earlier attempt committed are kept when it ran the same build, dropped otherwise.
        """

    @abstractmethod
    def record_progress(self, uid: str, token: str, progress: ProgressRecord) -> EvaluationRecord | None:
        """Logs progress."""

    @abstractmethod
    def record_task(self, uid: str, token: str, task: TaskRecord) -> EvaluationRecord | None:
        """Commits the outcome of a task, and logs it. A task that has an outcome keeps it."""

    @abstractmethod
    def finish(
        self, uid: str, token: str, state: State, failure: Failure | None, statistics: Statistics | None
    ) -> EvaluationRecord | None:
        """Ends the attempt and the evaluation; one that is CANCELLING ends CANCELLED, whatever was asked for."""

    @abstractmethod
    def requeue(self, uid: str, token: str) -> EvaluationRecord | None:
        """Ends the attempt: RUNNING becomes QUEUED in its old place, CANCELLING becomes CANCELLED."""

    @abstractmethod
    def recover(self) -> list[EvaluationRecord]:
        """As `requeue`, for every attempt that is left from an earlier life of the service."""

    @abstractmethod
    def fail_queued(self, failure: Failure) -> list[EvaluationRecord]:
        """Fails everything that is QUEUED."""

    @abstractmethod
    def forget_requests(self, before_us: int) -> int:
        """Drops request ids older than that, and tells how many."""


class Store(ABC):
    """The database."""

    blobs: BlobIndex
    registry: Registry
    runs: Runs
    checkpoints: Checkpoints
    evaluations: Evaluations

    @abstractmethod
    def close(self) -> None:
        """Lets go of the database; nothing may be called afterwards."""
