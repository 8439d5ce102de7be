"""Runner processes on this machine: one a device, replaced whenever it is gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from mindeval.formats import frames
from mindeval.service.execution.executor import DeviceLost, DeviceState, DeviceStatus, Executor, Reservation
from mindeval.service.execution.job import Cancelled, Failed, Job, Report, is_last, parse_report
from mindeval.service.execution.runner import RunnerOptions, RunnerProcess, RunnerStartError
from mindeval.service.storage.records import Failure

_log = logging.getLogger(__name__)

_FAILURES_BEFORE_GIVING_UP = 3
_FIRST_BACK_OFF_S = 0.5
_MAX_BACK_OFF_S = 60.0
# A runner that ends so soon, without a job, would only be started in circles.
_SHORT_LIFE_S = 5.0
_SHUTDOWN_GRACE_S = 3.0


class _Slot:
    """A device: its runner, and the job that the runner is at work on. Used on the event loop only."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.state = DeviceState.STARTING
        self.runner: RunnerProcess | None = None
        self.evaluator_build = ""
        self.start_failures = 0
        self.start_failure: Failure | None = None
        self.had_job = False
        self.serial = 0
        self.job_id = ""
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.kill_timer: asyncio.TimerHandle | None = None
        self.killed_for_cancel = False

    def clear_job(self) -> None:
        if self.kill_timer is not None:
            self.kill_timer.cancel()
        self.kill_timer = None
        self.killed_for_cancel = False
        self.job_id = ""


class LocalExecutor(Executor):
    """See `Executor`."""

    def __init__(self, devices: Sequence[str], folder: Path, options: RunnerOptions, cancel_grace_s: float) -> None:
        """Prepares the devices.

        Args:
            devices: Their names, such as "cpu:0".
            folder: Gets one working directory a device.
            options: How runners are started and watched.
            cancel_grace_s: Seconds that a runner has to let go of a cancelled job.
        """
        self._folder = folder
        self._options = options
        self._cancel_grace_s = cancel_grace_s
        self._slots = {device: _Slot(device) for device in devices}
        self._keepers: list[asyncio.Task[None]] = []
        self._on_change: Callable[[], None] = lambda: None

    @override
    async def start(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._keepers = [asyncio.ensure_future(self._keep(slot)) for slot in self._slots.values()]

    @override
    def devices(self) -> list[DeviceStatus]:
        return [DeviceStatus(slot.device, slot.state, slot.evaluator_build) for slot in self._slots.values()]

    @override
    def start_failure(self) -> Failure | None:
        slots = list(self._slots.values())
        if all(slot.runner is None and slot.start_failures >= _FAILURES_BEFORE_GIVING_UP for slot in slots):
            return slots[0].start_failure
        return None

    @override
    def reserve(self, device: str) -> Reservation:
        slot = self._slots[device]
        assert slot.state is DeviceState.IDLE
        slot.state = DeviceState.BUSY
        slot.serial += 1
        return Reservation(device, slot.serial)

    @override
    def release(self, reservation: Reservation) -> None:
        slot = self._slots[reservation.device]
        if slot.serial == reservation.serial and slot.state is DeviceState.BUSY and not slot.job_id:
            slot.state = DeviceState.IDLE

    @override
    async def run(self, reservation: Reservation, job: Job) -> AsyncGenerator[Report, None]:
        slot = self._slots[reservation.device]
        runner = slot.runner
        if slot.serial != reservation.serial or slot.state is not DeviceState.BUSY or runner is None:
            raise DeviceLost(slot.device)
        slot.had_job = True
        slot.job_id = job.id
        slot.reports = asyncio.Queue()
        ended = False
        try:
            runner.send(job.encoded)
            while not ended:
                report = await slot.reports.get()
                ended = is_last(report)
                if ended:
                    # Before the caller sees the end, so that the device can be given its next job at once.
                    self._end_job(slot, runner)
                yield report
        finally:
            if not ended:
                runner.kill()
                slot.clear_job()
                if slot.runner is runner:
                    slot.state = DeviceState.LOST

    @override
    def cancel(self, device: str, job_id: str) -> None:
        slot = self._slots[device]
        if slot.job_id != job_id or slot.runner is None or slot.kill_timer is not None:
            return
        slot.runner.send(frames.encode({"type": "cancel", "job": job_id}))
        slot.kill_timer = asyncio.get_running_loop().call_later(self._cancel_grace_s, self._kill, slot, job_id)

    @override
    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def _end_job(self, slot: _Slot, runner: RunnerProcess) -> None:
        slot.clear_job()
        if slot.runner is runner and slot.state is DeviceState.BUSY:
            slot.state = DeviceState.IDLE
            self._on_change()

    def _kill(self, slot: _Slot, job_id: str) -> None:
        if slot.job_id == job_id and slot.runner is not None:
            _log.warning("a runner did not let go of a cancelled job and is ended", extra={"device": slot.device})
            slot.killed_for_cancel = True
            slot.runner.kill()

    async def _keep(self, slot: _Slot) -> None:
        """Keeps a runner alive on a device until it is cancelled."""
        while True:
            slot.state = DeviceState.STARTING
            runner = RunnerProcess(slot.device, self._folder / slot.device.replace(":", "-"), self._options)
            try:
                failure = await self._live(slot, runner)
            except RunnerStartError as error:
                failure = Failure("RUNNER_START_FAILED", str(error), {"device": slot.device})
            except asyncio.CancelledError:
                # Only one that is ready and idle can leave by itself.
                leaves = slot.runner is runner and not slot.job_id
                slot.runner = None
                self._lose(slot, Failure("RUNNER_LOST", "the service is shutting down", {"device": slot.device}))
                await runner.end(_SHUTDOWN_GRACE_S if leaves else 0.0)
                raise
            except Exception as error:
                _log.exception("the keeper of a runner failed", extra={"device": slot.device})
                failure = Failure("RUNNER_START_FAILED", f"{type(error).__name__}: {error}", {"device": slot.device})
            slot.runner = None
            self._lose(slot, failure)
            await runner.end()
            if failure.reason != "RUNNER_START_FAILED":
                continue
            slot.start_failures += 1
            slot.start_failure = failure
            wait_s = min(_FIRST_BACK_OFF_S * 2.0 ** (slot.start_failures - 1), _MAX_BACK_OFF_S)
            _log.error(
                "RUNNER_START_FAILED: %s; next try in %g s", failure.message, wait_s, extra={"device": slot.device}
            )
            self._on_change()
            await asyncio.sleep(wait_s)

    async def _live(self, slot: _Slot, runner: RunnerProcess) -> Failure:
        """One life of a runner, from its start to its end."""
        ready = await runner.start()
        slot.runner = runner
        slot.evaluator_build = str(ready.get("build", ""))
        slot.had_job = False
        slot.state = DeviceState.IDLE
        _log.info("runner ready", extra={"device": slot.device, "pid": ready.get("pid")})
        begin = time.monotonic()
        self._on_change()
        failure = await runner.serve(partial(self._on_message, slot))
        if slot.had_job or time.monotonic() - begin > _SHORT_LIFE_S:
            slot.start_failures = 0
            slot.start_failure = None
            return failure
        return Failure("RUNNER_START_FAILED", failure.message, failure.metadata)

    def _lose(self, slot: _Slot, failure: Failure) -> None:
        """Tells the job of a runner that is gone."""
        slot.state = DeviceState.LOST
        slot.serial += 1  # A reservation was for the runner that is gone, not for its successor.
        if slot.job_id:
            _log.warning("%s: %s", failure.reason, failure.message, extra={"device": slot.device})
            slot.reports.put_nowait(Cancelled() if slot.killed_for_cancel else Failed(failure))

    def _on_message(self, slot: _Slot, message: Mapping[str, Any]) -> None:
        if message["type"] in ("heartbeat", "ready"):
            return
        if message.get("job") != slot.job_id or not slot.job_id:
            _log.warning(
                "a stale report was ignored", extra={"device": slot.device, "job": str(message.get("job"))[:80]}
            )
            return
        slot.reports.put_nowait(parse_report(message, slot.device))
