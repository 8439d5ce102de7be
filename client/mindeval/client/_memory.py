"""Memory settings of a process that sends much: the command line and the push agent, never a process of the user's."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MIB = 1 << 20


def keep_freed_memory() -> None:
    """Tells glibc's malloc to keep what is freed, for the next message.

    Otherwise each message of a mebibyte is mapped anew and given back, at some 250 page faults a time. Harmless where
    malloc is another one.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    mallopt(_M_TRIM_THRESHOLD, 512 * _MIB)
    # Each thread has its own reserve otherwise, and keeps it.
    mallopt(_M_ARENA_MAX, 2)
