"""One attempt at one evaluation: hands the job to a device, stores what is reported, and ends the evaluation."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mindeval.formats.errors import MindEvalError
from mindeval.service.execution.executor import DeviceLost, Executor, Reservation
from mindeval.service.execution.job import (
    Cancelled,
    Failed,
    Finished,
    Job,
    ProgressReport,
    Report,
    TaskFailedReport,
    TaskReport,
)
from mindeval.service.scheduling import jobs, outcomes
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import (
    EvaluationRecord,
    Failure,
    ProgressRecord,
    State,
    Statistics,
    TaskRecord,
)

_log = logging.getLogger(__name__)

_PROGRESS_INTERVAL_S = 1.0
_RETRY_S = 1.0
# Reasons for which a runner names a blob whose bytes it did not find as they should be.
_SAYS_DAMAGED = ("CHECKPOINT_CORRUPT", "CHECKPOINT_TRUNCATED", "DATASET_INVALID", "BLOB_MISSING")


@dataclass(frozen=True)
class AttemptTools:
    """What every attempt works with."""

    access: StoreAccess
    executor: Executor
    library: BlobLibrary
    default_timeout_s: float


@dataclass(frozen=True)
class _End:
    """How an evaluation is to end."""

    state: State
    failure: Failure | None = None
    statistics: Statistics | None = None


class Attempt:
    """Follows an evaluation that `Evaluations.start_next` has taken, until the attempt is over."""

    def __init__(self, tools: AttemptTools, record: EvaluationRecord, reservation: Reservation) -> None:
        self._tools = tools
        self._store = tools.access.store.evaluations
        self._record = record
        self._reservation = reservation
        self._device = reservation.device
        self._token = record.attempt_token
        self._job: Job | None = None
        self._suite_tasks: Sequence[dict[str, object]] = ()
        self._is_cancelled = False
        self._is_timed_out = False
        self._is_handed_back = False
        self._progress_time = 0.0
        self._progress_waiting: ProgressRecord | None = None
        self._progress_writes: set[asyncio.Task[None]] = set()

    def cancel(self) -> None:
        """Tells the runner to stop; the evaluation is CANCELLING already."""
        self._is_cancelled = True
        if self._job is not None:
            self._tools.executor.cancel(self._device, self._job.id)

    def hand_back(self) -> None:
        """From now on, when the runner is gone the evaluation goes back into the queue."""
        self._is_handed_back = True

    async def run(self) -> None:
        """Runs until the evaluation has ended or is back in the queue; raises nothing."""
        extra = {"evaluation": self._record.name, "attempt": self._record.attempt, "device": self._device}
        _log.info("attempt started", extra=extra)
        end: _End | None
        try:
            end = await self._work()
        except DeviceLost:
            end = None
        except MindEvalError as error:
            end = _End(State.FAILED, Failure.of(error))
        except Exception as error:
            incident = uuid.uuid4().hex
            _log.exception("an attempt failed", extra={**extra, "incident": incident})
            text = f"a defect of the service ({type(error).__name__}); its log has details under {incident}"
            end = _End(State.FAILED, Failure("INTERNAL", text, {"incident": incident}))
        if self._job is None:
            self._tools.executor.release(self._reservation)
        record = await self._settle(end)
        if record is None:
            _log.warning("a stale attempt ended without effect", extra=extra)
        else:
            reason = record.failure.reason if record.failure else ""
            _log.info("attempt ended", extra={**extra, "state": record.state.name, "reason": reason})

    async def _work(self) -> _End:
        tools = self._tools
        async with jobs.prepared_job(tools.access, tools.library, self._record) as job:
            return await self._run_job(job)

    async def _run_job(self, job: Job) -> _End:
        tools = self._tools
        self._suite_tasks = (await jobs.version(tools.access, self._record.suite_version, "suites")).content["tasks"]
        # A cancellation between start_next and the registration of this attempt has only changed the state.
        current = await tools.access.read(self._store.get, self._record.project, self._record.id)
        if self._is_cancelled or current is None or current.state is not State.RUNNING:
            return _End(State.CANCELLED)
        self._job = job
        timeout_s = tools.default_timeout_s if self._record.timeout_s is None else self._record.timeout_s
        timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
        last: Report | None = None
        try:
            async with aclosing(tools.executor.run(self._reservation, job)) as reports:
                async for report in reports:
                    await self._handle(report)
                    last = report
        finally:
            timer.cancel()
            for write in self._progress_writes:
                write.cancel()
        return await self._conclude(last, timeout_s)

    async def _conclude(self, last: Report | None, timeout_s: float) -> _End:
        if isinstance(last, Finished):
            for task in self._suite_tasks:
                if all(task["name"] != known.task for known in self._record.tasks):
                    await self._record_task(outcomes.unreported_task(str(task["name"])))
            failure = outcomes.verdict(self._record.tasks)
            return _End(State.FAILED if failure else State.SUCCEEDED, failure, last.statistics)
        if self._is_timed_out:
            text = f"the evaluation ran longer than its timeout of {timeout_s:g} s and was stopped"
            return _End(State.FAILED, Failure("EVALUATION_TIMEOUT", text, {"timeout_s": f"{timeout_s:g}"}))
        if isinstance(last, Cancelled) and self._is_cancelled:
            return _End(State.CANCELLED)
        if isinstance(last, Failed):
            if self._is_handed_back and last.failure.reason == "RUNNER_LOST":
                raise DeviceLost(self._device)
            await self._drop_damaged(last.failure)
            return _End(State.FAILED, last.failure)
        return _End(State.FAILED, Failure("RUNNER_ERROR", "the runner stopped without being asked to"))

    async def _handle(self, report: Report) -> None:
        if isinstance(report, ProgressReport):
            self._offer_progress(report.progress)
        elif isinstance(report, TaskReport):
            wanted = next((task for task in self._suite_tasks if task["name"] == report.task), None)
            if wanted is None:
                _log.warning("a report on an unknown task was ignored", extra={"task": report.task[:80]})
                return
            for failure in report.failures:
                _log.info("a sample failed", extra={"evaluation": self._record.name, "sample_failure": failure})
            metrics = wanted["metrics"]
            assert isinstance(metrics, list)
            await self._record_task(await asyncio.to_thread(outcomes.scored_task, report, metrics))
        elif isinstance(report, TaskFailedReport) and any(t["name"] == report.task for t in self._suite_tasks):
            await self._drop_damaged(report.failure)
            await self._record_task(outcomes.failed_task(report.task, report.failure))

    async def _record_task(self, task: TaskRecord) -> None:
        self._progress_waiting = None  # It would come after the end of the task that it is about.
        record = await self._tools.access.write(self._store.record_task, self._record.uid, self._token, task)
        if record is not None:
            self._record = record

    async def _drop_damaged(self, failure: Failure) -> None:
        """Verifies a blob that a runner found damaged, so that the client is asked to send it again."""
        digest = failure.metadata.get("digest", "")
        if failure.reason in _SAYS_DAMAGED and digest:
            await self._tools.library.drop_damaged(self._record.project, [digest])

    def _offer_progress(self, progress: ProgressRecord) -> None:
        """Logs progress at most once a second; of what comes in between, the newest is logged later."""
        self._progress_waiting = progress
        if not self._progress_writes:
            task = asyncio.ensure_future(self._write_progress())
            self._progress_writes.add(task)
            task.add_done_callback(self._progress_writes.discard)

    async def _write_progress(self) -> None:
        wait_s = self._progress_time + _PROGRESS_INTERVAL_S - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        progress, self._progress_waiting = self._progress_waiting, None
        self._progress_time = time.monotonic()
        if progress is None:
            return
        try:
            await self._tools.access.write(self._store.record_progress, self._record.uid, self._token, progress)
        except Exception:
            _log.exception("progress could not be stored", extra={"evaluation": self._record.name})

    def _time_out(self) -> None:
        self._is_timed_out = True
        if self._job is not None:
            self._tools.executor.cancel(self._device, self._job.id)

    async def _settle(self, end: _End | None) -> EvaluationRecord | None:
        """Stores the end, or puts the evaluation back; tries again for as long as the database cannot take it."""
        uid, token, access = self._record.uid, self._token, self._tools.access
        while True:
            try:
                if end is None:
                    return await access.write(self._store.requeue, uid, token)
                return await access.write(self._store.finish, uid, token, end.state, end.failure, end.statistics)
            except Exception:
                _log.exception("the end of an attempt cannot be stored yet", extra={"evaluation": self._record.name})
                await asyncio.sleep(_RETRY_S)
