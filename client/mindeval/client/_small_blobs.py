"""Small blobs, many in a message and many messages in a stream, so that each costs its bytes and little more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

from mindeval.client._blob_upload import Sink
from mindeval.client._connection import Connection
from mindeval.client._content import Blob, ContentReader
from mindeval.client._encoding import encode_small_blobs
from mindeval.client._errors import RESUMABLE_UPLOAD_REASONS, ServiceError
from mindeval.client._retry import Retry
from mindeval.client._streams import WRITE_SMALL_BLOBS, Messages, send_stream

SMALL_BLOB_BYTES = 256 << 10
_MESSAGE_BYTES = 1 << 20
_MESSAGE_BLOBS = 4_096
# Beside its data, a blob takes its digest and a few lengths; a message stays below gRPC's limit by far.
_STREAM_BYTES = 64 << 20
_STREAM_BLOBS = 20_000

FindMissing = Callable[[Sequence[str]], Awaitable["list[str]"]]


class SmallBlobsUnsupportedError(Exception):
    """The service is older than WriteSmallBlobs."""


def stream_length(blobs: Sequence[Blob]) -> int:
    """How many of these blobs go into one stream: what a cut costs is bounded by it."""
    size = 0
    for count, blob in enumerate(blobs[:_STREAM_BLOBS]):
        size += blob.size_bytes
        if size > _STREAM_BYTES and count:
            return count
    return min(len(blobs), _STREAM_BLOBS)


async def send_small_blobs(
    connection: Connection,
    parent: str,
    blobs: Sequence[Blob],
    find_missing: FindMissing,
    sink: Sink,
    reader: ContentReader,
    pool: ThreadPoolExecutor,
) -> None:
    """Sends small blobs in one stream until all are visible; after a cut, those that are still missing.

    Args:
        connection: The connection to the service.
        parent: "projects/{project}".
        blobs: What to send, each of at most `SMALL_BLOB_BYTES`.
        find_missing: Tells which digests the project lacks.
        sink: Told how it goes.
        reader: Reads the blobs; used by one thread at a time.
        pool: Where to read.

    Raises:
        SmallBlobsUnsupportedError: When the service does not know the call; nothing was sent then.
        ServiceError: When it refuses, or stays away for too long.
    """
    retry = Retry()
    left = list(blobs)
    while left:
        sent = 0

        def travelled(count: int) -> None:
            nonlocal sent
            sent += count
            sink.travelled(count)

        try:
            messages = _messages(parent, left, reader, pool)
            await send_stream(await connection.blobs(), WRITE_SMALL_BLOBS, messages, travelled)
            return
        except ServiceError as error:
            sink.progressed(-sent)
            if error.code == "UNIMPLEMENTED":
                raise SmallBlobsUnsupportedError from error
            if not (error.retryable or error.reason in RESUMABLE_UPLOAD_REASONS):
                raise
            await retry.pause(error, connection.patience_for(error))
        missing = set(await find_missing([blob.digest for blob in left]))
        there = [blob for blob in left if blob.digest not in missing]
        if there:
            retry.progressed()
            sink.progressed(sum(blob.size_bytes for blob in there))
        left = [blob for blob in left if blob.digest in missing]


async def _messages(parent: str, blobs: Sequence[Blob], reader: ContentReader, pool: ThreadPoolExecutor) -> Messages:
    loop = asyncio.get_running_loop()
    begin = 0
    while begin < len(blobs):
        end, size = begin, 0
        while (
            end < len(blobs)
            and end - begin < _MESSAGE_BLOBS
            and (not size or size + blobs[end].size_bytes <= _MESSAGE_BYTES)
        ):
            size += blobs[end].size_bytes
            end += 1
        message = await loop.run_in_executor(pool, _encode, "" if begin else parent, blobs[begin:end], reader)
        yield [(message, size)]
        begin = end


def _encode(parent: str, blobs: Sequence[Blob], reader: ContentReader) -> bytes:
    return encode_small_blobs(
        parent, ((blob.digest, reader.read(blob.content, blob.begin, blob.size_bytes)) for blob in blobs)
    )
