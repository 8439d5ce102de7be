"""Datasets and suites: from checked messages to canonical content, whose digest names the version, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from mindeval.formats.digest import check_digest, digest_bytes, digest_hex
from mindeval.formats.errors import MindEvalError
from mindeval.formats.names import check_id
from mindeval.service.api import checks
from mindeval.service.errors import FieldError, ServiceError
from mindeval.service.runtime.task_settings import check_task
from mindeval.service.storage.records import VersionRecord
from mindeval.service.storage.wire import timestamp
from mindeval.v1 import registry_pb2 as pb

MAX_VERSION_BYTES = 3 << 20
MAX_FILES = 10_000
MAX_PATH_LENGTH = 1_024
MAX_TASKS = 100
MAX_METRICS = 100
MAX_DESCRIPTION_LENGTH = 4_000
MAX_SETTINGS_BYTES = 64 << 10
MAX_NESTING = 16

_FORMATS: Mapping[int, str] = {
    pb.DATASET_FORMAT_TEXT: "text",
    pb.DATASET_FORMAT_TEXT_LINES: "text_lines",
    pb.DATASET_FORMAT_JSONL: "jsonl",
    pb.DATASET_FORMAT_TOKENS_NPY: "tokens_npy",
}
_LANGUAGES = ("", "en", "zh", "mixed")


def version_digest(content: Mapping[str, Any]) -> str:
    """64 hexadecimal digits that name a version."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_hex(digest_bytes(text.encode("utf-8")))


def dataset_content(dataset: pb.Dataset) -> dict[str, Any]:
    """Checks a dataset.

    Raises:
        MindEvalError: INVALID_FIELD; metadata name the field.
    """
    _check_size(dataset, "dataset")
    if dataset.format not in _FORMATS:
        raise FieldError("dataset.format", "must be one of the formats of DatasetFormat")
    if dataset.language not in _LANGUAGES:
        raise FieldError("dataset.language", f"{dataset.language[:80]!r} is none of en, zh, mixed")
    kind = _FORMATS[dataset.format]
    if dataset.text_field and kind != "jsonl":
        raise FieldError("dataset.text_field", f"is for JSONL only, not for {kind}")
    if dataset.HasField("padding_token") and kind != "tokens_npy":
        raise FieldError("dataset.padding_token", f"is for TOKENS_NPY only, not for {kind}")
    if not 1 <= len(dataset.files) <= MAX_FILES:
        raise FieldError("dataset.files", f"has {len(dataset.files)} entries; must be 1 to {MAX_FILES}")
    files = [_file(file, f"dataset.files[{i}]") for i, file in enumerate(dataset.files)]
    paths = [file["path"] for file in files]
    known: set[str] = set()
    for i, path in enumerate(paths):
        if path in known:
            raise FieldError(f"dataset.files[{i}].path", f"{path[:80]!r} stands twice")
        known.add(path)
    return {
        "format": kind,
        "language": dataset.language,
        "text_field": (checks.text(dataset.text_field, "dataset.text_field", 256) or "text") if kind == "jsonl" else "",
        "padding_token": dataset.padding_token if dataset.HasField("padding_token") else None,
        "files": files,
    }


def suite_content(suite: pb.Suite) -> dict[str, Any]:
    """Checks a suite, but for whether its datasets exist.

    Raises:
        MindEvalError: INVALID_FIELD, UNKNOWN_TASK_TYPE or UNKNOWN_METRIC; metadata name the field and the task.
    """
    _check_size(suite, "suite")
    if not 1 <= len(suite.tasks) <= MAX_TASKS:
        raise FieldError("suite.tasks", f"has {len(suite.tasks)} entries; must be 1 to {MAX_TASKS}")
    tasks = [_task(task, f"suite.tasks[{i}]") for i, task in enumerate(suite.tasks)]
    names = [task["name"] for task in tasks]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise FieldError(f"suite.tasks[{i}].name", f"{name!r} stands twice")
    description = checks.text(suite.description, "suite.description", MAX_DESCRIPTION_LENGTH)
    return {"description": description, "tasks": tasks}


def dataset_message(record: VersionRecord) -> pb.Dataset:
    """A stored dataset as a message."""
    content = record.content
    return pb.Dataset(
        version=record.name,
        files=[pb.DatasetFile(**file) for file in content["files"]],
        format=f"DATASET_FORMAT_{content['format'].upper()}",
        language=content["language"],
        text_field=content["text_field"],
        padding_token=content["padding_token"],
        create_time=timestamp(record.create_us),
    )


def suite_message(record: VersionRecord) -> pb.Suite:
    """A stored suite as a message."""
    message = pb.Suite(
        version=record.name, description=record.content["description"], create_time=timestamp(record.create_us)
    )
    for task in record.content["tasks"]:
        added = message.tasks.add(
            name=task["name"], type=task["type"], dataset=task["dataset"], metrics=task["metrics"]
        )
        added.settings.update(task["settings"])
    return message


def _check_size(message: Message, field: str) -> None:
    # It must be possible to send it back, with what the service adds, in one message of 4 MiB.
    if message.ByteSize() > MAX_VERSION_BYTES:
        raise FieldError(field, f"has {message.ByteSize()} bytes; at most {MAX_VERSION_BYTES} are taken")


def _file(file: pb.DatasetFile, field: str) -> dict[str, Any]:
    path = checks.text(file.path, f"{field}.path", MAX_PATH_LENGTH)
    if "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise FieldError(f"{field}.path", "must be relative, without '.', '..' or backslashes")
    return {
        "path": path,
        "digest": check_digest(file.digest, f"{field}.digest"),
        "size_bytes": checks.whole_number(file.size_bytes, f"{field}.size_bytes"),
    }


def _task(task: pb.Task, field: str) -> dict[str, Any]:
    name = check_id(task.name, f"{field}.name")
    metrics = list(task.metrics)
    if len(metrics) > MAX_METRICS or len(set(metrics)) != len(metrics):
        raise FieldError(f"{field}.metrics", f"must be at most {MAX_METRICS} different names")
    if task.settings.ByteSize() > MAX_SETTINGS_BYTES:
        raise FieldError(f"{field}.settings", f"is longer than {MAX_SETTINGS_BYTES} bytes")
    settings = _struct(task.settings, f"{field}.settings", 1)
    try:
        check_task(task.type, metrics, settings)
    except MindEvalError as error:
        inner = error.metadata.get("field", "")
        metadata = {**error.metadata, "task": name, "field": f"{field}.{inner}" if inner else field}
        raise ServiceError(error.reason, f"task {name!r}: {error.message}", metadata) from None
    return {
        "name": name,
        "type": task.type,
        "dataset": checks.text(task.dataset, f"{field}.dataset", 300),
        "metrics": metrics,
        "settings": settings,
    }


def _struct(struct: Struct, field: str, depth: int) -> dict[str, Any]:
    if depth > MAX_NESTING:
        raise FieldError(field, f"is nested deeper than {MAX_NESTING} levels")
    return {key: _value(value, f"{field}.{key[:80]}", depth) for key, value in struct.fields.items()}


def _value(value: Value, field: str, depth: int) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        if not math.isfinite(number):
            raise FieldError(field, "must be a finite number")
        # A Struct has only floats; 512 is meant when 512 was written.
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    if kind == "struct_value":
        return _struct(value.struct_value, field, depth + 1)
    if kind == "list_value":
        return _list(value.list_value, field, depth + 1)
    return None if kind in (None, "null_value") else getattr(value, kind)


def _list(values: ListValue, field: str, depth: int) -> list[Any]:
    if depth > MAX_NESTING:
        raise FieldError(field, f"is nested deeper than {MAX_NESTING} levels")
    return [_value(value, f"{field}[{i}]", depth) for i, value in enumerate(values.values)]
