"""A scripted runner that speaks the protocol of docs/formats.md without MindSpore, and misbehaves on request.

`python faulty_runner.py --fd N --device D`. The first line of a task's first dataset file tells what it does with the
task, as "MODE [ARGUMENT]"; other lines are documents, of which each word counts as a token with a loss of 1.

    ok                  progress, then the result
    gate PATH           progress until PATH exists (or the job is cancelled), then as ok
    once MODE PATH      MODE the first time (PATH is made then), afterwards ok
    crash               exits with 7
    kill                ends by SIGKILL
    hang                stops itself with SIGSTOP
    deaf                goes on for ever, cancelled or not
    garbage             sends bytes that are no frame
    nonsense            sends a frame that is no report
    stale               reports for another attempt first, then as ok
    badstate            sends a metric state that cannot be read
    silent              says that it has finished without reporting the task
    fail REASON [K=V]   says that the job cannot be done
    taskfail REASON     says that the task cannot be done
    partial             as ok, with one sample failed

With FAULTY_RUNNER_START=exit it ends before it is ready, with "mute" it never gets ready.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from mindeval.formats import frames

_BEAT_S = 0.2
_TICK_S = 0.02


class JobCancelledError(Exception):
    """The service asked to stop."""


class FaultyRunner:
    """One process's worth of misbehaviour."""

    def __init__(self, connection: socket.socket, device: str) -> None:
        self._connection = connection
        self._device = device
        self._lock = threading.Lock()
        self._cancelled: set[str] = set()
        self._job = ""

    def send(self, **message: Any) -> None:
        with self._lock:
            self._connection.sendall(frames.encode(message))

    def run(self) -> None:
        jobs: list[dict[str, Any]] = []
        arrived = threading.Condition()

        def listen() -> None:
            while True:
                message = frames.receive(self._connection)
                if message is None or message["type"] == "shutdown":
                    os._exit(0)
                if message["type"] == "cancel":
                    self._cancelled.add(message["job"])
                    continue
                with arrived:
                    jobs.append(message)
                    arrived.notify()

        def beat() -> None:
            while True:
                time.sleep(_BEAT_S)
                self.send(type="heartbeat", job=self._job or None)

        self.send(type="ready", pid=os.getpid(), device=self._device, mindspore="none", build="faulty+0")
        threading.Thread(target=listen, daemon=True).start()
        threading.Thread(target=beat, daemon=True).start()
        while True:
            with arrived:
                arrived.wait_for(lambda: bool(jobs))
                job = jobs.pop(0)
            self.do(job)

    def do(self, job: dict[str, Any]) -> None:
        self._job = job["job"]
        try:
            for task in job["tasks"]:
                if not self.score(task):
                    return
        except JobCancelledError:
            self.send(type="cancelled", job=self._job)
            return
        finally:
            self._job = ""
        statistics = {
            "load_seconds": 0.5,
            "compile_seconds": 0.25,
            "compute_seconds": 1.5,
            "compiled_graphs": 1,
            "warm": False,
        }
        self.send(type="finished", job=job["job"], statistics=statistics)

    def score(self, task: dict[str, Any]) -> bool:
        """Does one task; False when the job ends with it."""
        path, offset, size = task["dataset"]["files"][0]["location"]
        head, *documents = Path(path).read_bytes()[offset : offset + size].decode("utf-8").splitlines()
        mode, *arguments = head.split()
        self.progress(task, 0, len(documents))
        if mode == "once":
            mode, flag = arguments
            mode = "ok" if os.path.exists(flag) else mode
            Path(flag).touch()
        if mode == "crash":
            print("the runner is about to crash", flush=True)
            os._exit(7)
        if mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)
        if mode == "garbage":
            with self._lock:
                self._connection.sendall(b"\xff\xff\xff\xffthis is not a frame")
            time.sleep(60)
        if mode == "nonsense":
            self.send(type="progress", job=self._job, task=3)
            time.sleep(60)
        if mode == "deaf":
            while True:
                time.sleep(_TICK_S)
        if mode == "fail":
            metadata = dict(argument.split("=", 1) for argument in arguments[1:])
            error = {"reason": arguments[0], "message": "this job was told to fail", "metadata": metadata}
            self.send(type="failed", job=self._job, error=error)
            return False
        if mode == "taskfail":
            error = {"reason": arguments[0], "message": "this task was told to fail", "metadata": {"sample": "3"}}
            self.send(type="task_failed", job=self._job, task=task["name"], error=error)
            return True
        if mode == "silent":
            return True
        if mode == "gate":
            self.wait_for(Path(arguments[0]), task)
        job = self._job
        if mode == "stale":
            self.result("another.1.token", task, ["stale"], failed=0)
            self.send(
                type="failed", job="another.1.token", error={"reason": "OUT_OF_MEMORY", "message": "", "metadata": {}}
            )
        if mode == "badstate":
            self.report(job, task, {"family": "unheard of"}, 1, 0)
            return True
        self.result(job, task, documents, failed=1 if mode == "partial" else 0)
        self.progress(task, len(documents), len(documents))
        return True

    def wait_for(self, gate: Path, task: dict[str, Any]) -> None:
        ticks = 0
        while not gate.exists():
            if self._job in self._cancelled:
                raise JobCancelledError
            ticks += 1
            if ticks % 10 == 0:
                self.progress(task, ticks, ticks + 1)
            time.sleep(_TICK_S)

    def progress(self, task: dict[str, Any], done: int, total: int) -> None:
        self.send(
            type="progress", job=self._job, task=task["name"], phase="scoring", done=done, total=total, unit="documents"
        )

    def result(self, job: str, task: dict[str, Any], documents: list[str], failed: int) -> None:
        # Here, so that a runner is ready sooner: most starts in the tests never score anything.
        import numpy as np

        from mindeval.service.metrics import create

        state = create("language_modeling", {})
        scored = documents[: len(documents) - failed]
        for number, text in enumerate(scored):
            words = max(len(text.split()), 1)
            state.update(
                document_ids=[f"doc-{number}"],
                window_indices=[0],
                token_nll=[np.full(words, 1.0)],
                token_correct=[np.ones(words, dtype=bool)],
                words=[words],
                utf8_bytes=[max(len(text.encode("utf-8")), 1)],
            )
        self.report(job, task, state.to_dict(), len(documents), failed)

    def report(self, job: str, task: dict[str, Any], state: dict[str, Any], expected: int, failed: int) -> None:
        failures = [{"sample": "last", "reason": "DATASET_INVALID", "message": "told to fail"}] * failed
        self.send(
            type="task_result",
            job=job,
            task=task["name"],
            state=state,
            expected_count=expected,
            scored_count=expected - failed,
            failed_count=failed,
            failures=failures,
            device_seconds=0.125,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--device", required=True)
    arguments = parser.parse_args()
    start = os.environ.get("FAULTY_RUNNER_START", "")
    if start == "exit":
        sys.exit("told to fail at the start")
    if start == "mute":
        time.sleep(3600)
    FaultyRunner(socket.socket(fileno=arguments.fd), arguments.device).run()


if __name__ == "__main__":
    main()
