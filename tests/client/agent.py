"""Drives the push agent as a trainer does: a process, and lines over pipes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

DEADLINE_S = 30.0
Message = dict[str, Any]


class AgentProcess:
    """`messages` holds everything that it said so far."""

    def __init__(self, log: Path, **start: Any) -> None:
        self.messages: list[Message] = []
        self._lines: queue.Queue[Message | None] = queue.Queue()
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mindeval.client.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={key: value for key, value in os.environ.items() if not key.startswith("MINDEVAL_")},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if start:
            fields = {"protocol": 1, "project": "default", "run": "r", "suite": "s", "token": None, "tls": None}
            self.send("start", **{**fields, "files": {}, **start})

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        self.process.stdin.close()
        self.process.stdout.close()
        self._log.close()

    def send(self, kind: str, **fields: Any) -> None:
        self.send_raw(json.dumps({"type": kind, **fields}).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait_for(self, kind: str, *, deadline_s: float = DEADLINE_S, **fields: Any) -> Message:
        """The first message of this kind and these fields, among what was said and what comes."""
        seen = 0
        end = time.monotonic() + deadline_s
        while True:
            for message in self.messages[seen:]:
                seen += 1
                if message["type"] == kind and all(message.get(key) == value for key, value in fields.items()):
                    return message
            try:
                line = self._lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                raise AssertionError(f"no {kind} {fields} within {deadline_s} s; got {self.messages}") from None
            if line is None:
                raise AssertionError(f"the agent ended before {kind} {fields}; got {self.messages}")
            self.messages.append(line)

    def wait_for_end(self, deadline_s: float = DEADLINE_S) -> int:
        code = self.process.wait(deadline_s)
        self._reader.join(deadline_s)
        while True:
            line = self._lines.get(timeout=deadline_s)
            if line is None:
                return code
            self.messages.append(line)

    def kinds(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["type"] == kind]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)
