"""Training metrics on their way to the service: buffered, bounded, sent in batches."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from mindeval.client._connection import Connection
from mindeval.client._errors import ServiceError
from mindeval.client._retry import Retry
from mindeval.v1 import run_pb2

MAX_POINTS = 10_000
_BATCH_POINTS = 500
# Points that arrive together travel together.
_GATHER_S = 0.2

Report = Callable[[str, str, str], None]
"""Called with level, code and message."""


class Telemetry:
    """Keeps the newest points and sends them, oldest first, while `run` runs."""

    def __init__(self, connection: Connection, run_name: str, report: Report) -> None:
        self._connection = connection
        self._run_name = run_name
        self._report = report
        self._points: collections.deque[run_pb2.TrainingMetrics] = collections.deque()
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._flushing = False
        self._dropped = 0
        self._refused: set[str] = set()

    def add(self, points: list[run_pb2.TrainingMetrics]) -> None:
        """Buffers points; the oldest give way."""
        self._points.extend(points)
        while len(self._points) > MAX_POINTS:
            self._points.popleft()
            if self._dropped == 0:
                message = f"more than {MAX_POINTS} training metrics wait for the service; the oldest are dropped"
                self._report("warning", "TRAIN_METRICS_DROPPED", message)
            self._dropped += 1
        if self._points:
            self._empty.clear()
            self._wake.set()

    async def flush(self) -> None:
        """Waits until everything was sent."""
        self._flushing = True
        self._wake.set()
        await self._empty.wait()

    async def run(self) -> None:
        """Sends until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._flushing:
                await asyncio.sleep(_GATHER_S)
            while self._points:
                await self._send([self._points.popleft() for _ in range(min(_BATCH_POINTS, len(self._points)))])
            self._empty.set()

    async def _send(self, batch: list[run_pb2.TrainingMetrics]) -> None:
        request = run_pb2.ReportTrainingMetricsRequest(run=self._run_name, points=batch)
        retry = Retry()
        while True:
            try:
                await self._connection.attempt("RunService", "ReportTrainingMetrics", request)
                break
            except ServiceError as error:
                if not error.retryable:
                    # Said once a reason: the next batch will most likely be refused as well.
                    if error.reason not in self._refused:
                        self._refused.add(error.reason)
                        message = f"training metrics were refused: {error.message}"
                        self._report("warning", error.reason, message)
                    return
                await retry.pause(error, self._connection.patience_for(error))
        if self._dropped:
            message = f"{self._dropped} training metrics were dropped while the service was away"
            self._report("warning", "TRAIN_METRICS_DROPPED", message)
            self._dropped = 0
