"""An evaluation service on this machine for as long as an example runs.

Where a service runs already, none of this is needed: a training job only needs its address.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class LocalService:
    """`mindeval serve` in a process of its own, with its data in a temporary folder.

    A process of its own because MindSpore (the trainer, this process) and gRPC (the service) do not share one.

    Attributes:
        folder: Temporary folder, removed at the end; the service's data are below it, and examples may use it too.
        endpoint: "host:port" of the running service.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mindeval-example-"))
        self.endpoint = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalService:
        data_dir = self.folder / "service"
        arguments = ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--devices", "cpu:1"]
        print("$ mindeval serve", *arguments, flush=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mindeval.service", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
        try:
            self.endpoint = self._wait_for_endpoint(data_dir / "endpoint")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def log_path(self) -> Path:
        """What the service wrote."""
        return self.folder / "service.log"

    def command(self, *arguments: str) -> None:
        """Runs a `mindeval` command against the service, and shows it.

        Raises:
            SystemExit: When it fails; its message is on standard error.
        """
        print("$ mindeval", *arguments, flush=True)
        command = [sys.executable, "-m", "mindeval.client.cli", "--endpoint", self.endpoint, "--quiet", *arguments]
        done = subprocess.run(command, env=_environment(), check=False)
        if done.returncode:
            raise SystemExit(f"`mindeval {' '.join(arguments)}` failed with exit code {done.returncode}")

    def _wait_for_endpoint(self, path: Path) -> str:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not path.exists() or not path.read_text("utf-8").strip():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the service did not start:\n{self.log_path.read_text('utf-8', 'replace')[-4000:]}")
            time.sleep(0.05)
        return path.read_text("utf-8").strip()

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """This process's environment without what MindSpore put there for itself: a slow protobuf implementation."""
    return {key: value for key, value in os.environ.items() if key != "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"}
