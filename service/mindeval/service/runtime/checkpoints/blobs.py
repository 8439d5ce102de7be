"""Reading blobs: into memory of our own, verified there.

Bytes are read, not mapped. A mapped file that somebody truncates kills the process (SIGBUS), one that somebody
rewrites changes weights after they were verified, and the weights have to be copied anyway; a buffer that was filled
and then hashed is exactly what was verified, whatever happens to the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from mindeval.formats.digest import digest_bytes
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import BlobLocation

_READ_BYTES = 64 << 20


def read_pieces(pieces: Sequence[tuple[BlobLocation, str, int]], what: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    """Reads consecutive blobs of one tensor into one buffer, each verified.

    Args:
        pieces: (location, digest, size in bytes) of each, in order.
        what: As for `read_verified`, which says what is raised.

    Returns:
        uint8 [sum of sizes], owned by the caller.
    """
    if len(pieces) == 1:
        return read_verified(*pieces[0], what)
    data = np.empty(sum(size for _, _, size in pieces), dtype=np.uint8)
    begin = 0
    for location, digest, size in pieces:
        # One piece more than the tensor is in memory, never a second copy of the whole.
        data[begin : begin + size] = read_verified(location, digest, size, what)
        begin += size
    return data


def read_verified(
    location: BlobLocation, digest: str, size_bytes: int | None, what: Mapping[str, str]
) -> npt.NDArray[np.uint8]:
    """Reads a whole blob and verifies it.

    Args:
        location: Where it lies.
        digest: The digest that its bytes must have.
        size_bytes: The size that it must have; None when only the location says it.
        what: What the blob is, for the error's metadata, such as {"tensor": "lm_head.weight"}.

    Returns:
        uint8 [size], owned by the caller.

    Raises:
        RunnerError: BLOB_MISSING when the file is not there, CHECKPOINT_TRUNCATED when it ends before the blob does,
            CHECKPOINT_CORRUPT when the bytes have another digest or another size.
    """
    metadata = {**what, "digest": digest, "blob": os.path.basename(location.path)}
    label = " ".join(f"{key} {value!r}" for key, value in what.items())
    if size_bytes is not None and size_bytes != location.size_bytes:
        raise RunnerError(
            "CHECKPOINT_CORRUPT",
            f"the blob of {label} has {location.size_bytes} bytes, not the {size_bytes} that the manifest declares; "
            "push the checkpoint again",
            metadata,
        )
    try:
        with open(location.path, "rb", buffering=0) as file:
            # A damaged file is found before memory is taken for what it does not hold.
            there = max(0, os.fstat(file.fileno()).st_size - location.offset)
            data = np.empty(min(there, location.size_bytes), dtype=np.uint8)
            file.seek(location.offset)
            filled = _fill(file, data.data)
    except OSError as error:
        raise RunnerError(
            "BLOB_MISSING", f"the blob of {label} cannot be read ({error.strerror}); push it again", metadata
        ) from None
    if filled < location.size_bytes:
        raise RunnerError(
            "CHECKPOINT_TRUNCATED",
            f"the blob of {label} has {filled} bytes instead of {location.size_bytes}; push the checkpoint again",
            metadata,
        )
    if digest_bytes(data.data) != digest:
        raise RunnerError(
            "CHECKPOINT_CORRUPT",
            f"the blob of {label} does not have the bytes that {digest} names; push the checkpoint again",
            metadata,
        )
    return data


def _fill(file: BinaryIO, target: memoryview) -> int:
    filled = 0
    while filled < len(target):
        count: int = file.readinto(target[filled : filled + _READ_BYTES])  # type: ignore[attr-defined]
        if not count:
            break
        filled += count
    return filled
