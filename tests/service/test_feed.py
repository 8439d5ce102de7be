from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.service.test_store_contract import new

from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.feed import EventFeed
from mindeval.service.storage.records import EvaluationRecord, ProgressRecord, State
from mindeval.service.storage.sql.store import SqlStore

IDLE_S = 600.0
"""So long that whoever waits for it has missed a wake-up."""
SOON_S = 10.0


@pytest.fixture
async def feed() -> EventFeed:
    return EventFeed(IDLE_S)


@pytest.fixture
async def access(tmp_path: Path, feed: EventFeed) -> AsyncIterator[StoreAccess]:
    access = StoreAccess(SqlStore(tmp_path / "x.db", feed.changed))
    yield access
    access.close()


async def started(access: StoreAccess) -> EvaluationRecord:
    await access.write(access.store.evaluations.create, new())
    record = await access.write(access.store.evaluations.start_next, "cpu:0", "build")
    assert record is not None
    return record


async def collect(feed: EventFeed, access: StoreAccess, uid: str, after: int) -> list[int | None]:
    async with aclosing(feed.follow(access, uid, after)) as events:
        return [None if event is None else event.sequence async for event in events]


async def test_followers_get_every_entry_as_soon_as_it_is_committed(feed: EventFeed, access: StoreAccess) -> None:
    record = await started(access)
    followers = [asyncio.ensure_future(collect(feed, access, record.uid, after)) for after in (0, 1, 2)]
    evaluations = access.store.evaluations
    for number in range(300):
        progress = ProgressRecord("t", "scoring", number, 300, "tokens")
        await access.write(evaluations.record_progress, record.uid, record.attempt_token, progress)
    await access.write(evaluations.finish, record.uid, record.attempt_token, State.SUCCEEDED, None, None)
    for after, follower in enumerate(followers):
        assert await asyncio.wait_for(follower, SOON_S) == list(range(after + 1, 304))


async def test_stopping_ends_followers_with_a_bookmark(feed: EventFeed, access: StoreAccess) -> None:
    record = await started(access)
    follower = asyncio.ensure_future(collect(feed, access, record.uid, 0))
    feed.stop()
    assert await asyncio.wait_for(follower, SOON_S) == [1, 2, None]
    assert await asyncio.wait_for(collect(feed, access, record.uid, 1), SOON_S) == [2, None]


async def test_an_idle_follower_is_told_that_it_is_up_to_date(access: StoreAccess) -> None:
    record = await started(access)
    async with aclosing(EventFeed(0.01).follow(access, record.uid, 2)) as events:
        assert [await asyncio.wait_for(events.__anext__(), SOON_S) for _ in range(3)] == [None, None, None]
