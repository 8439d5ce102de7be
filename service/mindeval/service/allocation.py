"""How this process asks for memory; set once at its start."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MMAP_FROM_BYTES = 32 << 20
_TRIM_FROM_BYTES = 512 << 20
_ARENAS = 2


def keep_chunks() -> None:
    """Makes malloc reuse the memory of chunks instead of giving each back to the kernel.

    By default every megabyte that arrives is mapped, page by page, and unmapped again: 220,000 page faults a gigabyte,
    instead of 5,000. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_FROM_BYTES)
        # Each thread that has had a chunk would keep memory of its own.
        mallopt(_M_ARENA_MAX, _ARENAS)
