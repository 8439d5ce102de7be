"""The way from async code into a blocking store.

Writes go through one thread, so they happen one after another in the order asked, and never block the event loop;
reads have threads of their own and see everything that was committed when they begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from mindeval.service.storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")

_READER_THREADS = 2


class StoreAccess:
    """Runs methods of a store on its threads: `await access.read(access.store.runs.get, project, run_id)`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writer = ThreadPoolExecutor(1, "store-write")
        self._readers = ThreadPoolExecutor(_READER_THREADS, "store-read")

    async def write(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a method that changes the database. It runs to its end even when the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, partial(method, *args, **kwargs))

    async def read(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a method that only reads."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(method, *args, **kwargs))

    def close(self) -> None:
        """Waits for what was begun, then closes the store."""
        self._readers.shutdown()
        self._writer.shutdown()
        self.store.close()
