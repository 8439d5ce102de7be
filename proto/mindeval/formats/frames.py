"""Frames between the service and a runner: 4 bytes big-endian length, then a UTF-8 JSON object.

NaN and infinities are written as Python's json writes them; both ends are ours. docs/formats.md lists the messages.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


class FrameError(Exception):
    """The peer sent something that is not a frame, or hung up in the middle of one."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":")).encode("utf-8")
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """The message in a frame's body.

    Raises:
        FrameError: When it is no JSON object.
    """
    try:
        message = json.loads(body)
    except ValueError as error:
        raise FrameError(f"not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise FrameError("not a JSON object with a type")
    return message


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Waits for the next message; None when the peer has closed between frames.

    Raises:
        FrameError: When the peer closed within a frame, or sent something else.
    """
    head = _receive_exactly(connection, _LENGTH.size)
    if head is None:
        return None
    body = _receive_exactly(connection, _checked_length(head))
    if body is None:
        raise FrameError("the peer closed within a frame")
    return decode(body)


async def read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """As `receive`, from an asyncio stream."""
    try:
        head = await reader.readexactly(_LENGTH.size)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise FrameError("the peer closed within a frame") from None
    try:
        return decode(await reader.readexactly(_checked_length(head)))
    except asyncio.IncompleteReadError:
        raise FrameError("the peer closed within a frame") from None


def _checked_length(head: bytes) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return int(length)


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        piece = connection.recv(min(count - len(pieces), 1 << 20))
        if not piece:
            if pieces:
                raise FrameError("the peer closed within a frame")
            return None
        pieces += piece
    return bytes(pieces)
