"""Drives a real runner process over a socketpair, as the service does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from mindeval.formats import frames
from mindeval.formats.digest import digest_file
from mindeval.formats.manifest import Manifest


class Runner:
    """A runner process; use it as a context manager."""

    def __init__(self, work_dir: Path, device: str = "cpu:0", timeout_s: float = 120.0) -> None:
        work_dir.mkdir(parents=True, exist_ok=True)
        self.log_path = work_dir / "runner.log"
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(timeout_s)
        command = [
            sys.executable, "-m", "mindeval.service.runtime.worker", "--fd", str(theirs.fileno()), "--device", device,
        ]  # fmt: skip
        with self.log_path.open("wb") as log, theirs:
            self.process = subprocess.Popen(
                command,
                cwd=work_dir,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
            )
        try:
            self.ready = self.receive()
        except BaseException:
            self.close()
            raise
        self._jobs = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def send(self, message: dict[str, Any]) -> None:
        """Sends one frame."""
        self.connection.sendall(frames.encode(message))

    def receive(self) -> dict[str, Any]:
        """The next frame; raises EOFError when the runner is gone, with its log."""
        message = frames.receive(self.connection)
        if message is None:
            raise EOFError(self.log_path.read_text(encoding="utf-8", errors="replace")[-4000:])
        return message

    def start(
        self,
        manifest: Manifest,
        blobs: dict[str, Path],
        tasks: list[dict[str, Any]],
        changes: dict[str, Any] | None = None,
    ) -> str:
        """Sends an `evaluate` message, with some of its fields changed; returns the job's name."""
        self._jobs += 1
        sizes = manifest.blobs()
        message = {
            "type": "evaluate",
            "job": f"job-{self._jobs}",
            "manifest": location_of(blobs[manifest.digest]) if manifest.digest in blobs else ["", 0, 0],
            "checkpoint": manifest.digest,
            "blobs": {digest: location_of(path, sizes.get(digest)) for digest, path in blobs.items()},
            "tasks": tasks,
        }
        message.update(changes or {})
        self.send(message)
        return str(message["job"])

    def finish(self, job: str) -> list[dict[str, Any]]:
        """Frames of a job until its last one, without heartbeats."""
        received = []
        while True:
            message = self.receive()
            if message["type"] == "heartbeat":
                continue
            assert message["job"] == job, message
            received.append(message)
            if message["type"] in ("finished", "failed", "cancelled"):
                return received

    def evaluate(
        self,
        manifest: Manifest,
        blobs: dict[str, Path],
        tasks: list[dict[str, Any]],
        changes: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Runs a job; returns its frames without heartbeats and progress."""
        frames_of_job = self.finish(self.start(manifest, blobs, tasks, changes))
        return [frame for frame in frames_of_job if frame["type"] != "progress"]


def location_of(path: Path, size_bytes: int | None = None) -> list[Any]:
    """The location of a blob that is a file of its own; its size is that of the file unless it is given."""
    return [str(path), 0, path.stat().st_size if size_bytes is None else size_bytes]


def language_modeling(
    path: Path,
    *,
    name: str = "lm",
    format: str = "text_lines",  # noqa: A002 - the field's own name
    settings: dict[str, Any] | None = None,
    metrics: list[str] | None = None,
    **dataset: Any,
) -> dict[str, Any]:
    """A task of the runner's protocol over one file."""
    return {
        "name": name,
        "type": "language_modeling",
        "metrics": metrics or [],
        "settings": settings or {},
        "dataset": {
            "version": "projects/p/datasets/d/versions/" + "0" * 64,
            "format": format,
            "language": "en",
            "text_field": "text",
            "padding_token": None,
            "files": [{"path": path.name, "digest": digest_file(path), "location": location_of(path)}],
            **dataset,
        },
    }
