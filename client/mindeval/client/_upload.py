"""Sends blobs that the service lacks: several at a time, in pieces, from where an earlier try got to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

from mindeval.client._blob_upload import BUSY_POLL_S, BlobBusyError, BlobUpload
from mindeval.client._connection import Connection
from mindeval.client._content import Blob, ContentReader, Stamp, check_unchanged, content_path
from mindeval.client._errors import ServiceError
from mindeval.client._results import PushProgress
from mindeval.client._small_blobs import (
    SMALL_BLOB_BYTES,
    SmallBlobsUnsupportedError,
    send_small_blobs,
    stream_length,
)
from mindeval.client._work_queue import WorkQueue
from mindeval.formats.errors import FormatError, MindEvalError
from mindeval.v1 import blob_pb2

CONCURRENCY = 4
_FIND_BATCH = 10_000
_CANCEL_AGAIN_S = 1.0

OnProgress = Callable[[PushProgress], None]


class Uploader:
    """Sends the blobs of one push, while more are being found: `offer` what there is, in `run`.

    Attributes:
        bytes_sent: Bytes that travelled, repetitions after a cut included.
        blobs_sent: Blobs that were missing and are visible now.
        blobs_offered: Distinct blobs so far.
        bytes_offered: Bytes of these.
    """

    def __init__(
        self,
        connection: Connection,
        parent: str,
        *,
        stamps: Mapping[str, Stamp] | None = None,
        bytes_total: int = 0,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Prepares the uploads of one push.

        Args:
            connection: The connection.
            parent: "projects/{project}".
            stamps: What the local files were, to find the one that changed.
            bytes_total: Bytes that will be offered, as far as is known; for the progress.
            on_progress: Called as bytes go, from the event loop.
        """
        self.connection = connection
        self.parent = parent
        self.bytes_sent = 0
        self.blobs_sent = 0
        self.blobs_offered = 0
        self.bytes_offered = 0
        self._stamps = stamps or {}
        self._on_progress = on_progress
        self._bytes_total = bytes_total
        self._bytes_to_send = 0
        self._bytes_there = 0
        self._blobs_to_send = 0
        self._known: set[str] = set()
        self._large: WorkQueue[BlobUpload] = WorkQueue()
        self._small: WorkQueue[Blob] = WorkQueue()
        self._small_supported = True

    async def send(self, blobs: Sequence[Blob]) -> None:
        """Sends what is missing of some blobs.

        Raises:
            CheckpointChanged: When a file changed meanwhile.
            ServiceUnavailable: When the service stayed out of reach.
            ServiceError: When it refuses, such as STORAGE_FULL.
        """
        await self.run(self.offer(blobs))

    async def run(self, finding: Coroutine[Any, Any, object]) -> None:
        """Sends what a coroutine offers until it has ended and all of that is visible.

        Raises:
            MindEvalError: As `send`; or what the coroutine raises.
        """
        self._large, self._small = WorkQueue(), WorkQueue()
        with ThreadPoolExecutor(CONCURRENCY + 1, thread_name_prefix="mindeval-read") as pool:
            readers = [ContentReader() for _ in range(CONCURRENCY + 1)]
            try:
                await _all_or_none(
                    [
                        self._find(finding),
                        self._send_small(readers[0], pool),
                        *(self._send_large(reader, pool) for reader in readers[1:]),
                    ]
                )
            finally:
                pool.shutdown(wait=True)
                for reader in readers:
                    reader.close()

    async def offer(self, blobs: Sequence[Blob]) -> int:
        """Asks which blobs are missing, and has those sent; returns how many they are."""
        fresh = {blob.digest: blob for blob in blobs if blob.digest not in self._known}
        self._known.update(fresh)
        missing = await self._find_missing(list(fresh))
        self.blobs_offered += len(fresh)
        self.bytes_offered += sum(blob.size_bytes for blob in fresh.values())
        self._blobs_to_send += len(missing)
        self._bytes_to_send += sum(fresh[digest].size_bytes for digest in missing)
        for digest in missing:
            blob = fresh[digest]
            if blob.size_bytes <= SMALL_BLOB_BYTES and self._small_supported:
                self._small.put(blob)
            else:
                self._large.put(self._upload(blob))
        self.progressed(0)
        return len(missing)

    def travelled(self, count: int) -> None:
        """Counts bytes that were handed to the connection."""
        self.bytes_sent += count
        self.progressed(count)

    def progressed(self, count: int) -> None:
        """Moves the progress by some bytes; negative for those that have to be sent again."""
        self._bytes_there += count
        if self._on_progress is not None:
            self._on_progress(
                PushProgress(
                    bytes_sent=self._bytes_there,
                    bytes_to_send=self._bytes_to_send,
                    bytes_total=max(self._bytes_total, self.bytes_offered),
                    blobs_sent=self.blobs_sent,
                    blobs_to_send=self._blobs_to_send,
                    bytes_checked=self.bytes_offered,
                )
            )

    def check_files(self) -> None:
        """Compares the files with what was hashed.

        Raises:
            CheckpointChanged: For the first one that differs.
        """
        check_unchanged(self._stamps)

    async def _find(self, finding: Coroutine[Any, Any, object]) -> None:
        await finding
        self._small.close()

    async def _find_missing(self, digests: Sequence[str]) -> list[str]:
        missing: list[str] = []
        for begin in range(0, len(digests), _FIND_BATCH):
            batch = digests[begin : begin + _FIND_BATCH]
            request = blob_pb2.FindMissingBlobsRequest(parent=self.parent, digests=batch)
            blobs = await self.connection.blobs()
            response = await blobs.call("BlobService", "FindMissingBlobs", request)
            missing.extend(response.missing_digests)
        return missing

    async def _send_small(self, reader: ContentReader, pool: ThreadPoolExecutor) -> None:
        while (first := await self._small.get()) is not None:
            blobs = [first]
            while (more := self._small.take_ready()) is not None:
                blobs.append(more)
            while blobs:
                count = stream_length(blobs)
                await self._send_stream(blobs[:count], reader, pool)
                blobs = blobs[count:]
        # Small ones may turn into uploads of their own; only now no more of these can come.
        self._large.close()

    async def _send_stream(self, blobs: Sequence[Blob], reader: ContentReader, pool: ThreadPoolExecutor) -> None:
        if self._small_supported:
            try:
                await send_small_blobs(self.connection, self.parent, blobs, self._find_missing, self, reader, pool)
                self._finished(len(blobs))
                return
            except SmallBlobsUnsupportedError:
                self._small_supported = False
            except ServiceError as error:
                if error.reason != "DIGEST_MISMATCH":
                    raise
                digest = error.metadata.get("digest", "")
                raise self._mismatch(error, next((b for b in blobs if b.digest == digest), blobs[0])) from error
        for blob in blobs:
            self._large.put(self._upload(blob))

    async def _send_large(self, reader: ContentReader, pool: ThreadPoolExecutor) -> None:
        while (upload := await self._large.get()) is not None:
            try:
                await upload.run(reader, pool)
            except BlobBusyError:
                self._large.put_off(upload, BUSY_POLL_S)
            except ServiceError as error:
                if error.reason != "DIGEST_MISMATCH":
                    raise
                raise self._mismatch(error, upload.blob) from error
            else:
                self._finished(1)

    def _upload(self, blob: Blob) -> BlobUpload:
        return BlobUpload(self.connection, self.parent, blob, self)

    def _finished(self, count: int) -> None:
        self.blobs_sent += count
        self.progressed(0)

    def _mismatch(self, error: ServiceError, blob: Blob) -> MindEvalError:
        try:
            self.check_files()
        except FormatError as changed:
            return changed
        path = content_path(blob.content)
        return ServiceError(
            error.reason,
            f"{path or blob.digest}: the service received other bytes than were hashed here; the file changed "
            "meanwhile, or memory or network damages data: push it again",
            {**error.metadata, **({"file": path} if path else {})},
            code=error.code,
        )


async def _all_or_none(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines together; when one fails, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        pending = {task for task in tasks if not task.done()}
        while pending:
            # Asked again and again: a library on the way may lose a cancellation that comes at the wrong moment.
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)
        for task in tasks:
            task.cancelled() or task.exception()
