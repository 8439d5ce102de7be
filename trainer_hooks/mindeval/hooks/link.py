"""The pipe to the push agent: a child process that is started by exec, watched, and restarted when it dies.

The training thread never blocks here. It puts messages into a bounded outbox and takes messages from an inbox; one
thread writes, another reads and restarts. A pipe that is full, an agent that hangs and an agent that talks nonsense
therefore cost training nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

Message = dict[str, Any]

STARTED = "agent_started"
EXITED = "agent_exited"
GAVE_UP = "agent_gave_up"

_MAX_LINE_BYTES = 16 << 20
_MAX_OUTBOX = 1000
_RESTART_DELAYS_S = (0.1, 0.5, 2.0, 5.0, 15.0)
_HEALTHY_AFTER_S = 300.0


class AgentLink:
    """Runs the agent and speaks JSON lines with it.

    Besides what the agent says, the inbox delivers "agent_started" (`pid`, `generation`), "agent_exited"
    (`exit_status`) and "agent_gave_up" (`message`). After each "agent_started" but the first, whatever the old agent
    still owed is to be asked for again, with the new generation.

    Args:
        command: Program and arguments.
        start: The protocol's first line, sent to every incarnation.
        log: File that takes the agent's standard error.
    """

    def __init__(self, command: Sequence[str], start: Mapping[str, Any], log: Path) -> None:
        self._command = list(command)
        self._start = dict(start)
        self._log = log
        self._inbox: queue.Queue[Message] = queue.Queue()
        self._outbox: deque[tuple[int | None, Message]] = deque()
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._generation = 0
        self._closing = False
        self._threads = (
            threading.Thread(target=self._supervise, name="mindeval-agent-reader", daemon=True),
            threading.Thread(target=self._write, name="mindeval-agent-writer", daemon=True),
        )

    def start(self) -> None:
        """Starts the agent and the two threads.

        Raises:
            OSError: When the program cannot be started.
        """
        self._spawn()
        # A forked dataset worker must not keep the pipe open: the agent takes its end for the end of the trainer.
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _let_go(reference))
        for thread in self._threads:
            thread.start()

    def send(self, message: Message, generation: int | None = None) -> bool:
        """Queues a message; returns at once.

        Args:
            message: What to say.
            generation: Incarnation that it is meant for; it is dropped once that one is dead. None for any.

        Returns:
            False when the outbox is full (the agent does not read) and the message was dropped.
        """
        with self._changed:
            if generation is None and len(self._outbox) >= _MAX_OUTBOX:
                return False
            self._outbox.append((generation, message))
            self._changed.notify()
        return True

    def receive(self, timeout_s: float = 0.0) -> Message | None:
        """The next message; None when none came within the time."""
        try:
            return self._inbox.get(block=timeout_s > 0, timeout=timeout_s if timeout_s > 0 else None)
        except queue.Empty:
            return None

    def close(self, deadline_s: float) -> None:
        """Asks the agent to stop, and ends it when it does not within the time (seconds)."""
        with self._changed:
            self._closing = True
            self._outbox = deque(item for item in self._outbox if item[0] is None)
            self._outbox.append((None, {"type": "stop", "deadline_s": deadline_s}))
            self._changed.notify()
            process = self._process
        if process is not None:
            try:
                process.wait(timeout=deadline_s + 1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)

    @property
    def pid(self) -> int | None:
        """Process id of the present incarnation."""
        return None if self._process is None else self._process.pid

    def _spawn(self) -> None:
        # MindSpore forces protobuf's slow pure-Python implementation on its own process by this variable.
        environment = {k: v for k, v in os.environ.items() if k != "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the trainer; the agent ends when the pipe does
            )
        with self._changed:
            if self._closing:
                process.kill()
                process.wait()
                return
            self._generation += 1
            self._process = process
            # First of all, and addressed: a later incarnation gets its own.
            self._outbox.appendleft((self._generation, self._start))
            self._changed.notify()
        self._inbox.put({"type": STARTED, "pid": process.pid, "generation": self._generation})

    def _supervise(self) -> None:
        failures = 0
        while True:
            process, born = self._process, time.monotonic()
            assert process is not None
            assert process.stdout is not None
            self._read(process.stdout)
            # Its output has ended; whatever it still does cannot reach us.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1.0)
            process.kill()
            exit_status = process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError, AttributeError):
                    stream.close()  # type: ignore[union-attr]
            if self._closing:
                return
            self._inbox.put({"type": EXITED, "exit_status": exit_status})
            failures = 1 if time.monotonic() - born > _HEALTHY_AFTER_S else failures + 1
            if failures > len(_RESTART_DELAYS_S) or not self._restart(_RESTART_DELAYS_S[failures - 1]):
                if not self._closing:
                    what = f"it ended {failures} times (last exit status {exit_status}); see {self._log}"
                    self._inbox.put({"type": GAVE_UP, "message": what})
                return

    def _restart(self, delay_s: float) -> bool:
        with self._changed:
            if self._changed.wait_for(lambda: self._closing, timeout=delay_s):
                return False
        try:
            self._spawn()
        except OSError:
            return False
        return not self._closing

    def _read(self, stream: IO[bytes]) -> None:
        while True:
            line = stream.readline(_MAX_LINE_BYTES)
            if not line:
                return
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict) and isinstance(message.get("type"), str):
                self._inbox.put(message)
            else:
                self._inbox.put({"type": "garbage", "line": line[:200].decode("utf-8", "replace")})

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._outbox) or self._ended())
                if not self._outbox:
                    return
                generation, message = self._outbox.popleft()
                process, current = self._process, self._generation
            if process is None or (generation is not None and generation != current):
                continue
            assert process.stdin is not None
            # A dead agent is noticed by the reader, which also restarts it.
            with contextlib.suppress(OSError, ValueError):
                process.stdin.write(json.dumps(message, separators=(",", ":")).encode("utf-8") + b"\n")
                process.stdin.flush()
                if message["type"] == "stop":
                    process.stdin.close()
                    return

    def _ended(self) -> bool:
        return self._closing and (self._process is None or self._process.poll() is not None)


def _let_go(reference: weakref.ref[AgentLink]) -> None:
    """In a forked child: replaces the ends of the pipes, so that their numbers stay taken but lead nowhere."""
    link = reference()
    process = None if link is None else link._process
    if process is None:
        return
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            os.dup2(nowhere, stream.fileno(), inheritable=False)
    os.close(nowhere)
