"""The runner process: `python -m mindeval.service.runtime.worker --fd N --device cpu:0`.

Three threads: this one does all MindSpore work (graph calls from several threads crash it), one receives frames, one
sends heartbeats and progress. The parent sets PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python in the environment:
MindSpore's own generated protobuf code needs it, and the runner uses no protobuf itself. MindSpore writes files
(rank_0/ on a compile error) into the working directory, so the parent starts a runner in a private one.

Environment:
    MINDEVAL_RUNNER_THREADS: upper bound of MindSpore's threads; its own choice when unset.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from mindeval.formats import frames
from mindeval.formats.errors import MindEvalError
from mindeval.service.build import evaluator_build
from mindeval.service.runtime.device import Device
from mindeval.service.runtime.errors import describe
from mindeval.service.runtime.messages import JobRequest
from mindeval.service.runtime.reporting import Outlet, Reporter

# How long a batch may go on after the service has gone, before the process ends in the middle of it.
_ORPHAN_S = 10.0

_log = logging.getLogger(__name__)


class Inbox:
    """Receives frames on a thread of its own: jobs are queued, a cancel is noted at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two fields below
        self._cancelled: set[str] = set()
        self._gone = False
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def next(self) -> dict[str, Any] | None:
        """Waits for the next `evaluate` message; None when the runner should end."""
        return self._jobs.get()

    def is_cancelled(self, job: str) -> bool:
        """Whether the job was cancelled, or nobody is there any more to want it."""
        with self._lock:
            return self._gone or job in self._cancelled

    def forget(self, job: str) -> None:
        """Drops the note of a job that has ended; the service may use its name again."""
        with self._lock:
            self._cancelled.discard(job)

    def ended(self) -> None:
        """Says that the main thread is leaving by itself."""
        self._idle.set()

    def _run(self) -> None:
        try:
            while True:
                message = frames.receive(self._connection)
                if message is None:
                    break
                if message["type"] == "shutdown":
                    self._jobs.put(None)
                elif message["type"] == "cancel":
                    with self._lock:
                        self._cancelled.add(str(message.get("job")))
                elif message["type"] == "evaluate":
                    self._jobs.put(message)
                else:
                    _log.warning("unknown message type %r ignored", message["type"])
        except (frames.FrameError, OSError) as error:
            _log.error("the service's messages cannot be read: %s", error)
        with self._lock:
            self._gone = True
        self._jobs.put(None)
        if not self._idle.wait(_ORPHAN_S):
            _log.error("the service has gone and the current batch does not end; exiting")
            os._exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until `shutdown` or end of file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mindeval.service.runtime.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited descriptor of a connected stream socket")
    parser.add_argument("--device", required=True, help="cpu:N or ascend:N")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        device = Device.parse(options.device)
        version = device.set_up()
    except MindEvalError as error:
        _log.error("cannot start: %s", error)
        return 2
    # Imported after the device is set up: these modules load MindSpore.
    from mindeval.service.runtime.job import JobRunner, Session

    # Ctrl-C in a terminal reaches the whole process group; the service decides when its runners end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=options.fd)
    outlet, inbox = Outlet(connection), Inbox(connection)
    reporter = Reporter(outlet)
    session = Session(device)
    outlet.send(
        {
            "type": "ready",
            "pid": os.getpid(),
            "device": str(device),
            "mindspore": version,
            "build": evaluator_build(),
        }
    )
    inbox.start()
    reporter.start()
    while (message := inbox.next()) is not None:
        job = str(message.get("job"))
        reporter.begin(job)
        try:
            request = JobRequest.parse(message)
            JobRunner(request, session, outlet, reporter, lambda job=job: inbox.is_cancelled(job)).run()  # type: ignore[misc]
        except Exception as error:  # a malformed message, or a defect outside the job
            _log.exception("job %r", job)
            outlet.send({"type": "failed", "job": job, "error": describe(error)})
        finally:
            reporter.end()
            inbox.forget(job)
    inbox.ended()
    reporter.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
