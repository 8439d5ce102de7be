"""An agent for tests: speaks the protocol of the real one, without a service, and misbehaves on request.

    python scripted_agent.py STATE_DIR '{"values": [3.0, 2.5], "die_at_push": 2, ...}'

What it keeps in STATE_DIR survives its restarts: a copy of every pushed file, and log.jsonl with every line it read.

Keys of the script:
    values: value of val/loss by push number; beyond its end the last one counts. "nan" and null are allowed.
    states: state by push number ("SUCCEEDED").
    metrics: name of the metric reported ("val/loss").
    die_at_push: exits in the middle of this push, once.
    die_after_submit: exits after having said "submitted" for this push, once.
    die_always: exits at once, every time.
    hold: releases nothing and answers nothing.
    deaf: reads nothing after the first line.
    garbage: writes nonsense before each answer.
    reversed: keeps results back until this many are there, then sends them in reverse order.
    unavailable_for: pushes during which the service is said to be away; they are released when it is back.
    error: a status of level "error" with this code at the first push.
    fetch_error: fetches fail with this text.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


class ScriptedAgent:
    def __init__(self, state: Path, script: dict[str, Any]) -> None:
        self.state = state
        self.script = script
        self.kept: list[dict[str, Any]] = []
        self.waiting: list[int] = []

    def run(self) -> None:
        if self.script.get("die_always"):
            sys.exit(3)
        for line in sys.stdin:
            with (self.state / "log.jsonl").open("a") as log:
                log.write(line)
            message = json.loads(line)
            getattr(self, f"on_{message['type']}")(message)

    def on_start(self, message: dict[str, Any]) -> None:
        say(type="ready", pid=os.getpid(), version="scripted")
        say(type="connected", service_version="none")
        if self.script.get("deaf"):
            time.sleep(600)

    def on_push(self, message: dict[str, Any]) -> None:
        number = message["id"]
        if self.script.get("garbage"):
            sys.stdout.write('{"half of a mess\n[1, 2]\n')
        if self.script.get("error") and number == 1:
            say(type="status", level="error", code=self.script["error"], message="scripted error")
        if self.script.get("hold"):
            return
        if self.script.get("die_at_push") == number and self.once("push"):
            os._exit(9)
        shutil.copyfile(message["weights"], self.state / f"step-{message['step']}.safetensors")
        (self.state / f"id-{number}").write_text(str(message["step"]))
        away = self.script.get("unavailable_for", 0)
        if number <= away:
            if number == 1:
                say(type="status", level="warning", code="SERVICE_UNAVAILABLE", message="the service cannot be reached")
            self.waiting.append(number)
            return
        if self.waiting:
            say(type="status", level="info", code="SERVICE_BACK", message="")
            for late in self.waiting:
                self.answer(late)
            self.waiting = []
        self.answer(number)

    def answer(self, number: int) -> None:
        step = int((self.state / f"id-{number}").read_text())
        evaluation = f"projects/default/evaluations/step-{step}"
        say(type="released", id=number, bytes_sent=1, bytes_total=1, seconds=0.0)
        say(type="submitted", id=number, evaluation=evaluation)
        if self.script.get("die_after_submit") == number and self.once("submit"):
            sys.stdout.flush()
            os._exit(9)
        self.result(number, step, evaluation)

    def result(self, number: int, step: int, evaluation: str) -> None:
        values, states = self.script.get("values", [1.0]), self.script.get("states", ["SUCCEEDED"])
        value = values[min(number, len(values)) - 1]
        state = states[min(number, len(states)) - 1]
        metric = {"value": float(value), "standard_error": 0.1, "count": 10, "higher_is_better": False}
        error = {"reason": "RUNNER_LOST", "message": "scripted failure", "metadata": {}}
        succeeded = state == "SUCCEEDED"
        result = {
            "type": "result", "id": number, "step": step, "evaluation": evaluation, "state": state,
            "metrics": {self.script.get("metrics", "val/loss"): metric} if succeeded else {},
            "error": None if succeeded else error, "times": {"queued_s": 0.0, "run_s": 0.1},
        }  # fmt: skip
        self.kept.append(result)
        if len(self.kept) >= self.script.get("reversed", 1):
            for kept in reversed(self.kept):
                say(**kept)
            self.kept = []

    def on_watch(self, message: dict[str, Any]) -> None:
        self.result(message["id"], message["step"], message["evaluation"])

    def on_fetch(self, message: dict[str, Any]) -> None:
        error = self.script.get("fetch_error")
        if error is None:
            step = message["evaluation"].rpartition("step-")[2]
            shutil.copyfile(self.state / f"step-{step}.safetensors", message["path"])
        say(type="fetched", id=message["id"], path=message["path"], error=error and {"message": error})

    def on_cancel(self, message: dict[str, Any]) -> None:
        pass  # it may be reading the file still

    def on_release(self, message: dict[str, Any]) -> None:
        """From tests only: lets go of a file."""
        say(type="released", id=message["id"], bytes_sent=0, bytes_total=0, seconds=0.0)

    def on_train_metrics(self, message: dict[str, Any]) -> None:
        pass

    def on_stop(self, message: dict[str, Any]) -> None:
        say(type="stopped")
        sys.exit(0)

    def once(self, what: str) -> bool:
        mark = self.state / f"done-{what}"
        if mark.exists():
            return False
        mark.touch()
        return True


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ScriptedAgent(Path(sys.argv[1]), json.loads(sys.argv[2])).run()
