from __future__ import annotations

import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tests.service.stubs import TIMEOUT_S, Client, manifest_of, reason_of, refused, states
from tests.support.service import ServiceProcess, wait_until

from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest, TensorEntry
from mindeval.v1 import evaluation_pb2 as pb
from mindeval.v1 import registry_pb2


def test_values_of_all_tasks_with_counts_and_signature(client: Client) -> None:
    name = client.create(
        client.spec(client.suite("s", "ok", "ok"), run=f"{client.parent}/runs/r", step=7, epoch=0.5)
    ).evaluation.name
    evaluation = client.finished(name)
    assert evaluation.state == pb.EVALUATION_STATE_SUCCEEDED
    assert [task.task for task in evaluation.tasks] == ["task0", "task1"]
    for task in evaluation.tasks:
        assert (task.expected_count, task.scored_count, task.failed_count) == (2, 2, 0)
        results = {result.metric: result for result in task.results}
        assert results["loss"].value == 1.0
        assert results["loss"].count == 5
        assert results["loss"].higher_is_better is False
        assert results["loss"].HasField("higher_is_better")
        assert results["ppl"].value == pytest.approx(math.e)
        assert math.isnan(results["top5_accuracy"].value)
        assert results["top5_accuracy"].flags
        assert results["loss"].signature
        assert not task.HasField("error")
    assert evaluation.statistics.device == "cpu:0"
    assert evaluation.statistics.compiled_graphs == 1
    assert evaluation.resolved.evaluator_build == "faulty+0"
    assert evaluation.resolved.suite_version.startswith(f"{client.parent}/suites/s/versions/")
    assert len(evaluation.resolved.dataset_versions) == 2
    assert evaluation.attempt == 1
    assert evaluation.spec.step == 7
    assert evaluation.create_time.ToMicroseconds() <= evaluation.start_time.ToMicroseconds()
    assert evaluation.start_time.ToMicroseconds() <= evaluation.end_time.ToMicroseconds()


def test_log_is_gapless_and_tells_what_happened(client: Client) -> None:
    name = client.create(client.spec(client.suite("s", "ok", "ok"))).evaluation.name
    events = client.log(name)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert states(events) == ["QUEUED", "RUNNING", "SUCCEEDED"]
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds.count("task_finished") == 2
    assert events[0].state_changed.previous_state == pb.EVALUATION_STATE_UNSPECIFIED
    final = events[-1].state_changed.evaluation
    assert final == client.get(name)
    assert final.last_sequence == events[-1].sequence
    assert {event.evaluation for event in events} == {name}


def test_only_the_metrics_asked_for(client: Client) -> None:
    client.dataset("d")
    task = registry_pb2.Task(name="t", type="language_modeling", dataset="d", metrics=["byte_ppl", "loss"])
    task.settings.update({"max_length": 64})
    request = registry_pb2.PutSuiteRequest(parent=client.parent, suite_id="s", suite=registry_pb2.Suite(tasks=[task]))
    client.registry.PutSuite(request, timeout=TIMEOUT_S)
    evaluation = client.run(f"{client.parent}/suites/s")
    assert [result.metric for result in evaluation.tasks[0].results] == ["byte_ppl", "loss"]


def test_evaluate_checkpoint_streams_from_the_first_event(client: Client) -> None:
    request = pb.EvaluateCheckpointRequest(
        parent=client.parent, request_id=str(uuid.uuid4()), spec=client.spec(client.suite("s"))
    )
    events = [response.event for response in client.evaluations.EvaluateCheckpoint(request, timeout=TIMEOUT_S)]
    events = [event for event in events if event.WhichOneof("payload") != "bookmark"]
    assert states(events) == ["QUEUED", "RUNNING", "SUCCEEDED"]
    # The same call again attaches to what is there, and so does the other way to create.
    again = [response.event for response in client.evaluations.EvaluateCheckpoint(request, timeout=TIMEOUT_S)]
    assert again == events
    other = client.create(request.spec, request.request_id)
    assert (other.evaluation.name, other.created) == (events[0].evaluation, False)


def test_a_caller_that_goes_away_does_not_cancel(client: Client, tmp_path: Path) -> None:
    request = pb.EvaluateCheckpointRequest(
        parent=client.parent, spec=client.spec(client.suite("s", f"gate {tmp_path / 'open'}"))
    )
    stream = client.evaluations.EvaluateCheckpoint(request, timeout=TIMEOUT_S)
    name = next(iter(stream)).event.evaluation
    stream.cancel()
    client.reach(name, pb.EVALUATION_STATE_RUNNING)
    (tmp_path / "open").touch()
    assert client.finished(name).state == pb.EVALUATION_STATE_SUCCEEDED


def test_same_request_id_gives_the_same_evaluation(client: Client) -> None:
    suite, request_id = client.suite("s"), str(uuid.uuid4())
    spec = client.spec(suite)
    first = client.create(spec, request_id)
    client.suite("s", "ok", "ok")  # The name stands for another version now.
    second = client.create(spec, request_id)
    assert (first.created, second.created) == (True, False)
    assert first.evaluation.name == second.evaluation.name
    other = client.spec(suite, step=1)
    with refused("REQUEST_ID_REUSED") as refusals:
        client.create(other, request_id)
    assert refusals[0].code == grpc.StatusCode.INVALID_ARGUMENT


def test_conflict_policies(client: Client) -> None:
    spec = client.spec(client.suite("s"), run=f"{client.parent}/runs/r", step=3, parameters={"a": "b"})
    first = client.create(spec)
    assert first.created
    again = client.create(spec, conflict_policy=pb.CONFLICT_POLICY_USE_EXISTING)
    assert (again.created, again.evaluation.name) == (False, first.evaluation.name)
    with refused("EVALUATION_EXISTS") as refusals:
        client.create(spec, conflict_policy=pb.CONFLICT_POLICY_FAIL)
    assert refusals[0].code == grpc.StatusCode.ALREADY_EXISTS
    assert refusals[0].metadata["evaluation"] == first.evaluation.name
    rerun = client.create(spec, conflict_policy=pb.CONFLICT_POLICY_RERUN)
    assert rerun.created
    for change in ({"step": 4}, {"parameters": {"a": "c"}}, {"run": f"{client.parent}/runs/q"}):
        fields = {"run": f"{client.parent}/runs/r", "step": 3, "parameters": {"a": "b"}, **change}
        assert client.create(client.spec(spec.suite, **fields)).created, change
    # Other weights are another evaluation, also for the run and step of before: the results are not theirs.
    fields = {"run": f"{client.parent}/runs/r", "step": 3, "parameters": {"a": "b"}}
    assert client.create(client.spec(spec.suite, client.checkpoint("other weights"), **fields)).created
    # Without a run there is no natural key.
    assert client.create(client.spec(spec.suite)).created
    assert client.create(client.spec(spec.suite)).created


def test_use_existing_makes_a_new_one_after_a_failure(client: Client) -> None:
    spec = client.spec(client.suite("s", "fail OUT_OF_MEMORY"), run=f"{client.parent}/runs/r", step=3)
    first = client.create(spec)
    assert client.finished(first.evaluation.name).state == pb.EVALUATION_STATE_FAILED
    assert client.create(spec).created


def test_twenty_identical_submissions_make_one_evaluation(client: Client) -> None:
    spec = client.spec(client.suite("s"), run=f"{client.parent}/runs/r", step=1)
    request_id = str(uuid.uuid4())
    with ThreadPoolExecutor(20) as pool:
        same_id = list(pool.map(lambda _: client.create(spec, request_id), range(20)))
        same_key = list(pool.map(lambda _: client.create(spec), range(20)))
    responses = same_id + same_key
    assert len({response.evaluation.name for response in responses}) == 1
    assert sum(response.created for response in responses) == 1


def test_validate_only_creates_nothing(client: Client) -> None:
    spec = client.spec(client.suite("s"), run=f"{client.parent}/runs/r", step=1)
    response = client.create(spec, validate_only=True)
    assert not response.created
    assert response.evaluation.resolved.suite_version
    assert response.evaluation.name == ""
    listed = client.evaluations.ListEvaluations(pb.ListEvaluationsRequest(parent=client.parent), timeout=TIMEOUT_S)
    assert not listed.evaluations


def test_missing_blobs_are_listed_within_the_size_of_a_trailer(client: Client) -> None:
    tensors = [TensorEntry(f"t{i}", "U8", (1,), 1, digest_bytes(bytes([i, 1]))) for i in range(200)]
    manifest = client.put_blob(Manifest.of(tensors).to_bytes())
    with refused("BLOB_MISSING") as refusals:
        client.create(client.spec(client.suite("s"), manifest))
    refusal = refusals[0]
    assert refusal.code == grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.metadata["missing_count"] == "200"
    listed = {violation.subject for violation in refusal.details[1].violations}
    assert listed
    assert listed <= {tensor.digest for tensor in tensors}
    assert refusal.size_bytes < 6 << 10
    with refused("BLOB_MISSING") as refusals:
        client.create(client.spec(f"{client.parent}/suites/s", digest_bytes(b"no manifest")))
    assert refusals[0].metadata["missing_count"] == "1"


def test_malformed_manifest_is_refused(client: Client) -> None:
    with refused("MANIFEST_INVALID"):
        client.create(client.spec(client.suite("s"), client.put_blob(b"not a manifest")))
    # A tensor that claims another size than its blob has.
    manifest = manifest_of("weights").to_bytes().replace(b'"shape":[7],"size":7', b'"shape":[8],"size":8')
    client.checkpoint()
    with refused("MANIFEST_INVALID"):
        client.create(client.spec(f"{client.parent}/suites/s", client.put_blob(manifest)))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("spec.suite", {"suite": "suites/s"}),
        ("spec.suite", {"suite": "projects/other/suites/s"}),
        ("spec.checkpoint.manifest", {"checkpoint": pb.CheckpointSource(manifest="md5:1")}),
        ("spec.checkpoint", {"checkpoint": pb.CheckpointSource()}),
        ("spec.run", {"run": "r"}),
        ("spec.run", {"run": "projects/other/runs/r"}),
        ("spec.step", {"step": -1}),
        ("spec.epoch", {"epoch": math.nan}),
        ("spec.epoch", {"epoch": -0.5}),
        ("spec.timeout", {"timeout": {"seconds": 0}}),
        ("spec.timeout", {"timeout": {"seconds": 10**9}}),
        ("spec.parameters", {"parameters": {str(i): "" for i in range(33)}}),
        ("spec.parameters", {"parameters": {"": "x"}}),
        ("spec.parameters['k']", {"parameters": {"k": "v" * 257}}),
    ],
)
def test_bad_fields_are_named(client: Client, field: str, fields: dict[str, object]) -> None:
    good = {"suite": f"{client.parent}/suites/s", "checkpoint": pb.CheckpointSource(manifest="blake3:" + "0" * 64)}
    with refused("INVALID_FIELD") as refusals:
        client.create(pb.EvaluationSpec(**{**good, **fields}))  # type: ignore[arg-type]
    assert refusals[0].code == grpc.StatusCode.INVALID_ARGUMENT
    assert refusals[0].metadata["field"] == field
    assert refusals[0].details[1].field_violations[0].field == field


def test_bad_envelopes(client: Client) -> None:
    spec = client.spec(client.suite("s"))
    with refused("INVALID_FIELD"):
        client.create(spec, "not-a-uuid")
    with refused("INVALID_FIELD"):
        client.create(spec, conflict_policy=99)
    with refused("INVALID_FIELD"):
        client.evaluations.CreateEvaluation(pb.CreateEvaluationRequest(parent="p", spec=spec), timeout=TIMEOUT_S)
    with refused("SUITE_NOT_FOUND") as refusals:
        client.create(client.spec(f"{client.parent}/suites/other"))
    assert refusals[0].code == grpc.StatusCode.NOT_FOUND
    for call in (client.get, client.cancel, lambda name: list(client.watch(name))):
        with refused("EVALUATION_NOT_FOUND"):
            call(f"{client.parent}/evaluations/none")
        with refused("INVALID_FIELD"):
            call("none")


def test_cancel_queued_and_running(client: Client, tmp_path: Path) -> None:
    suite = client.suite("s", f"gate {tmp_path / 'open'}")
    running = client.create(client.spec(suite)).evaluation
    queued = client.create(client.spec(suite)).evaluation
    client.reach(running.name, pb.EVALUATION_STATE_RUNNING)
    assert client.cancel(queued.name).state == pb.EVALUATION_STATE_CANCELLED
    assert client.cancel(running.name).state == pb.EVALUATION_STATE_CANCELLING
    evaluation = client.finished(running.name)
    assert evaluation.state == pb.EVALUATION_STATE_CANCELLED
    assert reason_of(evaluation.error) == "CANCELLED_BY_USER"
    assert states(client.log(running.name)) == ["QUEUED", "RUNNING", "CANCELLING", "CANCELLED"]
    assert states(client.log(queued.name)) == ["QUEUED", "CANCELLED"]
    assert client.cancel(running.name).state == pb.EVALUATION_STATE_CANCELLED
    # The runner let go: it takes the next one.
    assert client.run(client.suite("s2")).state == pb.EVALUATION_STATE_SUCCEEDED


def test_cancel_checks_etag_and_end(client: Client, tmp_path: Path) -> None:
    suite = client.suite("s", f"gate {tmp_path / 'open'}")
    evaluation = client.create(client.spec(suite)).evaluation
    client.reach(evaluation.name, pb.EVALUATION_STATE_RUNNING)
    with refused("ETAG_MISMATCH") as refusals:
        client.cancel(evaluation.name, evaluation.etag)
    assert refusals[0].code == grpc.StatusCode.ABORTED
    etag = client.get(evaluation.name).etag
    assert refusals[0].metadata["etag"] == etag
    # Progress alone does not change it.
    for response in client.watch(evaluation.name):
        if response.event.sequence >= 4:
            break
    assert client.get(evaluation.name).etag == etag
    (tmp_path / "open").touch()
    client.finished(evaluation.name)
    with refused("EVALUATION_TERMINAL") as refusals:
        client.cancel(evaluation.name)
    assert refusals[0].code == grpc.StatusCode.FAILED_PRECONDITION


def test_a_runner_that_ignores_cancellation_is_replaced(client: Client, service: ServiceProcess) -> None:
    name = client.create(client.spec(client.suite("s", "deaf"))).evaluation.name
    client.working(name)
    (before,) = service.runner_pids()
    client.cancel(name)
    assert client.finished(name).state == pb.EVALUATION_STATE_CANCELLED
    wait_until(lambda: service.runner_pids() not in ([before], []), what="a new runner")
    assert client.run(client.suite("s2")).state == pb.EVALUATION_STATE_SUCCEEDED


def test_timeout(client: Client, tmp_path: Path) -> None:
    spec = client.spec(client.suite("s", f"gate {tmp_path / 'never'}"), timeout={"nanos": 300_000_000})
    evaluation = client.finished(client.create(spec).evaluation.name)
    assert evaluation.state == pb.EVALUATION_STATE_FAILED
    assert reason_of(evaluation.error) == "EVALUATION_TIMEOUT"


def test_queue_is_first_in_first_out(client: Client, tmp_path: Path) -> None:
    first = client.create(client.spec(client.suite("gate", f"gate {tmp_path / 'open'}"))).evaluation.name
    suite = client.suite("s")
    names = [client.create(client.spec(suite, step=step)).evaluation.name for step in (5, 3, 4, 1)]
    (tmp_path / "open").touch()
    client.finished(first)
    starts = [client.finished(name).start_time.ToMicroseconds() for name in names]
    assert starts == sorted(starts)


def test_progress_is_logged_at_most_once_a_second(client: Client, tmp_path: Path) -> None:
    name = client.create(client.spec(client.suite("s", f"gate {tmp_path / 'open'}"))).evaluation.name
    times = []
    for response in client.watch(name):
        if response.event.WhichOneof("payload") == "progress":
            assert response.event.progress.unit == "documents"
            times.append(response.event.time.ToMicroseconds())
            if len(times) == 3:
                break
    (tmp_path / "open").touch()
    client.finished(name)
    assert all(after - before >= 950_000 for before, after in zip(times, times[1:]))


def test_watch_gets_bookmarks_when_nothing_happens(client: Client, tmp_path: Path) -> None:
    blocker = client.create(client.spec(client.suite("gate", f"gate {tmp_path / 'open'}"))).evaluation.name
    name = client.create(client.spec(client.suite("s"))).evaluation.name
    seen = []
    for response in client.watch(name):
        seen.append((response.event.WhichOneof("payload"), response.event.sequence))
        if len(seen) == 3:
            break
    assert seen == [("state_changed", 1), ("bookmark", 1), ("bookmark", 1)]
    (tmp_path / "open").touch()
    client.finished(blocker)
    client.finished(name)


def test_watch_resumes_anywhere(client: Client) -> None:
    name = client.create(client.spec(client.suite("s", "ok", "ok"))).evaluation.name
    whole = client.log(name)
    for after in range(len(whole)):
        assert [response.event for response in client.watch(name, after)] == whole[after:]
    end = whole[-1].sequence
    assert [response.event.WhichOneof("payload") for response in client.watch(name, end)] == ["bookmark"]
    with refused("SEQUENCE_AHEAD") as refusals:
        list(client.watch(name, end + 1))
    assert refusals[0].code == grpc.StatusCode.OUT_OF_RANGE
    assert refusals[0].metadata["last_sequence"] == str(end)
    with refused("INVALID_FIELD"):
        list(client.watch(name, -1))
