"""Content digests: "blake3:" and 64 lower-case hexadecimal digits."""

from __future__ import annotations

import mmap
import os
import re
from typing import Union

from blake3 import blake3

from mindeval.formats.errors import FormatError

ALGORITHM = "blake3"
_PATTERN = re.compile(r"blake3:[0-9a-f]{64}\Z")
# BLAKE3 gains from several threads only on long inputs; below this the hand-over costs more than it saves.
_PARALLEL_FROM_BYTES = 1 << 20

Buffer = Union[bytes, bytearray, memoryview, mmap.mmap]


class Hasher:
    """Digest of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self._state = blake3()

    def update(self, data: Buffer) -> None:
        """Adds bytes."""
        self._state.update(data)

    def digest(self) -> str:
        """The digest of everything added so far."""
        return f"{ALGORITHM}:{self._state.hexdigest()}"


def digest_bytes(data: Buffer) -> str:
    """Digest of bytes in memory (a bytes-like object of item size 1)."""
    threads = blake3.AUTO if len(data) >= _PARALLEL_FROM_BYTES else 1
    return f"{ALGORITHM}:{blake3(data, max_threads=threads).hexdigest()}"


def digest_file(path: str | os.PathLike[str]) -> str:
    """Digest of a file's bytes; reads it through a memory map, so memory stays bounded."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return digest_bytes(b"")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return digest_bytes(view)


def is_digest(text: str) -> bool:
    """Whether the text is a well-formed digest."""
    return _PATTERN.match(text) is not None


def check_digest(text: str, field: str) -> str:
    """Returns the digest.

    Raises:
        FormatError: INVALID_FIELD when it is malformed; metadata name the field.
    """
    if not is_digest(text):
        raise FormatError(
            "INVALID_FIELD",
            f"{field}: {text[:80]!r} is not a digest; expected 'blake3:' and 64 lower-case hexadecimal digits",
            {"field": field},
        )
    return text


def digest_hex(digest: str) -> str:
    """The hexadecimal part of a well-formed digest."""
    return digest.split(":", 1)[1]
