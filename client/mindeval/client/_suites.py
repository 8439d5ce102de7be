"""Suite definitions as people write them: a mapping, or a YAML or JSON file.

description: What it is for
tasks:
  - name: val
    type: language_modeling
    dataset: docs-valid
    metrics: [loss, ppl]
    max_length: 512        # every other key is a setting of the type
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import yaml

from mindeval.formats.errors import FormatError
from mindeval.v1 import registry_pb2

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 16
_TOP_LEVEL = ("name", "description", "tasks")
_TASK_FIELDS = ("name", "type", "dataset", "metrics")

Definition = Union[Mapping[str, Any], str, "os.PathLike[str]"]


def read_definition(definition: Definition) -> dict[str, Any]:
    """A suite definition as a mapping.

    Args:
        definition: The mapping itself, or the path of a YAML or JSON file (JSON is YAML).

    Raises:
        FormatError: INVALID_FIELD; the message names the file, and line and column where there is one.
    """
    if isinstance(definition, Mapping):
        return dict(definition)
    path = Path(definition)
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _invalid(f"{path}: {(error.strerror or str(error)).lower()}", str(path)) from None
    if len(data) > _MAX_BYTES:
        raise _invalid(f"{path}: larger than {_MAX_BYTES >> 20} MiB", str(path))
    try:
        content = yaml.load(data, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise _invalid(f"{path}{where}: {error.problem or error.context or 'not YAML'}", str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _invalid(f"{path}: not YAML ({line})", str(path)) from None
    if not isinstance(content, dict):
        raise _invalid(f"{path}: expected a mapping with {', '.join(_TOP_LEVEL)}", str(path))
    return content


def build(definition: Mapping[str, Any]) -> registry_pb2.Suite:
    """The message of a definition.

    Raises:
        FormatError: INVALID_FIELD; metadata name the field.
    """
    unknown = [key for key in definition if key not in _TOP_LEVEL]
    if unknown:
        raise _field(str(unknown[0]), f"is not a key of a suite; known are {', '.join(_TOP_LEVEL)}")
    description = definition.get("description", "")
    if not isinstance(description, str):
        raise _field("description", "must be text")
    tasks = definition.get("tasks")
    if not isinstance(tasks, (list, tuple)) or not tasks:
        raise _field("tasks", "must be a list of at least one task")
    return registry_pb2.Suite(
        description=description, tasks=[_task(entry, f"tasks[{index}]") for index, entry in enumerate(tasks)]
    )


def _task(entry: Any, field: str) -> registry_pb2.Task:
    if not isinstance(entry, Mapping):
        raise _field(field, f"must be a mapping with {', '.join(_TASK_FIELDS)}")
    for key in ("name", "type", "dataset"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise _field(f"{field}.{key}", "is required, and is text")
    metrics = entry.get("metrics", ())
    if not isinstance(metrics, (list, tuple)) or not all(isinstance(metric, str) for metric in metrics):
        raise _field(f"{field}.metrics", "must be a list of names")
    task = registry_pb2.Task(name=entry["name"], type=entry["type"], dataset=entry["dataset"], metrics=metrics)
    settings = {}
    for key, value in entry.items():
        if key not in _TASK_FIELDS:
            if not isinstance(key, str):
                raise _field(f"{field}.{key}", "must have a text as its key")
            settings[key] = _checked(value, f"{field}.{key}", 0)
    if settings:
        task.settings.update(settings)
    return task


def _checked(value: Any, field: str, depth: int) -> Any:
    """A value that a Struct can carry."""
    if depth > _MAX_DEPTH:
        raise _field(field, "is nested too deeply")
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        if not math.isfinite(value) or abs(value) > 2**53:
            raise _field(field, "must be a finite number up to 2^53")
        return value
    if isinstance(value, (list, tuple)):
        return [_checked(entry, field, depth + 1) for entry in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _checked(entry, f"{field}.{key}", depth + 1) for key, entry in value.items()}
    raise _field(field, f"has a value of type {type(value).__name__}; quote it if it is meant as text")


class _Loader(yaml.SafeLoader):
    """Plain data only; a key that stands twice is an error, and so are aliases, which can blow up small files."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge" or not isinstance(key_node, yaml.ScalarNode):
                continue
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} stands twice", key_node.start_mark
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _field(field: str, rule: str) -> FormatError:
    return FormatError("INVALID_FIELD", f"suite: {field} {rule}", {"field": field})


def _invalid(message: str, file: str) -> FormatError:
    return FormatError("INVALID_FIELD", message, {"file": file})
