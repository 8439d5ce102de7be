"""Gives queued evaluations to idle devices, oldest first, and follows each until it has ended."""

from __future__ import annotations

import asyncio
import logging

from mindeval.service.background import Background
from mindeval.service.execution.executor import DeviceState, DeviceStatus, Reservation
from mindeval.service.scheduling.attempt import Attempt, AttemptTools
from mindeval.service.storage.records import EvaluationRecord, State

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_HAND_BACK_S = 10.0


class Scheduler:
    """The one scheduler of a service. Everything happens on the event loop, one decision after another."""

    def __init__(self, tools: AttemptTools, background: Background) -> None:
        self._tools = tools
        self._background = background
        self._access = tools.access
        self._store = tools.access.store.evaluations
        self._executor = tools.executor
        self._wake = asyncio.Event()
        self._attempts: dict[str, Attempt] = {}
        self._followers: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[bool] | None = None

    async def start(self) -> None:
        """Puts back what an earlier life of the service has left RUNNING, then begins to hand out work."""
        for record in await self._access.write(self._store.recover):
            _log.info("recovered after a restart", extra={"evaluation": record.name, "state": record.state.name})
        await self._executor.start(self.wake)
        self._loop_task = asyncio.ensure_future(self._run())
        self.wake()

    def wake(self) -> None:
        """Says that there may be something to do."""
        self._wake.set()

    async def cancel(self, project: str, evaluation_id: str, etag: str) -> EvaluationRecord:
        """Asks for the end of an evaluation; see `Evaluations.cancel`."""
        return await self._background.to_the_end(self._cancel(project, evaluation_id, etag))

    async def drain(self, grace_s: float) -> None:
        """Hands out nothing more, waits for what is running, and puts back what does not end in time.

        Args:
            grace_s: Seconds to wait.
        """
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)
        if self._followers:
            _log.info("waiting for running evaluations", extra={"count": len(self._followers)})
            await asyncio.wait(set(self._followers), timeout=grace_s)
        for attempt in self._attempts.values():
            attempt.hand_back()
        await self._executor.stop()
        if self._followers:
            # What cannot be put back now, because the database does not take it, is recovered at the next start.
            await asyncio.wait(set(self._followers), timeout=_HAND_BACK_S)

    async def _cancel(self, project: str, evaluation_id: str, etag: str) -> EvaluationRecord:
        record = await self._access.write(self._store.cancel, project, evaluation_id, etag)
        attempt = self._attempts.get(record.uid)
        if record.state is State.CANCELLING and attempt is not None:
            attempt.cancel()
        return record

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._dispatch()
            except Exception:
                _log.exception("the scheduler could not hand out work")
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _dispatch(self) -> None:
        failure = self._executor.start_failure()
        if failure is not None:
            failed = await self._access.write(self._store.fail_queued, failure)
            if failed:
                _log.error("no runner can be started; %d queued evaluations failed", len(failed))
            return
        while True:
            idle = next((device for device in self._executor.devices() if device.state is DeviceState.IDLE), None)
            if idle is None or not await self._assign(idle):
                return

    async def _assign(self, device: DeviceStatus) -> bool:
        """Gives the oldest queued evaluation to a device; False when there is none."""
        reservation = self._executor.reserve(device.name)
        # Shielded: an evaluation that was taken must have a follower, also when the service begins to drain meanwhile.
        self._taking = asyncio.ensure_future(self._take(reservation, device.evaluator_build))
        return await asyncio.shield(self._taking)

    async def _take(self, reservation: Reservation, evaluator_build: str) -> bool:
        record = None
        try:
            record = await self._access.write(self._store.start_next, reservation.device, evaluator_build)
        finally:
            if record is None:
                self._executor.release(reservation)
        if record is None:
            return False
        attempt = Attempt(self._tools, record, reservation)
        self._attempts[record.uid] = attempt
        follower = asyncio.ensure_future(self._follow(record.uid, attempt))
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        return True

    async def _follow(self, uid: str, attempt: Attempt) -> None:
        try:
            await attempt.run()
        finally:
            # After a requeue the next attempt may have taken this place already.
            if self._attempts.get(uid) is attempt:
                del self._attempts[uid]
            self.wake()
