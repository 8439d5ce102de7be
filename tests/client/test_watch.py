"""Events as one sequence, whatever the service does."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.client.fake import (
    EVALUATION,
    FakeService,
    Fault,
    bookmark_event,
    progress_event,
    state_event,
)

from mindeval.client import AsyncClient, Client, NotFound, ServiceUnavailable


def log_of(fake: FakeService) -> None:
    fake.events.extend(
        [
            state_event(1, "QUEUED"),
            state_event(2, "RUNNING"),
            bookmark_event(2),
            *(progress_event(number, number, 10) for number in range(3, 9)),
            state_event(9, "SUCCEEDED"),
        ]
    )


async def test_cuts_and_early_ends_are_not_seen(client: AsyncClient, fake: FakeService) -> None:
    log_of(fake)
    fake.cut_watches_after.extend([1, 0, 3, 100])
    fake.fail_next("WatchEvaluation", Fault(grpc.StatusCode.UNAVAILABLE, "SERVICE_DRAINING", retry_after_s=0.01))
    sequences = [event.sequence async for event in client.watch(EVALUATION)]
    assert sequences == list(range(1, 10))
    asked = [request.after_sequence for request in fake.requests["WatchEvaluation"]]
    assert asked == sorted(asked)


async def test_watch_starts_after_what_is_known(client: AsyncClient, fake: FakeService) -> None:
    log_of(fake)
    events = [event async for event in client.watch("e1", after_sequence=7)]
    assert [event.sequence for event in events] == [8, 9]
    assert events[-1].terminal
    assert events[0].progress is not None
    assert (events[0].progress.done, events[0].progress.total, events[0].progress.unit) == (8, 10, "tokens")


async def test_watch_survives_a_restart(client: AsyncClient, fake: FakeService) -> None:
    fake.events.extend([state_event(1, "QUEUED"), state_event(2, "RUNNING")])
    seen: list[int] = []
    async for event in client.watch(EVALUATION):
        seen.append(event.sequence)
        if event.sequence == 2:
            endpoint = fake.endpoint
            await fake.stop()
            await fake.start(endpoint)
            fake.events.append(state_event(3, "SUCCEEDED"))
    assert seen == [1, 2, 3]


async def test_expired_events_are_skipped(client: AsyncClient, fake: FakeService) -> None:
    log_of(fake)
    fake.fail_next("WatchEvaluation", Fault(grpc.StatusCode.OUT_OF_RANGE, "EVENTS_EXPIRED", {"oldest_sequence": "6"}))
    assert [event.sequence async for event in client.watch(EVALUATION)] == [6, 7, 8, 9]


async def test_unknown_evaluation(client: AsyncClient, fake: FakeService) -> None:
    fake.fail_next("WatchEvaluation", Fault(grpc.StatusCode.NOT_FOUND, "EVALUATION_NOT_FOUND"))
    with pytest.raises(NotFound):
        await client.watch(EVALUATION).__anext__()


async def test_service_that_stays_away_ends_the_watch(fake: FakeService) -> None:
    fake.events.append(state_event(1, "RUNNING"))
    async with AsyncClient(fake.endpoint, timeout_s=0.5) as client:
        events = client.watch(EVALUATION)
        assert (await events.__anext__()).sequence == 1
        await fake.stop()
        with pytest.raises(ServiceUnavailable):
            await asyncio.wait_for(events.__anext__(), 20)


async def test_evaluate_repeats_with_one_request_id_until_it_has_a_name(client: AsyncClient, fake: FakeService) -> None:
    log_of(fake)
    fake.fail_next("EvaluateCheckpoint", Fault(grpc.StatusCode.UNAVAILABLE), Fault(grpc.StatusCode.UNAVAILABLE))
    fake.cut_watches_after.extend([2])
    seen: list[int] = []
    result = await client.evaluate(
        "blake3:" + "0" * 64, "s", run="r", step=3, on_event=lambda event: seen.append(event.sequence)
    )
    assert result.succeeded
    assert seen == list(range(1, 10))
    assert len({request.request_id for request in fake.requests["EvaluateCheckpoint"]}) == 1
    assert fake.calls["EvaluateCheckpoint"] == 3
    assert fake.calls["WatchEvaluation"] == 1


async def test_list_asks_for_every_page(client: AsyncClient, fake: FakeService) -> None:
    fake.evaluations.extend(state_event(1, "QUEUED").state_changed.evaluation for _ in range(8))
    assert len([item async for item in client.list_evaluations()]) == 8
    assert fake.calls["ListEvaluations"] == 3
    assert len([item async for item in client.list_evaluations(limit=4)]) == 4


async def test_sync_twin_does_the_same_from_another_thread(fake: FakeService) -> None:
    log_of(fake)
    fake.cut_watches_after.extend([4])

    def work() -> tuple[list[int], str, str]:
        with Client(fake.endpoint, timeout_s=10.0) as client:
            sequences = [event.sequence for event in client.watch("e1")]
            state = client.evaluate("blake3:" + "0" * 64, "s").state
            return sequences, state, client.capabilities().version

    sequences, state, version = await asyncio.to_thread(work)
    assert (sequences, state, version) == (list(range(1, 10)), "SUCCEEDED", "9.9.9")
