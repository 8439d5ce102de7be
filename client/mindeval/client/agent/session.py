"""One trainer: its lines in, our lines out, and everything that runs in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from mindeval.client import _download
from mindeval.client._connection import Connection
from mindeval.client._errors import ServiceError, unavailable
from mindeval.client._metrics import training_point
from mindeval.client._retry import Patience
from mindeval.client._version import version
from mindeval.client.agent import messages
from mindeval.client.agent.lines import LineReader, LineWriter
from mindeval.client.agent.pushes import Job, PushJob, RideAlong, WatchJob
from mindeval.client.agent.results import error_fields
from mindeval.client.agent.telemetry import Telemetry
from mindeval.formats.errors import FormatError, MindEvalError
from mindeval.v1 import evaluation_pb2, registry_pb2

END_OF_FILE_DEADLINE_S = 30.0
TERMINATE_DEADLINE_S = 5.0
# A fetch is wanted now (the best weights, at the end of training): it gives up where a push would wait on.
_FETCH_PATIENCE_S = 60.0
_MAX_DEADLINE_S = 3600.0

_log = logging.getLogger("mindeval.agent")


@dataclass(frozen=True)
class _Link:
    """What exists once `start` came."""

    start: messages.Start
    connection: Connection
    ride_along: RideAlong
    telemetry: Telemetry


class Session:
    """Reads messages until `stop` or the end of the file, and acts on them."""

    def __init__(self, reader: LineReader, writer: LineWriter, interrupted: asyncio.Event) -> None:
        """Prepares the session.

        Args:
            reader: Lines from the trainer.
            writer: Lines to the trainer.
            interrupted: Ends the session soon (SIGTERM, or nobody reads our lines any more).
        """
        self._reader = reader
        self._writer = writer
        self._link: _Link | None = None
        self._sending = asyncio.Lock()
        self._jobs: dict[int, Job] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._interrupted = interrupted
        self._lost_at: float | None = None
        self._handlers: Mapping[str, Callable[[_Link, Mapping[str, Any]], None]] = {
            "push": self._on_push,
            "watch": self._on_watch,
            "train_metrics": self._on_train_metrics,
            "fetch": self._on_fetch,
            "cancel": self._on_cancel,
        }

    async def run(self) -> None:
        """Serves the trainer until it is gone or said `stop`."""
        self._writer.send("ready", pid=os.getpid(), version=version())
        deadline_s = await self._serve()
        await self._finish(deadline_s)
        self._writer.send("stopped")

    async def _serve(self) -> float:
        """Handles messages; returns the seconds left to finish."""
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        try:
            while True:
                line = asyncio.ensure_future(self._reader.next_line())
                await asyncio.wait({line, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                if not line.done():
                    line.cancel()
                    return TERMINATE_DEADLINE_S
                content = line.result()
                if content is None:
                    _log.info("end of input: the trainer is gone")
                    return END_OF_FILE_DEADLINE_S
                try:
                    kind, fields = messages.parse(content)
                    if kind == "stop":
                        return _deadline(fields)
                    self._handle(kind, fields)
                except MindEvalError as error:
                    self._status("error", error.reason, error.message)
                except Exception as error:
                    _log.exception("message")
                    self._status("error", "INTERNAL", f"push agent: {type(error).__name__}: {error}; see its log")
        finally:
            interrupted.cancel()

    def _handle(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "start":
            self._on_start(fields)
        elif kind not in self._handlers:
            raise FormatError("INVALID_FIELD", f"type: {kind[:40]!r} is not known", {"field": "type"})
        elif self._link is None:
            raise FormatError("INVALID_FIELD", f"type: {kind!r} came before 'start'", {"field": "type"})
        else:
            self._handlers[kind](self._link, fields)

    # --- messages ---

    def _on_start(self, fields: Mapping[str, Any]) -> None:
        if self._link is not None:
            raise FormatError("INVALID_FIELD", "type: 'start' came twice", {"field": "type"})
        start = messages.read_start(fields)
        connection = Connection(
            start.target, Patience(math.inf, math.inf), on_lost=self._service_lost, on_back=self._service_back
        )
        telemetry = Telemetry(connection, start.run_name, self._status)
        self._link = _Link(start, connection, RideAlong(start.files), telemetry)
        self._spawn(telemetry.run())
        self._spawn(self._greet(self._link))

    def _on_push(self, link: _Link, fields: Mapping[str, Any]) -> None:
        push = messages.read_push(fields)
        self._check_new(push.id)
        self._begin(push.id, PushJob(push, link.start, link.ride_along, link.connection, self._sending, self._writer))

    def _on_watch(self, link: _Link, fields: Mapping[str, Any]) -> None:
        watch = messages.read_watch(fields)
        self._check_new(watch.id)
        self._begin(watch.id, WatchJob(watch, link.connection, self._writer))

    def _check_new(self, number: int) -> None:
        if number in self._jobs:
            raise FormatError("INVALID_FIELD", f"id: push {number} is at work already", {"field": "id"})

    def _begin(self, number: int, job: Job) -> None:
        self._jobs[number] = job
        job.task.add_done_callback(lambda _: self._jobs.pop(number, None))

    def _on_train_metrics(self, link: _Link, fields: Mapping[str, Any]) -> None:
        if not link.start.run:
            raise FormatError("INVALID_FIELD", "run: training metrics need one, in 'start'", {"field": "run"})
        points = fields.get("points")
        if not isinstance(points, list):
            raise FormatError("INVALID_FIELD", "points: must be a list", {"field": "points"})
        link.telemetry.add([training_point(point) for point in points])

    def _on_fetch(self, link: _Link, fields: Mapping[str, Any]) -> None:
        self._spawn(
            self._fetch(
                link, messages.number(fields, "id"), messages.text(fields, "evaluation"), messages.text(fields, "path")
            )
        )

    def _on_cancel(self, _link: _Link, fields: Mapping[str, Any]) -> None:
        job = self._jobs.get(messages.number(fields, "id"))
        if job is not None:  # else its result has crossed with this message
            self._spawn(job.cancel())

    # --- work ---

    async def _greet(self, link: _Link) -> None:
        """Says hello as soon as the service is there, and looks for the suite before the first checkpoint travels."""
        try:
            capabilities = await link.connection.capabilities()
            self._writer.send("connected", service_version=capabilities.version)
            request = registry_pb2.GetSuiteRequest(name=link.start.suite)
            await link.connection.call("RegistryService", "GetSuite", request)
        except MindEvalError as error:
            self._status("error", error.reason, error.message)

    async def _fetch(self, link: _Link, number: int, evaluation: str, path: str) -> None:
        # Said unless something better is known: a file that is not there must not be told to be.
        error: dict[str, Any] | None = error_fields("INTERNAL", "push agent: the fetch failed; see its log", {})
        try:
            await self._unless_lost_for_long(link, _fetch_now(link, evaluation, path))
            error = None
        except MindEvalError as failure:
            error = error_fields(failure.reason, failure.message, failure.metadata)
        except OSError as failure:
            message = f"{failure.filename or path}: {(failure.strerror or str(failure)).lower()}"
            error = error_fields("CHECKPOINT_UNWRITABLE", message, {"file": path})
        except asyncio.CancelledError:
            error = error_fields("CANCELLED_BY_USER", "the agent was stopped before it was fetched", {})
            raise
        finally:
            self._writer.send("fetched", id=number, path=path, error=error)

    async def _unless_lost_for_long(self, link: _Link, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        began = time.monotonic()
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=1.0)
                if self._lost_at is not None and time.monotonic() - max(began, self._lost_at) > _FETCH_PATIENCE_S:
                    raise unavailable(link.connection.target.endpoint, f"was away for {_FETCH_PATIENCE_S:.0f} s")
            task.result()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def _finish(self, deadline_s: float) -> None:
        """Drops what was not begun, gives what is at hand its time, and ends the rest."""
        waits: list[Coroutine[Any, Any, Any]] = []
        for job in list(self._jobs.values()):
            if job.is_waiting:
                job.task.cancel()
            else:
                waits.append(job.submitted.wait())
        if self._link is not None:
            waits.append(self._link.telemetry.flush())
        if waits:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.gather(*waits), deadline_s)
        # Evaluations that run go on without us.
        unsent = [job.task for job in self._jobs.values() if not job.submitted.is_set()]
        for task in (*unsent, *self._background):
            task.cancel()
        await asyncio.gather(*unsent, *self._background, return_exceptions=True)

    # --- status ---

    def _service_lost(self, error: ServiceError) -> None:
        self._lost_at = time.monotonic()
        message = f"{error.message}; training goes on, and pushes resume when it is back"
        self._status("warning", "SERVICE_UNAVAILABLE", message)

    def _service_back(self) -> None:
        self._lost_at = None
        self._status("info", "SERVICE_BACK", "the service is back")

    def _status(self, level: str, code: str, message: str) -> None:
        self._writer.send("status", level=level, code=code, message=message)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("background work", exc_info=task.exception())


async def _fetch_now(link: _Link, evaluation: str, path: str) -> None:
    request = evaluation_pb2.GetEvaluationRequest(name=evaluation)
    response = await link.connection.call("EvaluationService", "GetEvaluation", request)
    await _download.fetch(link.connection, link.start.parent, response.evaluation.resolved.checkpoint, path)


def _deadline(fields: Mapping[str, Any]) -> float:
    value = fields.get("deadline_s")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        return 0.0
    return min(float(value), _MAX_DEADLINE_S)
