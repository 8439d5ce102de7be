"""One blob on its way: in segments that the service makes durable, from where an earlier try got to."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from mindeval.client._connection import Connection
from mindeval.client._content import Blob, ContentReader
from mindeval.client._encoding import encode_chunk
from mindeval.client._errors import RESUMABLE_UPLOAD_REASONS, ServiceError, unavailable
from mindeval.client._retry import Retry
from mindeval.client._streams import WRITE_UPLOAD, Messages, send_stream, time_for
from mindeval.v1 import blob_pb2

CHUNK_BYTES = 1 << 20
_CHUNKS_PER_READ = 2
# A stream ends after this much, so that the service makes it durable and a later cut costs no more.
_SEGMENT_BYTES = 256 << 20
# How often an upload that another push is at work on is looked at.
BUSY_POLL_S = 0.25


class BlobBusyError(Exception):
    """Another push is sending this blob now."""


class Sink(Protocol):
    """Where the counts of a push go."""

    def travelled(self, count: int) -> None:
        """Counts bytes that were handed to the connection."""

    def progressed(self, count: int) -> None:
        """Moves the progress; negative for bytes that have to be sent again."""


class BlobUpload:
    """Sends one blob; `run` may be called again after `BlobBusyError`."""

    def __init__(self, connection: Connection, parent: str, blob: Blob, sink: Sink) -> None:
        """Prepares the upload.

        Args:
            connection: The connection to the service (not the one for blobs, which is asked for with each try).
            parent: "projects/{project}".
            blob: What to send.
            sink: Told how it goes.
        """
        self.blob = blob
        self._connection = connection
        self._parent = parent
        self._sink = sink
        self._position = 0  # as far as the progress knows
        self._durable = -1
        self._size_mismatches = 0
        self._retry = Retry()

    async def run(self, reader: ContentReader, pool: ThreadPoolExecutor) -> None:
        """Sends until the blob is visible.

        Args:
            reader: Reads the blob; used by one thread at a time.
            pool: Where to read, so that a slow disk never stops the event loop.

        Raises:
            BlobBusyError: When another push is sending it: do something else, and come back.
            ServiceError: When the service refuses (DIGEST_MISMATCH among others), or stays away for too long.
        """
        while True:
            durable = self._durable
            try:
                await self._try_once(await self._connection.blobs(), reader, pool)
                return
            except ServiceError as error:
                # A blob that another push has finished meanwhile takes no more bytes; opening it again shows that.
                overtaken = error.reason == "UPLOAD_SIZE_MISMATCH" and self._size_mismatches == 0
                self._size_mismatches += overtaken
                if not (error.retryable or overtaken or error.reason in RESUMABLE_UPLOAD_REASONS):
                    raise
                if self._durable > durable:
                    self._retry.progressed()
                if error.reason == "UPLOAD_BUSY":
                    self._retry.check(error, self._connection.patience_for(error))
                    raise BlobBusyError from error
                await self._retry.pause(error, self._connection.patience_for(error))

    async def _try_once(self, connection: Connection, reader: ContentReader, pool: ThreadPoolExecutor) -> None:
        size = self.blob.size_bytes
        request = blob_pb2.CreateUploadRequest(parent=self._parent, digest=self.blob.digest, size_bytes=size)
        upload = (await connection.call("BlobService", "CreateUpload", request)).upload
        if upload.complete:  # somebody else was quicker
            self._moved_to(size)
            return
        offset = upload.committed_offset
        self._moved_to(offset)
        self._durable = max(self._durable, offset)
        while offset < size:
            offset = await self._write(
                connection, upload.name, offset, min(offset + _SEGMENT_BYTES, size), reader, pool
            )
            self._moved_to(offset)
            self._durable = max(self._durable, offset)
        # Tried once here: an upload that the service has forgotten has to be opened anew, by `run`.
        commit = blob_pb2.CommitUploadRequest(name=upload.name)
        await connection.attempt("BlobService", "CommitUpload", commit, timeout_s=time_for(size))

    async def _write(
        self, connection: Connection, name: str, begin: int, end: int, reader: ContentReader, pool: ThreadPoolExecutor
    ) -> int:
        """Streams bytes [begin, end); returns the durable offset."""
        chunk_bytes = await _chunk_bytes(connection)
        messages = self._chunks(name, begin, end, chunk_bytes, reader, pool)
        response = await send_stream(connection, WRITE_UPLOAD, messages, self._travelled)
        if response.committed_offset <= begin:
            raise unavailable(connection.target.endpoint, "made none of the bytes durable")
        return int(response.committed_offset)

    async def _chunks(
        self, name: str, begin: int, end: int, chunk_bytes: int, reader: ContentReader, pool: ThreadPoolExecutor
    ) -> Messages:
        """Messages with the bytes [begin, end); some are read while those before them travel."""
        loop = asyncio.get_running_loop()
        content, base = self.blob.content, self.blob.begin

        def encode(first: int, last: int) -> list[tuple[bytes, int]]:
            made = []
            for offset in range(first, last, chunk_bytes):
                size = min(chunk_bytes, last - offset)

                def fill(target: memoryview, offset: int = offset) -> None:
                    reader.read_into(content, base + offset, target)

                made.append((encode_chunk(name if offset == begin else "", offset, size, fill), size))
            return made

        def read(first: int) -> asyncio.Future[list[tuple[bytes, int]]]:
            return loop.run_in_executor(pool, encode, first, min(first + step, end))

        step = chunk_bytes * _CHUNKS_PER_READ
        coming: asyncio.Future[list[tuple[bytes, int]]] | None = None
        try:
            for first in range(begin, end, step):
                messages = await (coming or read(first))
                coming = read(first + step) if first + step < end else None
                yield messages
        finally:
            if coming is not None:
                # The reader must be free again, whether or not anybody wants what it read.
                await asyncio.wait([coming])
                coming.cancelled() or coming.exception()

    def _travelled(self, count: int) -> None:
        self._position += count
        self._sink.travelled(count)

    def _moved_to(self, offset: int) -> None:
        self._sink.progressed(offset - self._position)
        self._position = offset


async def _chunk_bytes(connection: Connection) -> int:
    """Bytes of data in one message: a mebibyte, or less when the service wants less."""
    limit = (await connection.capabilities()).max_chunk_bytes
    return min(CHUNK_BYTES, limit) if limit > 0 else CHUNK_BYTES
