"""What every `Store` must do; run for each implementation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindeval.service.errors import ServiceError
from mindeval.service.storage.records import (
    Condition,
    ConflictPolicy,
    EvaluationQuery,
    EvaluationRecord,
    Failure,
    MetricRecord,
    NewEvaluation,
    PointRecord,
    ProgressRecord,
    State,
    Statistics,
    TaskRecord,
)
from mindeval.service.storage.sql.evaluations import MAX_ATTEMPTS
from mindeval.service.storage.sql.store import SqlStore
from mindeval.service.storage.store import Store
from mindeval.v1 import evaluation_pb2 as pb

PROGRESS = ProgressRecord("t", "scoring", 1, 2, "tokens")
DIGEST = "blake3:" + "0" * 64


@pytest.fixture
def changes() -> list[str]:
    return []


@pytest.fixture(params=["sqlite"])
def store(tmp_path: Path, changes: list[str]) -> Iterator[Store]:
    store = SqlStore(tmp_path / "test.db", changes.append)
    yield store
    store.close()


def new(**fields: object) -> NewEvaluation:
    base = NewEvaluation(
        project="p",
        request_id="",
        payload_hash="h",
        suite="projects/p/suites/s",
        suite_version="projects/p/suites/s/versions/" + "1" * 64,
        dataset_versions=("projects/p/datasets/d/versions/" + "2" * 64,),
        checkpoint=DIGEST,
        evaluator_build="build",
        run="",
        step=0,
        epoch=0.5,
        timeout_s=None,
        parameters={"a": "b"},
        natural_key="",
        conflict_policy=ConflictPolicy.USE_EXISTING,
    )
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]


def started(store: Store) -> EvaluationRecord:
    store.evaluations.create(new())
    record = store.evaluations.start_next("cpu:0", "build")
    assert record is not None
    return record


def log(store: Store, record: EvaluationRecord) -> list[pb.EvaluationEvent]:
    events = store.evaluations.events(record.uid, 0, 1000)
    messages = [pb.EvaluationEvent.FromString(event.body) for event in events]
    assert [message.sequence for message in messages] == list(range(1, len(events) + 1))
    assert [event.is_final for event in events[:-1]] == [False] * (len(events) - 1)
    return messages


def test_a_new_evaluation_has_its_first_event(store: Store, changes: list[str]) -> None:
    record, created = store.evaluations.create(new(timeout_s=2.5))
    assert created
    assert (record.state, record.last_sequence, record.attempt) == (State.QUEUED, 1, 0)
    assert store.evaluations.get("p", record.id) == record
    assert store.evaluations.get("q", record.id) is None
    (event,) = log(store, record)
    assert event.state_changed.evaluation.spec.timeout.ToMilliseconds() == 2500
    assert dict(event.state_changed.evaluation.spec.parameters) == {"a": "b"}
    assert changes == [record.uid]


def test_attempts_report_until_the_end(store: Store, changes: list[str]) -> None:
    record = started(store)
    assert (record.state, record.attempt) == (State.RUNNING, 1)
    token = record.attempt_token
    after = store.evaluations.record_progress(record.uid, token, PROGRESS)
    assert after is not None
    assert after.etag == record.etag
    results = (
        MetricRecord("loss", math.nan, None, "none", 3, False, "sig", ("non_finite",)),
        MetricRecord("ppl", math.inf, 0.25, "ratio", 3, None, "sig"),
        MetricRecord("acc", 0.1 + 0.2, None, "none", 3, True, "sig"),
    )
    task = TaskRecord("t", 4, 3, 1, results, None, 1.5)
    after = store.evaluations.record_task(record.uid, token, task)
    assert after is not None
    assert after.etag != record.etag
    assert repr(after.tasks) == repr((task,))
    # A task that has an outcome keeps it.
    again = store.evaluations.record_task(record.uid, token, TaskRecord("t", 9, 9, 0))
    assert again is not None
    assert again.last_sequence == after.last_sequence
    statistics = Statistics(1.0, 2.0, 3.0, 4, True, "cpu:0")
    final = store.evaluations.finish(record.uid, token, State.SUCCEEDED, None, statistics)
    assert final is not None
    assert (final.state, final.statistics, final.attempt_token) == (State.SUCCEEDED, statistics, "")
    kinds = [event.WhichOneof("payload") for event in log(store, record)]
    assert kinds == ["state_changed", "state_changed", "progress", "task_finished", "state_changed"]
    assert changes == [record.uid] * 5


@pytest.mark.parametrize("end", ["finish", "requeue", "recover"])
def test_stale_attempts_change_nothing(store: Store, end: str, changes: list[str]) -> None:
    record = started(store)
    stale = record.attempt_token
    if end == "finish":
        store.evaluations.finish(record.uid, stale, State.FAILED, Failure("RUNNER_LOST", "gone"), None)
    elif end == "requeue":
        store.evaluations.requeue(record.uid, stale)
        store.evaluations.start_next("cpu:1", "build")
    else:
        assert [r.state for r in store.evaluations.recover()] == [State.QUEUED]
    before = store.evaluations.get("p", record.id)
    changes.clear()
    for token in (stale, "", "made up"):
        assert store.evaluations.record_progress(record.uid, token, PROGRESS) is None
        assert store.evaluations.record_task(record.uid, token, TaskRecord("t")) is None
        assert store.evaluations.finish(record.uid, token, State.SUCCEEDED, None, None) is None
        assert store.evaluations.requeue(record.uid, token) is None
    assert store.evaluations.get("p", record.id) == before
    assert changes == []


def test_queue_is_in_order_of_creation_and_requeued_ones_keep_their_place(store: Store) -> None:
    ids = [store.evaluations.create(new(step=step))[0].id for step in (3, 1, 2)]
    first = store.evaluations.start_next("cpu:0", "build")
    assert first is not None
    assert first.id == ids[0]
    store.evaluations.requeue(first.uid, first.attempt_token)
    order = []
    while (record := store.evaluations.start_next("cpu:0", "build")) is not None:
        order.append(record.id)
    assert order == ids
    assert store.evaluations.get("p", ids[0]).attempt == 2  # type: ignore[union-attr]


def test_outcomes_of_another_build_are_dropped(store: Store) -> None:
    record = started(store)
    store.evaluations.record_task(record.uid, record.attempt_token, TaskRecord("t", 1, 1, 0))
    store.evaluations.requeue(record.uid, record.attempt_token)
    kept = store.evaluations.start_next("cpu:0", "build")
    assert kept is not None
    assert len(kept.tasks) == 1
    store.evaluations.requeue(kept.uid, kept.attempt_token)
    dropped = store.evaluations.start_next("cpu:0", "newer build")
    assert dropped is not None
    assert (dropped.tasks, dropped.evaluator_build) == ((), "newer build")


def test_cancelling_ends_cancelled_whatever_the_runner_says(store: Store) -> None:
    record = started(store)
    assert store.evaluations.cancel("p", record.id, record.etag).state is State.CANCELLING
    final = store.evaluations.finish(record.uid, record.attempt_token, State.SUCCEEDED, None, None)
    assert final is not None
    assert final.state is State.CANCELLED
    assert final.failure is not None
    assert final.failure.reason == "CANCELLED_BY_USER"


def test_recover_puts_back_what_ran(store: Store) -> None:
    store.evaluations.create(new())
    store.evaluations.create(new())
    running = store.evaluations.start_next("cpu:0", "build")
    cancelling = store.evaluations.start_next("cpu:1", "build")
    assert running is not None
    assert cancelling is not None
    store.evaluations.cancel("p", cancelling.id, "")
    states = {record.id: record.state for record in store.evaluations.recover()}
    assert states == {running.id: State.QUEUED, cancelling.id: State.CANCELLED}
    assert store.evaluations.recover() == []


def test_what_takes_the_service_down_again_and_again_is_given_up(store: Store) -> None:
    store.evaluations.create(new())
    for attempt in range(1, MAX_ATTEMPTS):
        assert store.evaluations.start_next("cpu:0", "build") is not None
        (back,) = store.evaluations.recover()
        assert (back.state, back.attempt) == (State.QUEUED, attempt)
    assert store.evaluations.start_next("cpu:0", "build") is not None
    (failed,) = store.evaluations.recover()
    assert failed.state is State.FAILED
    assert failed.failure is not None
    assert failed.failure.reason == "RUNNER_LOST"


def test_fail_queued(store: Store) -> None:
    record, _ = store.evaluations.create(new())
    (failed,) = store.evaluations.fail_queued(Failure("RUNNER_START_FAILED", "no", {"device": "cpu:0"}))
    assert (failed.id, failed.state) == (record.id, State.FAILED)
    assert store.evaluations.fail_queued(Failure("RUNNER_START_FAILED", "no")) == []


def test_request_ids_are_forgotten_in_time(store: Store) -> None:
    record, _ = store.evaluations.create(new(request_id="r"))
    assert store.evaluations.find_request("p", "r", "h") == record
    assert store.evaluations.find_request("q", "r", "h") is None
    for call in (
        lambda: store.evaluations.find_request("p", "r", "other"),
        lambda: store.evaluations.create(new(request_id="r", payload_hash="other")),
        lambda: store.evaluations.preview(new(request_id="r", payload_hash="other")),
    ):
        with pytest.raises(ServiceError, match="REQUEST_ID_REUSED"):
            call()
    assert store.evaluations.forget_requests(record.create_us) == 0
    assert store.evaluations.forget_requests(record.create_us + 10_000_000) == 1
    assert store.evaluations.create(new(request_id="r"))[1]


def test_natural_keys(store: Store) -> None:
    keyed = new(run="r", natural_key="k")
    first, _ = store.evaluations.create(keyed)
    assert store.evaluations.create(keyed) == (first, False)
    assert store.runs.get("p", "r") is not None
    assert store.evaluations.create(dataclasses.replace(keyed, project="q"))[1]
    fail = dataclasses.replace(keyed, conflict_policy=ConflictPolicy.FAIL)
    with pytest.raises(ServiceError, match="EVALUATION_EXISTS"):
        store.evaluations.create(fail)
    rerun, created = store.evaluations.create(dataclasses.replace(keyed, conflict_policy=ConflictPolicy.RERUN))
    assert created
    assert store.evaluations.create(keyed) == (rerun, False)
    store.evaluations.fail_queued(Failure("RUNNER_LOST", "gone"))
    assert store.evaluations.create(keyed)[1]


def test_pages_of_equal_steps_lose_nothing(store: Store) -> None:
    for number in range(10):
        store.evaluations.create(new(step=number // 5))
    for order in ("create_time", "step"):
        for descending in (False, True):
            query = EvaluationQuery("p", order=order, descending=descending, limit=3)
            found: list[EvaluationRecord] = []
            while True:
                last = (found[-1].step, found[-1].serial) if found else None
                page = store.evaluations.page(dataclasses.replace(query, after=last))
                found += page
                if len(page) < 3:
                    break
            serials = [record.serial for record in found]
            assert serials == sorted(serials, reverse=descending)
            assert len(serials) == 10
    conditions = (Condition("step", "=", 1), Condition("state", "=", int(State.QUEUED)))
    assert len(store.evaluations.page(EvaluationQuery("p", conditions))) == 5


def test_uploads(store: Store) -> None:
    index = store.blobs
    upload = index.open_upload("p", DIGEST, 10, 5)
    assert index.open_upload("p", DIGEST, 10, 7) == dataclasses.replace(upload, expire_us=7)
    assert index.open_upload("q", DIGEST, 10, 5).id != upload.id
    assert index.open_bytes() == 20
    index.advance(upload.id, 4, 9)
    assert index.upload("p", upload.id) == dataclasses.replace(upload, committed_offset=4, expire_us=9)
    assert index.upload("q", upload.id) is None
    assert index.sizes("p", [DIGEST]) == {}
    assert index.complete(upload.id).complete
    assert index.complete(upload.id).complete
    assert index.sizes("p", [DIGEST]) == {DIGEST: 10}
    assert index.sizes("q", [DIGEST]) == {}
    assert index.open_bytes() == 10
    index.advance(upload.id, 0, 0)
    assert index.upload("p", upload.id).committed_offset == 10  # type: ignore[union-attr]
    index.remove("p", DIGEST)
    assert index.sizes("p", [DIGEST]) == {}
    index.discard(upload.id)
    with pytest.raises(ServiceError, match="UPLOAD_NOT_FOUND"):
        index.complete(upload.id)
    assert len(index.uploads()) == 1


def test_many_blobs_in_one_question(store: Store) -> None:
    digests = [f"blake3:{number:064x}" for number in range(1_200)]
    for digest in digests[::300]:
        store.blobs.complete(store.blobs.open_upload("p", digest, 1, 0).id)
    assert store.blobs.sizes("p", digests) == dict.fromkeys(digests[::300], 1)


def test_runs_and_versions(store: Store) -> None:
    assert store.runs.report("p", "r", [PointRecord(5, b"a"), PointRecord(3, b"b")]).last_step == 5
    assert store.runs.report("p", "r", [PointRecord(3, b"c")]).last_step == 5
    assert store.runs.points("p", "r", -1, 10) == [PointRecord(3, b"c"), PointRecord(5, b"a")]
    record, created = store.registry.put("p", "suites", "s", "1" * 64, {"x": [1, None]})
    assert created
    assert store.registry.put("p", "suites", "s", "2" * 64, {})[1]
    assert store.registry.put("p", "suites", "s", "1" * 64, {"x": [1, None]}) == (record, False)
    assert store.registry.get("p", "suites", "s") == record
    assert store.registry.get("p", "datasets", "s") is None
    assert store.registry.page("p", "suites", "", 10) == [record]
    assert store.registry.page("p", "suites", "s", 10) == []


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "x.db", lambda uid: None)
    record = started(store)
    store.close()
    store = SqlStore(tmp_path / "x.db", lambda uid: None)
    assert store.evaluations.get("p", record.id) == record
    assert len(log(store, record)) == 2
    store.close()
