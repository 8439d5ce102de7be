"""Puts a dataset: its files as blobs, then its version."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Union

from mindeval.client import _decode
from mindeval.client._connection import Connection
from mindeval.client._content import Blob, PathLike, Stamp, file_contents
from mindeval.client._hashing import digests_of
from mindeval.client._results import Dataset
from mindeval.client._upload import OnProgress, Uploader
from mindeval.formats.errors import FormatError
from mindeval.v1 import registry_pb2

Files = Union[Mapping[str, PathLike], Sequence[PathLike]]


async def put(
    connection: Connection,
    parent: str,
    dataset_id: str,
    files: Files,
    *,
    format_name: str,
    language: str,
    text_field: str,
    padding_token: int | None,
    on_progress: OnProgress | None,
) -> Dataset:
    """Sends the files that the project lacks and registers the version; see `AsyncClient.put_dataset`."""
    number = _decode.choice(format_name, _decode.DATASET_FORMATS, "format")
    stamps: dict[str, Stamp] = {}
    try:
        contents = await asyncio.to_thread(file_contents, named_files(files), stamps)
        digests = await digests_of(list(contents.values()))
        uploader = Uploader(connection, parent, stamps=stamps, on_progress=on_progress)
        await uploader.send(
            [Blob(digest, content, 0, content.size_bytes) for digest, content in zip(digests, contents.values())]
        )
        uploader.check_files()
    except FormatError as error:
        if error.reason in ("CHECKPOINT_UNREADABLE", "CHECKPOINT_CHANGED"):
            raise FormatError("DATASET_INVALID", error.message, error.metadata) from None
        raise
    dataset = registry_pb2.Dataset(
        files=[
            registry_pb2.DatasetFile(path=path, digest=digest, size_bytes=content.size_bytes)
            for (path, content), digest in zip(contents.items(), digests)
        ],
        format=number,
        language=language,
        text_field=text_field,
        padding_token=padding_token,
    )
    request = registry_pb2.PutDatasetRequest(parent=parent, dataset_id=dataset_id, dataset=dataset)
    response = await connection.call("RegistryService", "PutDataset", request)
    return _decode.dataset(response.dataset, response.created)


def named_files(files: Files) -> dict[str, Path]:
    """Local files by their name in the dataset.

    Raises:
        FormatError: INVALID_FIELD when a file is given twice.
    """
    if isinstance(files, Mapping):
        return {name: Path(path) for name, path in files.items()}
    paths = [Path(path) for path in ([files] if isinstance(files, (str, os.PathLike)) else files)]
    if len({path.name for path in paths}) == len(paths):
        return {path.name: path for path in paths}
    # Namesakes in different folders are told apart by their path below the folder that holds them all.
    absolute = [Path(os.path.abspath(path)) for path in paths]
    base = os.path.commonpath([path.parent for path in absolute])
    found: dict[str, Path] = {}
    for path, local in zip(paths, absolute):
        name = local.relative_to(base).as_posix()
        if name in found:
            raise FormatError("INVALID_FIELD", f"files: {path} is given twice", {"field": "files", "file": str(path)})
        found[name] = path
    return found
