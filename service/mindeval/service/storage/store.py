"""The interface of the database. Every method is one transaction: done and durable when it returns, or not done.

Methods block; async code calls them through `access.StoreAccess`. Implementations are held to one contract suite
(tests/service/test_store_contract.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from mindeval.service.storage.records import (
    EvaluationQuery,
    EvaluationRecord,
    EventRecord,
    Failure,
    NewEvaluation,
    PointRecord,
    ProgressRecord,
    RunRecord,
    State,
    Statistics,
    TaskRecord,
    UploadRecord,
    VersionRecord,
)


class BlobIndex(ABC):
    """Which blobs are visible, and which uploads are open. The bytes themselves are in `blobs.BlobFolder`."""

    @abstractmethod
    def sizes(self, project: str, digests: Sequence[str]) -> dict[str, int]:
        """Size in bytes of each of these blobs that the project holds."""

    @abstractmethod
    def remove(self, project: str, digest: str) -> None:
        """Makes a blob invisible; harmless when it is not there."""

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
    evaluations: Evaluations

    @abstractmethod
    def close(self) -> None:
        """Lets go of the database; nothing may be called afterwards."""
