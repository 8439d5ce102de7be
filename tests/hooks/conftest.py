"""What the hook tests share: a scripted agent, and a session that speaks with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindeval.hooks.journal import Journal
from mindeval.hooks.link import AgentLink
from mindeval.hooks.session import EvaluationSession
from mindeval.hooks.snapshot import ParameterSpec, SnapshotBuffers
from mindeval.hooks.stopping import StoppingRule
from mindeval.hooks.summary import EvaluationRecord

AGENT = Path(__file__).with_name("scripted_agent.py")
SPECS = [ParameterSpec("weight", "F32", (3, 2)), ParameterSpec("flag", "BOOL", (1,))]


class SessionBench:
    """A session over a scripted agent, with a weight that is the step number."""

    def __init__(self, folder: Path, rule: StoppingRule | None, strict: bool, script: dict[str, Any]) -> None:
        self.state = folder / "agent"
        self.state.mkdir()
        (self.state / "log.jsonl").touch()
        self.folder = folder
        self.buffers = SnapshotBuffers(folder, SPECS)
        self.journal = Journal(folder / "logs", "" if rule is None else rule.monitor)
        command = [sys.executable, str(AGENT), str(self.state), json.dumps(script)]
        self.link = AgentLink(command, {"type": "start", "protocol": 1, "files": {}}, folder / "agent.log")
        self.link.start()
        self.session = EvaluationSession(self.link, self.buffers, self.journal, rule, strict)

    def push(self, step: int) -> bool:
        record = EvaluationRecord(step, step / 10, 1.0, 5.0)
        arrays = [("weight", np.full((3, 2), step, np.float32)), ("flag", np.ones(1, bool))]
        if not self.session.push(record, arrays):
            return False
        self.session.note_push(record)
        return True

    def train(self, steps: list[int]) -> None:
        """Pushes at each step, waiting until a buffer is free, as a loop with slow steps would see it."""
        for step in steps:
            self.until(lambda: any(buffer.holder is None for buffer in self.buffers.buffers), step)
            assert self.push(step)

    def until(self, condition: Callable[[], bool], step: int = 0, timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            self.session.take(step)
            if condition():
                return
            assert time.monotonic() < deadline, "the condition was not met in time"
            time.sleep(0.005)

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "logs" / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def received(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.state / "log.jsonl").read_text().splitlines(keepends=True)
        whole = (json.loads(line) for line in lines if line.endswith("\n"))
        return [message for message in whole if message["type"] == kind]

    def close(self) -> None:
        self.session.close(2.0)
        self.buffers.close()
        self.journal.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., SessionBench]]:
    made: list[SessionBench] = []

    def make(rule: StoppingRule | None = None, strict: bool = False, **script: Any) -> SessionBench:
        made.append(SessionBench(tmp_path, rule, strict, script))
        return made[-1]

    yield make
    for session in made:
        session.close()
