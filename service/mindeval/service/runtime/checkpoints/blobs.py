"""Reading blobs: into memory of our own, verified there.

Bytes are read, not mapped. A mapped file that somebody truncates kills the process (SIGBUS), one that somebody
rewrites changes weights after they were verified, and the weights have to be copied anyway; a buffer that was filled
and then hashed is exactly what was verified, whatever happens to the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mindeval.formats.digest import digest_bytes
from mindeval.service.runtime.errors import RunnerError

_READ_BYTES = 64 << 20


def read_pieces(pieces: Sequence[tuple[str, str, int]], what: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    """Reads consecutive blobs of one tensor into one buffer, each verified.

    Args:
        pieces: (file, digest, size in bytes) of each, in order.
        what: As for `read_verified`, which says what is raised.

    Returns:
        uint8 [sum of sizes], owned by the caller.
    """
    if len(pieces) == 1:
        return read_verified(*pieces[0], what)
    data = np.empty(sum(size for _, _, size in pieces), dtype=np.uint8)
    begin = 0
    for path, digest, size in pieces:
        # One piece more than the tensor is in memory, never a second copy of the whole.
        data[begin : begin + size] = read_verified(path, digest, size, what)
        begin += size
    return data


def read_verified(path: str, digest: str, size_bytes: int | None, what: Mapping[str, str]) -> npt.NDArray[np.uint8]:
    """Reads a whole blob and verifies it.

    Args:
        path: The blob's file.
        digest: The digest that its bytes must have.
        size_bytes: The size that it must have; None when only the digest says it.
        what: What the blob is, for the error's metadata, such as {"tensor": "lm_head.weight"}.

    Returns:
        uint8 [size], owned by the caller.

    Raises:
        RunnerError: BLOB_MISSING when the file is not there, CHECKPOINT_TRUNCATED when it is too short,
            CHECKPOINT_CORRUPT when its bytes have another digest.
    """
    metadata = {**what, "digest": digest, "blob": os.path.basename(path)}
    label = " ".join(f"{key} {value!r}" for key, value in what.items())
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = np.empty(size, dtype=np.uint8)
            filled = _fill(file, data.data)
    except OSError as error:
        raise RunnerError(
            "BLOB_MISSING", f"the blob of {label} cannot be read ({error.strerror}); push it again", metadata
        ) from None
    expected = size if size_bytes is None else size_bytes
    if filled < expected:
        raise RunnerError(
            "CHECKPOINT_TRUNCATED",
            f"the blob of {label} has {filled} bytes instead of {expected}; push the checkpoint again",
            metadata,
        )
    if size > expected or digest_bytes(data.data) != digest:
        raise RunnerError(
            "CHECKPOINT_CORRUPT",
            f"the blob of {label} does not have the bytes that {digest} names; push the checkpoint again",
            metadata,
        )
    return data


def _fill(file: object, target: memoryview) -> int:
    filled = 0
    while filled < len(target):
        count: int = file.readinto(target[filled : filled + _READ_BYTES])  # type: ignore[attr-defined]
        if not count:
            break
        filled += count
    return filled
