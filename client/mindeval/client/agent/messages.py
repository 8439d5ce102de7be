"""What the trainer's lines say, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindeval.client._channel import Target, TlsFiles
from mindeval.client.agent.lines import MAX_LINE_BYTES
from mindeval.formats import names
from mindeval.formats.errors import FormatError

PROTOCOL = 1
_TLS_FIELDS = frozenset({"ca_file", "cert_file", "key_file"})


@dataclass(frozen=True)
class Start:
    """The first message: where to push, and for which run and suite.

    Attributes:
        target: The service.
        project: Id of the project.
        run: Id of the run; "" for none.
        suite: Full name of the suite.
        files: Local path of each file that rides along, by path in the checkpoint.
    """

    target: Target
    project: str
    run: str
    suite: str
    files: Mapping[str, str]

    @property
    def parent(self) -> str:
        """Name of the project."""
        return names.project_name(self.project)

    @property
    def run_name(self) -> str:
        """Full name of the run; "" for none."""
        return f"{self.parent}/runs/{self.run}" if self.run else ""


@dataclass(frozen=True)
class Push:
    """A checkpoint to push and evaluate.

    Attributes:
        id: The trainer's number of it.
        step: Optimizer steps done.
        epoch: Epochs done.
        weights: Path of a safetensors file.
        parameters: Free text pairs.
    """

    id: int
    step: int
    epoch: float
    weights: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Watch:
    """An evaluation that an earlier agent has submitted, and whose result is still owed.

    Attributes:
        id: The trainer's number of its push.
        step: Optimizer steps done.
        evaluation: Full name.
    """

    id: int
    step: int
    evaluation: str


def parse(line: bytes) -> tuple[str, dict[str, Any]]:
    """Type and fields of a line.

    Raises:
        FormatError: INVALID_FIELD when it is no JSON object with a type.
    """
    if len(line) > MAX_LINE_BYTES:
        raise _invalid("line", f"{bytes(line[:80])!r}... is longer than {MAX_LINE_BYTES} bytes")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _invalid("line", f"{line[:80]!r} is not a JSON object ({error})") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise _invalid("type", f"{line[:80]!r} is not a JSON object with a type")
    return message.pop("type"), message


def read_start(fields: Mapping[str, Any]) -> Start:
    """The `start` message.

    Raises:
        FormatError: INVALID_FIELD; metadata name the field.
    """
    protocol = fields.get("protocol")
    if protocol != PROTOCOL:
        raise _invalid("protocol", f"{protocol!r} is not spoken here; this agent speaks {PROTOCOL}")
    project = names.check_id(_text(fields, "project", "default"), "project")
    suite = _text(fields, "suite")
    suite = suite if suite.startswith("projects/") else f"{names.project_name(project)}/suites/{suite}"
    run = _text(fields, "run", "")
    files = fields.get("files") or {}
    if not isinstance(files, dict) or not all(isinstance(path, str) for path in files.values()):
        raise _invalid("files", "must be an object of local paths")
    return Start(
        target=Target(_text(fields, "endpoint"), _optional_text(fields, "token"), _tls(fields.get("tls"))),
        project=project,
        run=names.check_id(run, "run") if run else "",
        suite=str(names.parse(suite, "suites", "suite")),
        files=files,
    )


def read_push(fields: Mapping[str, Any]) -> Push:
    """A `push` message.

    Raises:
        FormatError: INVALID_FIELD; metadata name the field.
    """
    parameters = fields.get("parameters") or {}
    if not isinstance(parameters, dict) or not all(isinstance(value, str) for value in parameters.values()):
        raise _invalid("parameters", "must be an object of texts")
    epoch = fields.get("epoch", 0.0)
    if isinstance(epoch, bool) or not isinstance(epoch, (int, float)):
        raise _invalid("epoch", "must be a number")
    return Push(number(fields, "id"), number(fields, "step"), float(epoch), _text(fields, "weights"), parameters)


def read_watch(fields: Mapping[str, Any]) -> Watch:
    """A `watch` message.

    Raises:
        FormatError: INVALID_FIELD; metadata name the field.
    """
    evaluation = str(names.parse(_text(fields, "evaluation"), "evaluations", "evaluation"))
    return Watch(number(fields, "id"), number(fields, "step"), evaluation)


def number(fields: Mapping[str, Any], field: str) -> int:
    """A field that is a whole number.

    Raises:
        FormatError: INVALID_FIELD when it is not.
    """
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise _invalid(field, "must be a whole number")
    return value


def text(fields: Mapping[str, Any], field: str) -> str:
    """A field that is text and not empty.

    Raises:
        FormatError: INVALID_FIELD when it is not.
    """
    return _text(fields, field)


def _text(fields: Mapping[str, Any], field: str, default: str | None = None) -> str:
    value = fields.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or (not value and default is None):
        raise _invalid(field, "must be text")
    return value


def _optional_text(fields: Mapping[str, Any], field: str) -> str | None:
    return _text(fields, field) if fields.get(field) is not None else None


def _tls(value: Any) -> TlsFiles | None:
    if value is None:
        return None
    known = isinstance(value, dict) and value.keys() <= _TLS_FIELDS
    if not known or not all(path is None or isinstance(path, str) for path in value.values()):
        raise _invalid("tls", f"must be an object with {', '.join(sorted(_TLS_FIELDS))}")
    return TlsFiles(**value)


def _invalid(field: str, rule: str) -> FormatError:
    return FormatError("INVALID_FIELD", f"{field}: {rule}", {"field": field})
