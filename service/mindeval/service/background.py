"""Work that must be finished once it was begun, also when the call that asked for it is cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Background:
    """Keeps pieces of work alive until they have ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits work; when the caller is cancelled, the work goes on without it."""
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins work that nobody needs to wait for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def settle(self) -> None:
        """Waits until everything has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # The caller may be gone; looking at the exception keeps the event loop from reporting it a second time.
        if not task.cancelled() and task.exception() is not None:
            _log.debug("work in the background failed: %s", task.exception())
