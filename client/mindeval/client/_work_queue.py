"""What the workers of one push have to do: a queue in which work may be put off, and which ends."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from mindeval.formats.deadline import within

_T = TypeVar("_T")


class WorkQueue(Generic[_T]):
    """First in, first out; what was put off comes when its time has come and nothing else is left to do.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._items: deque[_T] = deque()
        self._put_off: list[tuple[float, _T]] = []
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, item: _T) -> None:
        """Adds work."""
        self._items.append(item)
        self._changed.set()

    def put_off(self, item: _T, delay_s: float) -> None:
        """Gives work back, to be done no sooner than this."""
        self._put_off.append((time.monotonic() + delay_s, item))
        self._changed.set()

    def close(self) -> None:
        """Says that no new work comes; what is there is still handed out."""
        self._closed = True
        self._changed.set()

    async def get(self) -> _T | None:
        """The next piece of work; None when all is handed out and the queue is closed."""
        while True:
            if self._items:
                return self._items.popleft()
            wait_s: float | None = None
            if self._put_off:
                due, item = min(self._put_off, key=lambda entry: entry[0])
                wait_s = due - time.monotonic()
                if wait_s <= 0:
                    self._put_off.remove((due, item))
                    return item
            elif self._closed:
                return None
            self._changed.clear()
            with suppress(asyncio.TimeoutError):
                await within(self._changed.wait(), wait_s)

    def take_ready(self) -> _T | None:
        """The next piece of work that needs no waiting, if there is one."""
        return self._items.popleft() if self._items else None
