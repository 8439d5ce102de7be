"""One runner process: started by exec with one end of a socket pair, listened to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindeval.formats import frames
from mindeval.formats.deadline import within
from mindeval.service.execution import launch
from mindeval.service.execution.job import ReportError
from mindeval.service.storage.records import Failure

_KEPT_LOGS = 3
_TAIL_BYTES = 4096
_TAIL_LINES = 6
_TAIL_CHARACTERS = 500
_EXIT_GRACE_S = 5.0
_LARGE_FRAME_BYTES = 256 << 10

# Set before the interpreter starts: MindSpore and protobuf's C++ runtime cannot share a process.
_ENVIRONMENT = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "GLOG_v": "3", "PYTHONUNBUFFERED": "1"}


class RunnerStartError(Exception):
    """A runner ended, or said nothing for too long, before it was ready."""


@dataclass(frozen=True)
class RunnerOptions:
    """How runners are started and watched; see `Settings`."""

    command: tuple[str, ...]
    start_timeout_s: float
    heartbeat_timeout_s: float


class RunnerProcess:
    """One process. `start`, then `serve` until it is gone; `end` at any time."""

    def __init__(self, device: str, folder: Path, options: RunnerOptions) -> None:
        """Prepares a process.

        Args:
            device: Such as "cpu:0".
            folder: Its working directory, made when it is missing; its logs go there as well.
            options: See there.
        """
        self._device = device
        self._folder = folder
        self._options = options
        self._log_path = folder / "log"
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> Mapping[str, Any]:
        """Starts the process and waits until it is ready.

        Returns:
            Its "ready" message.

        Raises:
            RunnerStartError: With how it ended and the last lines of its log.
        """
        try:
            await self._spawn()
        except OSError as error:
            raise RunnerStartError(f"the runner of {self._device} could not be started: {error}") from None
        assert self._reader is not None
        deadline = time.monotonic() + self._options.start_timeout_s
        try:
            while True:
                remaining = max(deadline - time.monotonic(), 0.001)
                message = await within(_read(self._reader), remaining)
                if message is None:
                    raise RunnerStartError(await self._how_it_ended("before it was ready"))
                if message["type"] == "ready":
                    return message
        except asyncio.TimeoutError:
            waited = self._options.start_timeout_s
            raise RunnerStartError(
                f"the runner of {self._device} was not ready within {waited:g} s{self._log_tail()}"
            ) from None
        except (frames.FrameError, ConnectionError) as error:
            raise RunnerStartError(f"the runner of {self._device} sent no valid frame: {error}") from None

    def send(self, frame: bytes) -> None:
        """Sends an encoded frame; does nothing when the process is gone, which `serve` finds out."""
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(frame)

    async def serve(self, on_message: Callable[[Mapping[str, Any]], None]) -> Failure:
        """Passes on the process's messages until it is gone; ends it when it is silent for too long or talks nonsense.

        Args:
            on_message: Gets every message; may raise ReportError.

        Returns:
            How it ended: RUNNER_LOST or RUNNER_HUNG.
        """
        assert self._reader is not None
        silence_s = self._options.heartbeat_timeout_s
        metadata = {"device": self._device}
        try:
            while True:
                message = await within(_read(self._reader), silence_s)
                if message is None:
                    return Failure("RUNNER_LOST", await self._how_it_ended("while it worked"), metadata)
                on_message(message)
        except asyncio.TimeoutError:
            text = f"the runner of {self._device} was silent for {silence_s:g} s and was ended{self._log_tail()}"
            return Failure("RUNNER_HUNG", text, metadata)
        except (frames.FrameError, ReportError) as error:
            text = f"the runner of {self._device} broke the protocol ({error}) and was ended{self._log_tail()}"
            return Failure("RUNNER_LOST", text, metadata)
        except ConnectionError:
            return Failure("RUNNER_LOST", await self._how_it_ended("while it worked"), metadata)

    def kill(self) -> None:
        """Ends the process and all that it has started, at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self, grace_s: float = 0.0) -> None:
        """Makes sure that the process is gone, after asking it to leave and waiting that long."""
        if self._process is not None:
            if grace_s > 0 and self._writer is not None and self._process.returncode is None:
                self.send(frames.encode({"type": "shutdown"}))
                with contextlib.suppress(asyncio.TimeoutError):
                    await within(self._process.wait(), grace_s)
            self.kill()
            await self._process.wait()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                fd = theirs.fileno()
                command = (*self._options.command, "--fd", str(fd), "--device", self._device)
                log = await asyncio.to_thread(self._open_log)
                try:
                    self._process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),
                        *command,
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        pass_fds=(fd,),
                        cwd=self._folder,
                        env={**os.environ, **_ENVIRONMENT},
                        start_new_session=True,  # Ctrl-C in the terminal is for the service alone.
                    )
                finally:
                    os.close(log)
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            if self._writer is None:
                ours.close()
            raise

    def _open_log(self) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(_KEPT_LOGS, 0, -1):
            older = self._folder / (f"log.{number - 1}" if number > 1 else "log")
            if older.exists():
                os.replace(older, self._folder / f"log.{number}")
        return os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    async def _how_it_ended(self, when: str) -> str:
        assert self._process is not None
        try:
            code = await within(self._process.wait(), _EXIT_GRACE_S)
        except asyncio.TimeoutError:
            return f"the runner of {self._device} hung up {when} and was ended{self._log_tail()}"
        names = {number.value: number.name for number in signal.Signals}
        how = f"with exit code {code}" if code >= 0 else f"by signal {names.get(-code, -code)}"
        return f"the runner of {self._device} ended {how} {when}{self._log_tail()}"

    def _log_tail(self) -> str:
        try:
            with open(self._log_path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        tail = "\n".join(line for line in lines[-_TAIL_LINES:] if line.strip())[-_TAIL_CHARACTERS:]
        return f"; its log ends: {tail}" if tail else f"; its log, {self._log_path}, is empty"


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """As `frames.read`, but large frames (metric states) are decoded off the event loop."""
    try:
        length = int.from_bytes(await reader.readexactly(4), "big")
        if length > frames.MAX_FRAME_BYTES:
            raise frames.FrameError(f"a frame of {length} bytes is over the limit of {frames.MAX_FRAME_BYTES}")
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise frames.FrameError("the peer closed within a frame") from None
    return frames.decode(body) if length < _LARGE_FRAME_BYTES else await asyncio.to_thread(frames.decode, body)
