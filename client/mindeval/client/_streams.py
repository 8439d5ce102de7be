"""Client streams of messages that are encoded already: one call, from its first message to its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any, Callable

import grpc

from mindeval.client._connection import CALL_TIMEOUT_S, Closing, Connection
from mindeval.client._errors import ServiceError, unavailable
from mindeval.formats.deadline import within
from mindeval.v1 import blob_pb2

WRITE_UPLOAD = "WriteUpload"
WRITE_SMALL_BLOBS = "WriteSmallBlobs"

_RESPONSES: dict[str, Any] = {
    WRITE_UPLOAD: blob_pb2.WriteUploadResponse,
    WRITE_SMALL_BLOBS: blob_pb2.WriteSmallBlobsResponse,
}
_WRITE_TIMEOUT_S = 60.0
_SLOWEST_BYTES_PER_S = 20 << 20
_WRITE_AFTER_END = "Internal error from Core"

Messages = AsyncGenerator["list[tuple[bytes, int]]", None]
"""Encoded messages, each with the bytes of data in it; a few at a time, because each hand-over between threads and
tasks costs as much as sending some hundred kilobytes."""


async def send_stream(
    connection: Connection,
    method: str,
    messages: Messages,
    on_sent: Callable[[int], None],
) -> Any:
    """Sends messages to a method of BlobService and returns its response.

    Args:
        connection: The connection.
        method: `WRITE_UPLOAD` or `WRITE_SMALL_BLOBS`.
        messages: What to send; closed at the end.
        on_sent: Called with the bytes of data that were handed to the connection.

    Raises:
        ServiceError: When the service refuses or goes away; an error of `messages` is passed on.
    """
    started = time.monotonic()
    make: Any = connection.channel().stream_unary(
        f"/mindeval.v1.BlobService/{method}",
        request_serializer=None,
        response_deserializer=_RESPONSES[method].FromString,
    )
    call = make(metadata=connection.target.metadata())
    sent = 0
    try:
        async with Closing(messages) as open_messages:
            async for some in open_messages:
                await within(_write(call, some, on_sent), _WRITE_TIMEOUT_S)
                sent += sum(data_bytes for _, data_bytes in some)
        await call.done_writing()
        response = await within(_finish(call), time_for(sent))
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL and error.details() == _WRITE_AFTER_END:
            # The service ended the call while we wrote, and gRPC keeps its reason from us: the next try shows it.
            raise _ended_early(connection) from error
        raise connection.failed(error, started) from error
    except asyncio.InvalidStateError:
        # The call ended before we wrote; its status says why.
        try:
            await _finish(call)
        except grpc.aio.AioRpcError as error:
            raise connection.failed(error, started) from error
        raise _ended_early(connection) from None
    except asyncio.TimeoutError:
        raise unavailable(connection.target.endpoint, "takes no more bytes") from None
    finally:
        call.cancel()
    connection.reached()
    return response


def time_for(size_bytes: int) -> float:
    """Seconds in which the service has flushed or verified so many bytes, also on a slow disk."""
    return CALL_TIMEOUT_S + size_bytes / _SLOWEST_BYTES_PER_S


def _ended_early(connection: Connection) -> ServiceError:
    return unavailable(connection.target.endpoint, "ended the upload early")


async def _write(call: Any, messages: list[tuple[bytes, int]], on_sent: Callable[[int], None]) -> None:
    for message, data_bytes in messages:
        await call.write(message)
        on_sent(data_bytes)


async def _finish(call: Any) -> Any:
    return await call
