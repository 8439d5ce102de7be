"""What the service asks of a runner (docs/formats.md, "Service ↔ runner"), as checked objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mindeval.service.runtime.errors import RunnerError

DATASET_FORMATS = ("text", "text_lines", "jsonl", "tokens_npy")


class BlobLocation(NamedTuple):
    """Where the bytes of a blob lie; small blobs share a file.

    Attributes:
        path: The file.
        offset: First byte of the blob in it.
        size_bytes: How many there are.
    """

    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class DatasetFile:
    """One file of a dataset.

    Attributes:
        path: Its name in messages and sample ids.
        digest: Digest of its bytes.
        location: Where they lie.
    """

    path: str
    digest: str
    location: BlobLocation


@dataclass(frozen=True)
class DatasetRequest:
    """A pinned dataset.

    Attributes:
        version: Its resource name.
        format: One of `DATASET_FORMATS`.
        language: Declared language.
        text_field: Field of a JSONL record that holds the text.
        padding_token: Token that is padding; None when there is none.
        files: In reading order.
    """

    version: str
    format: str
    language: str
    text_field: str
    padding_token: int | None
    files: tuple[DatasetFile, ...]


@dataclass(frozen=True)
class TaskRequest:
    """One task: name, type, metrics (empty for all), settings, dataset."""

    name: str
    type: str
    metrics: tuple[str, ...]
    settings: Mapping[str, Any]
    dataset: DatasetRequest


@dataclass(frozen=True)
class JobRequest:
    """An `evaluate` message.

    Attributes:
        job: Name of the job.
        manifest: Where the manifest lies.
        checkpoint: Its digest.
        blobs: Where each blob of the checkpoint lies, by digest.
        tasks: What to compute.
    """

    job: str
    manifest: BlobLocation
    checkpoint: str
    blobs: Mapping[str, BlobLocation]
    tasks: tuple[TaskRequest, ...]

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> JobRequest:
        """Reads the message.

        Raises:
            RunnerError: INVALID_FIELD naming the field.
        """
        return cls(
            job=_take(message, "job", str),
            manifest=_location(_take(message, "manifest", list), "manifest"),
            checkpoint=_take(message, "checkpoint", str),
            blobs={digest: _location(raw, "blobs") for digest, raw in _take(message, "blobs", dict).items()},
            tasks=tuple(_task(raw, f"tasks[{i}].") for i, raw in enumerate(_take(message, "tasks", list))),
        )


def _task(raw: Any, at: str) -> TaskRequest:
    return TaskRequest(
        name=_take(raw, "name", str, at),
        type=_take(raw, "type", str, at),
        metrics=tuple(_take(raw, "metrics", list, at)),
        settings=_take(raw, "settings", dict, at),
        dataset=_dataset(_take(raw, "dataset", dict, at), f"{at}dataset."),
    )


def _dataset(raw: Mapping[str, Any], at: str) -> DatasetRequest:
    padding = raw.get("padding_token")
    if padding is not None and (not isinstance(padding, int) or isinstance(padding, bool)):
        raise _invalid(f"{at}padding_token", "must be a token id or null")
    kind = _take(raw, "format", str, at)
    if kind not in DATASET_FORMATS:
        raise _invalid(f"{at}format", f"must be one of {', '.join(DATASET_FORMATS)}")
    files = []
    for index, entry in enumerate(_take(raw, "files", list, at)):
        field = f"{at}files[{index}]."
        path, digest = (_take(entry, name, str, field) for name in ("path", "digest"))
        location = _location(_take(entry, "location", list, field), f"{field}location")
        files.append(DatasetFile(path, digest, location))
    return DatasetRequest(
        version=str(raw.get("version") or ""),
        format=kind,
        language=str(raw.get("language") or ""),
        text_field=str(raw.get("text_field") or "text"),
        padding_token=padding,
        files=tuple(files),
    )


def _location(raw: Any, field: str) -> BlobLocation:
    # A job of many tensors has very many of these.
    if isinstance(raw, list) and len(raw) == 3:
        path, offset, size_bytes = raw
        if isinstance(path, str) and type(offset) is int and type(size_bytes) is int and offset >= 0 <= size_bytes:
            return BlobLocation(path, offset, size_bytes)
    raise _invalid(field, "must hold [path, offset, size in bytes]")


def _take(raw: Any, name: str, kind: type, at: str = "") -> Any:
    if not isinstance(raw, Mapping) or not isinstance(raw.get(name), kind):
        raise _invalid(f"{at}{name}", f"must be there and be a JSON {kind.__name__}")
    return raw[name]


def _invalid(field: str, rule: str) -> RunnerError:
    return RunnerError("INVALID_FIELD", f"{field} {rule}", {"field": field})
