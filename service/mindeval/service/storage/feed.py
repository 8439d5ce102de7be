"""Following the log of an evaluation. Watchers read it from the database, so a slow one holds nothing up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from mindeval.formats.deadline import within
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.records import EventRecord

_EVENTS_A_READ = 200


class EventFeed:
    """Hands out the entries of logs as they are committed."""

    def __init__(self, idle_s: float) -> None:
        """Makes a feed.

        Args:
            idle_s: Seconds without an entry after which a follower is told that it is up to date.
        """
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._followers: dict[str, set[asyncio.Event]] = {}
        self._is_stopped = False

    def changed(self, uid: str) -> None:
        """Wakes the followers of an evaluation; callable from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, uid)

    def stop(self) -> None:
        """Makes all followers end once they have seen what there is."""
        self._is_stopped = True
        for uid in list(self._followers):
            self._wake(uid)

    async def follow(
        self, access: StoreAccess, uid: str, after_sequence: int
    ) -> AsyncGenerator[EventRecord | None, None]:
        """The entries after a sequence, ending after the final one, or when the feed is stopped.

        Yields:
            An entry, or None: there has been nothing new for a while, or the feed is stopped.
        """
        wake = asyncio.Event()
        self._followers.setdefault(uid, set()).add(wake)
        try:
            while True:
                wake.clear()  # Before reading, so that what is committed meanwhile wakes the next round.
                events = await access.read(access.store.evaluations.events, uid, after_sequence, _EVENTS_A_READ)
                for event in events:
                    after_sequence = event.sequence
                    yield event
                    if event.is_final:
                        return
                if len(events) == _EVENTS_A_READ:
                    continue
                if self._is_stopped:
                    yield None
                    return
                try:
                    await within(wake.wait(), self._idle_s)
                except asyncio.TimeoutError:
                    yield None
        finally:
            followers = self._followers[uid]
            followers.discard(wake)
            if not followers:
                del self._followers[uid]

    def _wake(self, uid: str) -> None:
        for wake in self._followers.get(uid, ()):
            wake.set()
