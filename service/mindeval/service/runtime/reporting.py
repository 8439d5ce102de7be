"""What a runner says while it works: frames out, and the thread that sends heartbeats and progress.

The thread that computes only notes its progress; another thread sends the latest note at most four times a second, so
that a slow reader of the socket never slows a batch down.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any

from mindeval.formats import frames

HEARTBEAT_S = 2.0
PROGRESS_S = 0.25

_log = logging.getLogger(__name__)


class Outlet:
    """Sends frames to the service; any thread may."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # one frame at a time; held while sending

    def send(self, message: dict[str, Any]) -> None:
        """Sends one message; a service that has gone is noticed by the reader, so a broken pipe is only logged."""
        data = frames.encode(message)
        try:
            with self._lock:
                self._connection.sendall(data)
        except OSError as error:
            _log.warning("cannot send %s: %s", message["type"], error)


class Reporter:
    """Heartbeats and progress, from a daemon thread of its own."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._lock = threading.Lock()  # guards the two fields below; never held while sending
        self._job: str | None = None
        self._note: dict[str, Any] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join(timeout=1.0)

    def begin(self, job: str) -> None:
        """From now on heartbeats name this job."""
        with self._lock:
            self._job = job

    def end(self) -> None:
        """No job any more."""
        with self._lock:
            self._job = self._note = None

    def progress(self, task: str, phase: str, done: int, total: int, unit: str) -> None:
        """Notes progress of the current job; only the latest note is sent."""
        with self._lock:
            self._note = {
                "type": "progress", "job": self._job, "task": task, "phase": phase,
                "done": done, "total": total, "unit": unit,
            }  # fmt: skip

    def clear_progress(self) -> None:
        """Drops a note that was not sent yet: what follows says more."""
        with self._lock:
            self._note = None

    def _run(self) -> None:
        next_heartbeat = time.monotonic()
        while not self._stopped.wait(PROGRESS_S):
            with self._lock:
                note, self._note = self._note, None
                job = self._job
            if note is not None:
                self._outlet.send(note)
            if time.monotonic() >= next_heartbeat:
                self._outlet.send({"type": "heartbeat", "job": job})
                next_heartbeat = time.monotonic() + HEARTBEAT_S
