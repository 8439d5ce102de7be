"""What every `Store` must do; run for each implementation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindeval.formats.digest import digest_bytes
from mindeval.service.errors import BlobsMissingError, ServiceError
from mindeval.service.storage.records import (
    CheckpointContent,
    CheckpointQuery,
    CheckpointRecord,
    CheckpointStepRecord,
    Condition,
    ConflictPolicy,
    EvaluationQuery,
    EvaluationRecord,
    Failure,
    MetricRecord,
    NewEvaluation,
    PackedBlob,
    PackRecord,
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
    index.remove("p", [DIGEST])
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


def checkpoint(store: Store, name: str, *contents: str, hold: bool = True) -> CheckpointContent:
    """A checkpoint with blobs of 10 bytes, which the project holds."""
    digests = {text: digest_bytes(text.encode()) for text in (name, *contents)}
    for digest in digests.values() if hold else ():
        store.blobs.complete(store.blobs.open_upload("p", digest, 10, 0).id)
    return CheckpointContent(digests[name], dict.fromkeys(digests.values(), 10), len(contents))


def test_checkpoints_are_registered_once(store: Store) -> None:
    content = checkpoint(store, "one", "a", "b")
    record, created = store.checkpoints.register("p", content)
    assert created
    assert (record.size_bytes, record.own_size_bytes, record.tensor_count, record.missing_count) == (30, 30, 2, 0)
    assert (record.pinned, record.steps, record.name) == (False, (), f"projects/p/checkpoints/{content.manifest[7:]}")
    again, created = store.checkpoints.register("p", content, CheckpointStepRecord("r", 5))
    assert not created
    assert again.steps == (CheckpointStepRecord("r", 5),)
    assert (again.create_us, again.use_us > record.use_us) == (record.create_us, True)
    assert store.runs.get("p", "r") is not None
    assert store.checkpoints.get("p", content.manifest) == again
    assert store.checkpoints.get("q", content.manifest) is None


def test_checkpoints_need_their_blobs(store: Store) -> None:
    content = checkpoint(store, "one", "a", hold=False)
    held = checkpoint(store, "held", "a")
    with pytest.raises(BlobsMissingError) as caught:
        store.checkpoints.register("p", content, CheckpointStepRecord("r", 5))
    assert caught.value.digests == [content.manifest]
    with pytest.raises(BlobsMissingError):
        store.evaluations.create(new(checkpoint=content.manifest, content=content, request_id="x"))
    assert store.checkpoints.get("p", content.manifest) is None
    assert store.runs.get("p", "r") is None
    assert store.evaluations.page(EvaluationQuery("p")) == []
    assert store.evaluations.find_request("p", "x", "h") is None
    store.checkpoints.register("p", held)
    store.blobs.remove("p", [digest_bytes(b"a")])
    assert store.checkpoints.get("p", held.manifest).missing_count == 1  # type: ignore[union-attr]


def test_an_evaluation_registers_its_checkpoint(store: Store) -> None:
    content = checkpoint(store, "one", "a")
    fields = {"checkpoint": content.manifest, "content": content, "checkpoint_uri": "file:///a"}
    record, _ = store.evaluations.create(new(run="r", step=7, natural_key="k", **fields))
    assert store.evaluations.get("p", record.id).checkpoint_uri == "file:///a"  # type: ignore[union-attr]
    first = store.checkpoints.get("p", content.manifest)
    assert first is not None
    assert first.steps == (CheckpointStepRecord("r", 7),)
    assert store.evaluations.create(new(run="r", step=7, natural_key="k", **fields)) == (record, False)
    second = store.checkpoints.get("p", content.manifest)
    assert second is not None
    assert second.use_us > first.use_us


def test_checkpoints_are_paged(store: Store) -> None:
    contents = [checkpoint(store, f"c{number}", "shared") for number in range(4)]
    for step, content in zip((3, 1, 4, 2), contents):
        store.checkpoints.register("p", content, CheckpointStepRecord("r", step))
    store.checkpoints.register("p", contents[1], CheckpointStepRecord("r", 9))
    store.checkpoints.touch("p", contents[0].manifest)
    store.checkpoints.touch("p", "blake3:unknown")

    def walk(run: str) -> list[str]:
        found: list[CheckpointRecord] = []
        after = None
        while page := store.checkpoints.page(CheckpointQuery("p", run, after, 2)):
            found += page
            step = min((s.step for s in page[-1].steps if s.run == run), default=0)
            after = (step if run else page[-1].use_us, page[-1].manifest)
        assert all(record.own_size_bytes == 10 for record in found)
        return [record.manifest for record in found]

    assert walk("") == [contents[i].manifest for i in (0, 1, 3, 2)]
    assert walk("r") == [contents[i].manifest for i in (1, 3, 0, 2)]
    assert walk("q") == []


def test_checkpoints_are_removed_with_what_nothing_else_needs(store: Store) -> None:
    one, two = checkpoint(store, "one", "shared", "own", "file"), checkpoint(store, "two", "shared")
    for content in (one, two):
        store.checkpoints.register("p", content, CheckpointStepRecord("r", 1))
    store.checkpoints.record_import("p", "file:///one", "stamp", one.manifest)
    dataset = {"files": [{"path": "f", "digest": digest_bytes(b"file"), "size_bytes": 10}]}
    store.registry.put("p", "datasets", "d", "1" * 64, dataset)
    evaluation, _ = store.evaluations.create(new(checkpoint=one.manifest, content=one))
    with pytest.raises(ServiceError, match="CHECKPOINT_IN_USE"):
        store.checkpoints.remove("p", one.manifest)
    store.evaluations.cancel("p", evaluation.id, "")
    assert store.checkpoints.pin("p", one.manifest, True).pinned  # type: ignore[union-attr]
    with pytest.raises(ServiceError, match="CHECKPOINT_IN_USE"):
        store.checkpoints.remove("p", one.manifest)
    store.checkpoints.pin("p", one.manifest, False)

    removed = store.checkpoints.remove("p", one.manifest)

    assert removed is not None
    assert {blob.digest for blob in removed} == {one.manifest, digest_bytes(b"own")}
    assert store.blobs.sizes("p", list(one.blobs)).keys() == {digest_bytes(b"shared"), digest_bytes(b"file")}
    assert store.blobs.usage("p") == 30
    assert store.checkpoints.get("p", one.manifest) is None
    assert store.checkpoints.remove("p", one.manifest) is None
    assert store.checkpoints.pin("p", one.manifest, True) is None
    assert store.checkpoints.find_import("p", "file:///one", "stamp") == ""
    assert [record.manifest for record in store.checkpoints.page(CheckpointQuery("p", "r"))] == [two.manifest]


def test_imports_are_known_by_their_newest_state(store: Store) -> None:
    store.checkpoints.record_import("p", "file:///a", "old", "blake3:1")
    store.checkpoints.record_import("p", "file:///a", "new", "blake3:2")
    found = [store.checkpoints.find_import(*key) for key in (("p", "file:///a", "old"), ("p", "file:///a", "new"))]
    assert found == ["", "blake3:2"]
    assert store.checkpoints.find_import("q", "file:///a", "new") == ""


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    store = SqlStore(tmp_path / "x.db", lambda uid: None)
    record = started(store)
    store.close()
    store = SqlStore(tmp_path / "x.db", lambda uid: None)
    assert store.evaluations.get("p", record.id) == record
    assert len(log(store, record)) == 2
    store.close()


def digest(number: int) -> str:
    return f"blake3:{number:064x}"


def packed(store: Store, pack: str, *numbers: int) -> int:
    """Puts blobs of ten bytes into a pack."""
    blobs = [PackedBlob(digest(number), 10 * place, 10) for place, number in enumerate(numbers)]
    return store.blobs.add_pack(PackRecord("p", pack, DIGEST, 10 * len(blobs)), blobs)


def test_packs(store: Store) -> None:
    index = store.blobs
    assert packed(store, "a", 1, 2, 3) == 3
    assert packed(store, "b", 3, 4) == 1
    assert packed(store, "c", 1, 4) == 0
    found = index.find("p", [digest(1), digest(3), digest(4), digest(5)])
    assert {key: (blob.pack, blob.offset, blob.size_bytes) for key, blob in found.items()} == {
        digest(1): ("a", 0, 10),
        digest(3): ("a", 20, 10),
        digest(4): ("b", 10, 10),
    }
    assert [(pack.id, pack.size_bytes, pack.live_bytes) for pack in index.packs("p")] == [("a", 30, 30), ("b", 20, 10)]
    assert index.packs("q") == []
    assert set(index.find_packs("p", ["a", "c", "x"])) == {"a"}
    assert [blob.digest for blob in index.packed("p", "a")] == [digest(1), digest(2), digest(3)]
    assert index.usage("p") == 40
    index.remove("p", [digest(1), digest(2), digest(9)])
    assert index.usage("p") == 20
    assert index.replace_pack("a", PackRecord("p", "d", DIGEST, 10), [PackedBlob(digest(3), 0, 10)]) == 1
    assert index.replace_pack("a", PackRecord("p", "e", DIGEST, 10), [PackedBlob(digest(3), 0, 10)]) == 0
    index.forget_packs("p", ["a", "b", "d"])
    assert {pack.id for pack in index.packs("p")} == {"b", "d"}
    assert index.find("p", [digest(3)])[digest(3)].pack == "d"
    assert [blob.digest for blob in index.below("p", "blake3:0000")] == [digest(3), digest(4)]
    assert index.below("p", "blake3:1") == index.below("q", "blake3:0") == []
    assert index.projects() == ["p"]


def test_collection(store: Store) -> None:
    index = store.blobs
    packed(store, "a", *range(1, 9))
    for number in range(1, 9):
        assert index.touch("p", [digest(number), digest(99)], 100 - number) == {digest(number)}
    store.evaluations.create(new(checkpoint=digest(8)))
    content = CheckpointContent(digest(7), {digest(7): 10, digest(6): 10}, 1)
    store.checkpoints.register("p", content)
    store.checkpoints.pin("p", digest(7), True)
    store.registry.put("p", "datasets", "d", "1" * 64, {"files": [{"digest": digest(5)}]})
    # Oldest first: 8, 7, 6 and 5 are needed, and 1 was used too late.
    first = index.collect("p", 15, 99, (0, ""), 500)
    assert [blob.digest for blob in first.removed] == [digest(4), digest(3)]
    assert index.usage("p") == 60
    again = index.collect("p", 1_000, 99, (0, ""), 3)
    assert (list(again.removed), again.after) == ([], (94, digest(6)))
    assert again.after is not None
    last = index.collect("p", 1_000, 99, again.after, 500)
    assert [blob.digest for blob in last.removed] == [digest(2)]
    assert last.after is not None
    assert index.collect("p", 1_000, 99, last.after, 500).after is None
    assert index.collect("q", 1_000, 99, (0, ""), 500).removed == []
    assert set(index.sizes("p", [digest(number) for number in range(9)])) == {digest(n) for n in (1, 5, 6, 7, 8)}


def test_bytes_of_open_uploads(store: Store) -> None:
    index = store.blobs
    first = index.open_upload("p", digest(1), 10, 1_000)
    index.open_upload("p", digest(2), 20, 2_000)
    index.open_upload("q", digest(1), 40, 2_000)
    assert index.declared_bytes("p", 0, "") == 30
    assert index.declared_bytes("p", 0, first.id) == 20
    assert index.declared_bytes("p", 1_000, "") == 20
    index.complete(first.id)
    assert index.declared_bytes("p", 0, "") == 20
    assert index.usage("p") == 10
    index.complete(first.id)
    assert index.usage("p") == 10
