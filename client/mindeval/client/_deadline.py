"""A bound on how long something is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def within(awaitable: Awaitable[_T], timeout_s: float | None) -> _T:
    """As asyncio.wait_for, which before Python 3.12 loses a cancellation that comes together with the result.

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
