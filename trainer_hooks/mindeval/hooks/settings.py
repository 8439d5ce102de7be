"""What a `RemoteEvaluation` was asked to do, checked once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindeval.formats.errors import MindEvalError
from mindeval.formats.names import check_id, parse

DEFAULT_ENDPOINT = "127.0.0.1:7860"
PROTOCOL = 1


@dataclass(frozen=True)
class HookSettings:
    """See the arguments of `RemoteEvaluation`."""

    suite: str
    run: str
    project: str
    endpoint: str
    token: str | None
    tls: Mapping[str, str] | None
    every_n_steps: int | None
    every_n_epochs: int | None
    blocking: bool
    log_dir: Path | None
    staging_dir: Path | None
    on_error: str
    agent_command: tuple[str, ...]
    final_wait_s: float
    samples_per_step: int | None
    tokens_per_step: int | None
    report_every_n_steps: int

    def __post_init__(self) -> None:
        check_id(self.project, "project")
        check_id(self.run, "run")
        if "/" in self.suite:
            parse(self.suite, "suites", "suite")
        else:
            check_id(self.suite, "suite")
        _require(
            (self.every_n_steps is None) != (self.every_n_epochs is None),
            "every_n_steps",
            "give every_n_steps or every_n_epochs, and not both",
        )
        for field in ("every_n_steps", "every_n_epochs", "report_every_n_steps", "samples_per_step", "tokens_per_step"):
            value = getattr(self, field)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            _require(value is None or whole, field, "must be a whole number >= 1")
        _require(self.on_error in ("continue", "stop"), "on_error", "must be 'continue' or 'stop'")
        _require(self.final_wait_s >= 0, "final_wait_s", "must be >= 0 seconds")

    @property
    def strict(self) -> bool:
        """Whether errors reach the training loop."""
        return self.on_error == "stop"

    def start_message(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """First line to the agent (docs/formats.md)."""
        return {
            "type": "start",
            "protocol": PROTOCOL,
            "endpoint": self.endpoint,
            "project": self.project,
            "run": self.run,
            "suite": self.suite,
            "token": self.token,
            "tls": None if self.tls is None else dict(self.tls),
            "files": {name: str(path) for name, path in files.items()},
        }


def choose_endpoint(endpoint: str | None) -> str:
    """The endpoint given, else MINDEVAL_ENDPOINT, else the service's default on this machine."""
    return endpoint or os.environ.get("MINDEVAL_ENDPOINT") or DEFAULT_ENDPOINT


def choose_token(token: str | None) -> str | None:
    """The token given, else MINDEVAL_TOKEN, else none."""
    return token or os.environ.get("MINDEVAL_TOKEN") or None


def choose_agent(python: str | Path | None, command: Sequence[str] | None) -> tuple[str, ...]:
    """How the agent is started: by the trainer's own Python unless another is named."""
    if command is not None:
        return tuple(command)
    return (str(python or sys.executable), "-m", "mindeval.client.agent")


def _require(condition: bool, field: str, rule: str) -> None:
    if not condition:
        raise MindEvalError("INVALID_FIELD", f"RemoteEvaluation.{field}: {rule}", {"field": field})
