"""A bound on how long something is waited for, without the trap in asyncio's own.

Before Python 3.12, `asyncio.wait_for` swallows a cancellation that arrives together with the result: the task that was
told to end goes on, and whoever waits for its end waits for ever. Both ends of a connection need the same cure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def within(awaitable: Awaitable[_T], timeout_s: float | None) -> _T:
    """As asyncio.wait_for, but a cancellation is never lost.

    Raises:
        asyncio.TimeoutError: When it takes longer; it is cancelled then.
    """
    future = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait([future], timeout=timeout_s)
    except asyncio.CancelledError:
        future.cancel()
        raise
    if not done:
        future.cancel()
        raise asyncio.TimeoutError
    return future.result()
