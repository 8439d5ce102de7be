"""Sends blobs that the service lacks: several at a time, in pieces, from where an earlier try got to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import grpc

from mindeval.client._connection import CALL_TIMEOUT_S, Connection
from mindeval.client._content import Content, Inline, SpanReader, Stamp, check_unchanged
from mindeval.client._errors import RESUMABLE_UPLOAD_REASONS, ServiceError, unavailable
from mindeval.client._results import PushedCheckpoint, PushProgress
from mindeval.client._retry import Retry
from mindeval.client._sources import HashedCheckpoint
from mindeval.formats.digest import digest_bytes
from mindeval.formats.errors import FormatError, MindEvalError
from mindeval.v1 import blob_pb2

CHUNK_BYTES = 1 << 20
CONCURRENCY = 4
# A stream ends after this much, so that the service makes it durable and a later cut costs no more.
_SEGMENT_BYTES = 256 << 20
_FIND_BATCH = 10_000
_WRITE_TIMEOUT_S = 60.0
_SLOWEST_BYTES_PER_S = 20 << 20

OnProgress = Callable[[PushProgress], None]
_WRITE_AFTER_END = "Internal error from Core"
_WRITE_METHOD = "/mindeval.v1.BlobService/WriteUpload"


class Uploader:
    """Sends the blobs of one push.

    Attributes:
        bytes_sent: Bytes that travelled, repetitions after a cut included.
        blobs_sent: Blobs that were missing and are visible now.
    """

    def __init__(
        self,
        connection: Connection,
        parent: str,
        *,
        stamps: Mapping[str, Stamp] | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.connection = connection
        self.parent = parent
        self.bytes_sent = 0
        self.blobs_sent = 0
        self._stamps = stamps or {}
        self._on_progress = on_progress
        self._bytes_total = 0
        self._bytes_to_send = 0
        self._bytes_there = 0
        self._blobs_to_send = 0

    async def send(self, contents: Mapping[str, Content]) -> None:
        """Sends what is missing of some blobs.

        Args:
            contents: Content by digest.

        Raises:
            CheckpointChanged: When a file changed meanwhile.
            ServiceUnavailable: When the service stayed out of reach.
            ServiceError: When it refuses, such as STORAGE_FULL.
        """
        missing = await self._find_missing(list(contents))
        self._bytes_total += sum(content.size_bytes for content in contents.values())
        self._bytes_to_send += sum(contents[digest].size_bytes for digest in missing)
        self._blobs_to_send += len(missing)
        self.progressed(0)
        if not missing:
            return
        # Largest first: the others fill the gaps while it travels.
        queue = iter(sorted(missing, key=lambda digest: -contents[digest].size_bytes))
        readers = [SpanReader() for _ in range(min(CONCURRENCY, len(missing)))]
        try:
            # Files are read in threads, one a worker, so that a slow disk never stops the loop.
            with ThreadPoolExecutor(len(readers), thread_name_prefix="mindeval-read") as pool:
                await _all_or_none(self._work(queue, contents, reader, pool) for reader in readers)
        finally:
            for reader in readers:
                reader.close()

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
                    self._bytes_there, self._bytes_to_send, self._bytes_total, self.blobs_sent, self._blobs_to_send
                )
            )

    def finished(self) -> None:
        """Counts a blob."""
        self.blobs_sent += 1
        self.progressed(0)

    def check_files(self) -> None:
        """Compares the files with what was hashed.

        Raises:
            CheckpointChanged: For the first one that differs.
        """
        check_unchanged(self._stamps)

    async def _find_missing(self, digests: Sequence[str]) -> list[str]:
        missing: list[str] = []
        for begin in range(0, len(digests), _FIND_BATCH):
            batch = digests[begin : begin + _FIND_BATCH]
            request = blob_pb2.FindMissingBlobsRequest(parent=self.parent, digests=batch)
            blobs = await self.connection.blobs()
            response = await blobs.call("BlobService", "FindMissingBlobs", request)
            missing.extend(response.missing_digests)
        return missing

    async def _work(
        self, queue: Iterator[str], contents: Mapping[str, Content], reader: SpanReader, pool: ThreadPoolExecutor
    ) -> None:
        for digest in queue:
            await _BlobUpload(self, digest, contents[digest], reader, pool).run()


class _BlobUpload:
    """One blob on its way."""

    def __init__(
        self, uploader: Uploader, digest: str, content: Content, reader: SpanReader, pool: ThreadPoolExecutor
    ) -> None:
        self._uploader = uploader
        self._digest = digest
        self._content = content
        self._reader = reader
        self._pool = pool
        self._position = 0  # as far as the progress knows
        self._durable = -1
        self._size_mismatches = 0

    async def run(self) -> None:
        """Sends until the blob is visible."""
        retry = Retry()
        while True:
            try:
                durable = self._durable
                await self._try_once(await self._uploader.connection.blobs())
                self._uploader.finished()
                return
            except ServiceError as error:
                if error.reason == "DIGEST_MISMATCH":
                    raise self._mismatch(error) from error
                # A blob that another push has finished meanwhile takes no more bytes; opening it again shows that.
                overtaken = error.reason == "UPLOAD_SIZE_MISMATCH" and self._size_mismatches == 0
                self._size_mismatches += overtaken
                if not (error.retryable or overtaken or error.reason in RESUMABLE_UPLOAD_REASONS):
                    raise
                if self._durable > durable:
                    retry.progressed()
                await retry.pause(error, self._uploader.connection.patience_for(error))

    async def _try_once(self, connection: Connection) -> None:
        size = self._content.size_bytes
        request = blob_pb2.CreateUploadRequest(parent=self._uploader.parent, digest=self._digest, size_bytes=size)
        upload = (await connection.call("BlobService", "CreateUpload", request)).upload
        if upload.complete:  # somebody else was quicker
            self._moved_to(size)
            return
        offset = upload.committed_offset
        self._moved_to(offset)
        while offset < size:
            self._durable = max(self._durable, offset)
            offset = await self._write(connection, upload.name, offset, min(offset + _SEGMENT_BYTES, size))
            self._moved_to(offset)
        # Tried once here: an upload that the service has forgotten has to be opened anew, by `run`.
        commit = blob_pb2.CommitUploadRequest(name=upload.name)
        await connection.attempt("BlobService", "CommitUpload", commit, timeout_s=_time_for(size))

    async def _write(self, connection: Connection, name: str, begin: int, end: int) -> int:
        """Streams bytes [begin, end); returns the durable offset."""
        chunk_bytes = await _chunk_bytes(connection)
        started = time.monotonic()
        method: Any = connection.channel().stream_unary(
            _WRITE_METHOD,
            request_serializer=_encode_chunk,
            response_deserializer=blob_pb2.WriteUploadResponse.FromString,
        )
        call = method(metadata=connection.target.metadata())
        loop = asyncio.get_running_loop()
        try:
            for offset in range(begin, end, chunk_bytes):
                size = min(chunk_bytes, end - offset)
                data = await loop.run_in_executor(self._pool, self._reader.read, self._content, offset, size)
                await asyncio.wait_for(call.write((name, offset, data)), _WRITE_TIMEOUT_S)
                self._position += size
                self._uploader.travelled(size)
            await call.done_writing()
            response = await asyncio.wait_for(_finish(call), _time_for(end - begin))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL and error.details() == _WRITE_AFTER_END:
                # The service ended the call while we wrote, and gRPC keeps its reason from us: the next try shows it.
                raise unavailable(connection.target.endpoint, "ended the upload early") from error
            raise connection.failed(error, started) from error
        except asyncio.InvalidStateError:
            # The call ended before we wrote; its status says why.
            try:
                await _finish(call)
            except grpc.aio.AioRpcError as error:
                raise connection.failed(error, started) from error
            raise unavailable(connection.target.endpoint, "ended the upload early") from None
        except asyncio.TimeoutError:
            raise unavailable(connection.target.endpoint, "takes no more bytes") from None
        finally:
            call.cancel()
        connection.reached()
        if response.committed_offset <= begin:
            raise unavailable(connection.target.endpoint, "made none of the bytes durable")
        return int(response.committed_offset)

    def _moved_to(self, offset: int) -> None:
        self._uploader.progressed(offset - self._position)
        self._position = offset

    def _mismatch(self, error: ServiceError) -> MindEvalError:
        try:
            self._uploader.check_files()
        except FormatError as changed:
            return changed
        path = "" if isinstance(self._content, Inline) else self._content.path
        return ServiceError(
            error.reason,
            f"{path or self._digest}: the service received other bytes than were hashed here; the file changed "
            "meanwhile, or memory or network damages data: push it again",
            {**error.metadata, **({"file": path} if path else {})},
            code=error.code,
        )


async def _chunk_bytes(connection: Connection) -> int:
    """Bytes of data in one message: a mebibyte, or less when the service wants less."""
    limit = (await connection.capabilities()).max_chunk_bytes
    return min(CHUNK_BYTES, limit) if limit > 0 else CHUNK_BYTES


async def push(
    connection: Connection,
    project_name: str,
    checkpoint: HashedCheckpoint,
    *,
    on_progress: OnProgress | None = None,
    started: float | None = None,
) -> PushedCheckpoint:
    """Sends a checkpoint: its blobs, then its manifest.

    Args:
        connection: The connection.
        project_name: "projects/{project}".
        checkpoint: What to send.
        on_progress: Called as bytes go.
        started: When the push began (`time.monotonic()`), for `seconds`.

    Raises:
        CheckpointChanged: When a file changed meanwhile.
        ServiceError: See `Uploader.send`.
    """
    started = time.monotonic() if started is None else started
    uploader = Uploader(connection, project_name, stamps=checkpoint.source.stamps, on_progress=on_progress)
    await uploader.send(checkpoint.contents)
    uploader.check_files()
    manifest = checkpoint.manifest.to_bytes()
    digest = digest_bytes(manifest)
    await uploader.send({digest: Inline(manifest)})
    sizes = {**checkpoint.manifest.blobs(), digest: len(manifest)}
    return PushedCheckpoint(
        digest=digest,
        bytes_total=sum(sizes.values()),
        bytes_sent=uploader.bytes_sent,
        blobs_total=len(sizes),
        blobs_sent=uploader.blobs_sent,
        seconds=time.monotonic() - started,
    )


async def _finish(call: Any) -> Any:
    return await call


async def _all_or_none(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs coroutines together; when one fails, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _time_for(size_bytes: int) -> float:
    """Seconds in which the service has flushed or verified so many bytes, also on a slow disk."""
    return CALL_TIMEOUT_S + size_bytes / _SLOWEST_BYTES_PER_S


def _encode_chunk(chunk: tuple[str, int, bytes]) -> bytes:
    """A WriteUploadRequest, joined by hand: one copy of the data instead of protobuf's three."""
    name, offset, data = chunk
    head = blob_pb2.WriteUploadRequest(name=name, offset=offset).SerializeToString()
    # Field 3, wire type 2 (length-delimited).
    return b"".join((head, b"\x1a", _varint(len(data)), data))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
