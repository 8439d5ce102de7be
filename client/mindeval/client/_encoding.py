"""Messages that carry bytes, written by hand: one copy of the data instead of protobuf's three.

They are what protobuf makes of the same fields, byte for byte.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Callable

from mindeval.v1 import blob_pb2

# Key of a field: number << 3 | 2 (length-delimited).
_WRITE_UPLOAD_DATA = b"\x1a"
_SMALL_BLOBS_BLOB = b"\x12"
_SMALL_BLOB_DIGEST = b"\x0a"
_SMALL_BLOB_DATA = b"\x12"


def encode_chunk(name: str, offset: int, size_bytes: int, fill: Callable[[memoryview], None]) -> bytes:
    """A WriteUploadRequest.

    Args:
        name: Name of the upload; "" when the stream has named it already.
        offset: Offset of the data.
        size_bytes: Length of the data.
        fill: Puts the data into the message that is being made.
    """
    head = blob_pb2.WriteUploadRequest(name=name, offset=offset).SerializeToString()
    if size_bytes == 0:
        return head
    # BytesIO gives its buffer away without a copy, and is the one way to fill a bytes object in place.
    message = io.BytesIO()
    message.write(head + _WRITE_UPLOAD_DATA + varint(size_bytes))
    begin = message.tell()
    message.seek(size_bytes - 1, io.SEEK_CUR)
    message.write(b"\0")
    with message.getbuffer() as buffer, buffer[begin:] as data:
        fill(data)
    return message.getvalue()


def encode_small_blobs(parent: str, blobs: Iterable[tuple[str, bytes]]) -> bytes:
    """A WriteSmallBlobsRequest of (digest, data) pairs; `parent` is "" when the stream has named it already."""
    parts = [blob_pb2.WriteSmallBlobsRequest(parent=parent).SerializeToString()]
    for digest, data in blobs:
        name = digest.encode("ascii")
        head = _SMALL_BLOB_DIGEST + varint(len(name)) + name
        if data:
            head += _SMALL_BLOB_DATA + varint(len(data))
        parts += [_SMALL_BLOBS_BLOB, varint(len(head) + len(data)), head, data]
    return b"".join(parts)


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
