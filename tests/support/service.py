"""The real service in a process of its own, for tests of everything that talks to it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

T = TypeVar("T")

FAULTY_RUNNER = (sys.executable, str(Path(__file__).with_name("faulty_runner.py")))
"""`runner_command` of the scripted runner, which needs no MindSpore."""

_LAUNCH = Path(__file__).parents[2] / "service/mindeval/service/execution/launch.py"


def wait_until(condition: Callable[[], T], timeout_s: float = 20.0, what: str = "the condition") -> T:
    """Waits until a condition gives something true, and returns that.

    Raises:
        AssertionError: When that takes too long.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s; last value: {value!r}")
        time.sleep(0.01)


class ServiceProcess:
    """`python -m mindeval.service` on a free port of this machine.

    with ServiceProcess(runner_command=FAULTY_RUNNER) as service:
        channel = grpc.insecure_channel(service.endpoint)

    Attributes:
        data_dir: Its data directory; a temporary one, removed at the end, unless it was given.
        endpoint: "127.0.0.1:PORT"; may change with a restart.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        devices: str = "cpu:1",
        runner_command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
        **settings: Any,
    ) -> None:
        """Prepares a service; `start` or `with` starts it.

        Args:
            data_dir: Its data directory.
            devices: As the option --devices.
            runner_command: Instead of the real runner.
            env: Additional variables for the service and its runners.
            listen: As the option --listen.
            settings: Further settings by name, such as heartbeat_timeout_s=2.
        """
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="mindeval-test-")) if data_dir is None else Path(data_dir)
        self.endpoint = ""
        self._devices = devices
        self._listen = listen
        self._env = dict(env or {})
        self._settings = {"log_level": "debug", **settings}
        if runner_command is not None:
            self._settings["runner_command"] = list(runner_command)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running service."""
        assert self._process is not None
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """File with everything that the service wrote, over all its starts."""
        return self.data_dir / "service.log"

    def start(self, timeout_s: float = 60.0) -> ServiceProcess:
        """Starts the service and waits until it is healthy.

        Raises:
            AssertionError: When it ends, or is not healthy in time; with its log.
        """
        self.launch()
        deadline = time.monotonic() + timeout_s
        try:
            while not self._is_serving():
                assert self._process is not None
                code = self._process.poll()
                assert code is None, f"the service ended with exit code {code}:\n{self.log()}"
                assert time.monotonic() < deadline, f"the service is not healthy after {timeout_s:g} s:\n{self.log()}"
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Starts the process without waiting for anything."""
        assert self._process is None or self._process.poll() is not None, "the service is running already"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self.data_dir / "endpoint").unlink()
        config = self.data_dir / "test-settings.toml"
        # JSON values of these kinds are TOML values as well.
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in self._settings.items()))
        command = [sys.executable, "-m", "mindeval.service", "--data-dir", str(self.data_dir)]
        command += ["--listen", self._listen, "--devices", self._devices, "--config", str(config)]
        if threading.current_thread() is threading.main_thread():
            # The service must not outlive a test run that is killed.
            command = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), *command]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MINDEVAL_")}
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**clean, **self._env},
                start_new_session=True,
            )
        atexit.register(self.kill)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits until the process has ended, and returns its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the service did not end within {timeout_s:g} s:\n{self.log()}") from None

    def stop(self, timeout_s: float = 60.0) -> int:
        """Asks the service to shut down (SIGTERM), and returns its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Ends the service with SIGKILL; its runners end with it."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            atexit.unregister(self.kill)

    def restart(self) -> ServiceProcess:
        """Starts the service again in the same data directory, after stopping it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self.stop()
        return self.start()

    def log(self) -> str:
        """Everything that the service wrote, over all its starts."""
        return self.log_path.read_text("utf-8", errors="replace") if self.log_path.exists() else ""

    def channel(self) -> grpc.Channel:
        """A new channel to the service; to be closed by the caller."""
        return grpc.insecure_channel(self.endpoint, options=[("grpc.use_local_subchannel_pool", 1)])

    def runner_pids(self) -> list[int]:
        """Process ids of the runners, found by who started them."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def __enter__(self) -> ServiceProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _is_serving(self) -> bool:
        try:
            self.endpoint = (self.data_dir / "endpoint").read_text("utf-8").strip()
        except FileNotFoundError:
            return False
        with self.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                response = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            except grpc.RpcError:
                return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)
