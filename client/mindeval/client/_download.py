"""Fetches a checkpoint: one safetensors file with its tensors by name, and what rides along."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindeval.client._connection import Closing, Connection
from mindeval.client._content import PathLike
from mindeval.client._errors import ServiceError
from mindeval.client._results import FetchedCheckpoint
from mindeval.client._retry import Retry
from mindeval.client._sources import WEIGHTS_FILE
from mindeval.formats import safetensors
from mindeval.formats.digest import Hasher
from mindeval.formats.errors import FormatError
from mindeval.formats.manifest import MAX_MANIFEST_BYTES, Manifest
from mindeval.v1 import blob_pb2

_IDLE_TIMEOUT_S = 60.0
_CONCURRENCY = 4


@dataclass(frozen=True)
class _Place:
    """Where a blob goes: an offset of an open file. Equal tensors have several places."""

    descriptor: int
    offset: int


async def fetch(connection: Connection, parent: str, digest: str, path: PathLike) -> FetchedCheckpoint:
    """Downloads a checkpoint and verifies every digest.

    Args:
        connection: The connection.
        parent: "projects/{project}".
        digest: Digest of the manifest.
        path: A file to be written; or, when it is a folder or ends with a separator, the folder that gets
            model.safetensors and what rides along. Nothing is visible before all is there and verified.

    Raises:
        ServiceError: BLOB_NOT_FOUND and the like.
        FormatError: CHECKPOINT_CORRUPT when the service sent other bytes than the digest's.
        OSError: When the file cannot be written.
    """
    manifest_bytes = await _read_small(connection, parent, digest)
    manifest = Manifest.from_bytes(manifest_bytes)
    text = os.fspath(path)
    folder = Path(text) if text.endswith(os.sep) or _is_folder(text) else None
    weights = folder / WEIGHTS_FILE if folder else Path(text)
    head, spans = safetensors.encode_header(
        [(tensor.name, tensor.dtype, tensor.shape) for tensor in manifest.tensors],
        {"format": "pt", "mindeval_checkpoint": digest},
    )
    files = {entry.path: folder / entry.path for entry in manifest.files} if folder else {}
    if WEIGHTS_FILE in files:
        raise FormatError("MANIFEST_INVALID", f"{digest}: a file of the checkpoint is called {WEIGHTS_FILE}")
    with _Staging() as staging:
        weights_descriptor = staging.create(weights)
        end = max((end for _, end in spans.values()), default=len(head))
        _write_all(weights_descriptor, head, 0)
        os.ftruncate(weights_descriptor, end)
        places: dict[str, list[_Place]] = {}
        for tensor in manifest.tensors:
            offset = spans[tensor.name][0]
            for blob, size in tensor.blobs():
                places.setdefault(blob, []).append(_Place(weights_descriptor, offset))
                offset += size
        for entry in manifest.files:
            if entry.path in files:
                places.setdefault(entry.digest, []).append(_Place(staging.create(files[entry.path]), 0))
        sizes = manifest.blobs()
        await _fetch_all(connection, parent, {blob: sizes[blob] for blob in places}, places)
        await _finished(asyncio.to_thread(staging.publish))
    received = len(manifest_bytes) + sum(sizes[blob] for blob in places)
    return FetchedCheckpoint(digest, str(weights), tuple(str(file) for file in files.values()), received)


class _Staging:
    """Files under temporary names beside their final ones, until `publish` renames them."""

    def __init__(self) -> None:
        self._open: dict[Path, tuple[Path, int]] = {}

    def __enter__(self) -> _Staging:
        return self

    def __exit__(self, *_: object) -> None:
        for temporary, descriptor in self._open.values():
            os.close(descriptor)
            with suppress(OSError):
                temporary.unlink()
        self._open.clear()

    def create(self, final: Path) -> int:
        """Opens a temporary file for a final path; returns its descriptor."""
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.part")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o644)
        self._open[final] = (temporary, descriptor)
        return descriptor

    def publish(self) -> None:
        """Flushes all files to disk, then renames them, then flushes their folders."""
        for _, descriptor in self._open.values():
            os.fsync(descriptor)
        # The weights were created first and are renamed last: whoever sees them finds the rest beside them.
        for final in reversed(list(self._open)):
            os.replace(self._open[final][0], final)
        for folder in {final.parent for final in self._open}:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


async def _fetch_all(
    connection: Connection, parent: str, sizes: Mapping[str, int], places: Mapping[str, list[_Place]]
) -> None:
    queue = iter(sorted(sizes, key=lambda digest: -sizes[digest]))

    async def work() -> None:
        for digest in queue:
            await _fetch_blob(connection, parent, digest, sizes[digest], places[digest])

    tasks = [asyncio.ensure_future(work()) for _ in range(min(_CONCURRENCY, len(sizes)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _fetch_blob(connection: Connection, parent: str, digest: str, size: int, places: list[_Place]) -> None:
    """Streams one blob to its places; goes on after a cut from where it was."""
    retry = Retry()
    hasher = Hasher()
    offset = 0
    while offset < size:
        request = blob_pb2.ReadBlobRequest(parent=parent, digest=digest, offset=offset)
        try:
            blobs = await connection.blobs()
            stream = blobs.stream("BlobService", "ReadBlob", request, idle_timeout_s=_IDLE_TIMEOUT_S)
            async with Closing(stream) as responses:
                async for response in responses:
                    data = response.data
                    if offset + len(data) > size:
                        raise _corrupt(digest)
                    await _finished(asyncio.to_thread(_store, data, hasher, places, offset))
                    offset += len(data)
                    retry.progressed()
            if offset < size:
                raise _corrupt(digest)
        except ServiceError as error:
            if not error.retryable:
                raise
            await retry.pause(error, connection.patience_for(error))
    if hasher.digest() != digest:
        raise _corrupt(digest)


async def _read_small(connection: Connection, parent: str, digest: str) -> bytes:
    retry = Retry()
    while True:
        data = bytearray()
        hasher = Hasher()
        request = blob_pb2.ReadBlobRequest(parent=parent, digest=digest)
        try:
            blobs = await connection.blobs()
            stream = blobs.stream("BlobService", "ReadBlob", request, idle_timeout_s=_IDLE_TIMEOUT_S)
            async with Closing(stream) as responses:
                async for response in responses:
                    data += response.data
                    hasher.update(response.data)
                    if len(data) > MAX_MANIFEST_BYTES:
                        raise _corrupt(digest)
        except ServiceError as error:
            if not error.retryable:
                raise
            await retry.pause(error, connection.patience_for(error))
            continue
        if hasher.digest() != digest:
            raise _corrupt(digest)
        return bytes(data)


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Waits for a thread, also when cancelled: it writes to a descriptor that is closed afterwards."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _store(data: bytes, hasher: Hasher, places: list[_Place], offset: int) -> None:
    hasher.update(data)
    for place in places:
        _write_all(place.descriptor, data, place.offset + offset)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written


def _corrupt(digest: str) -> FormatError:
    return FormatError(
        "CHECKPOINT_CORRUPT",
        f"the service sent other bytes than those of {digest}; fetch it again, and check its storage if it repeats",
        {"digest": digest},
    )
