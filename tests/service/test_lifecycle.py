"""Restarts, kills and drains: what was acknowledged is there, and what was running is finished by another attempt."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from tests.service.conftest import QUICK
from tests.service.stubs import TIMEOUT_S, Client, reason_of, refusal_of, refused, states
from tests.support.service import FAULTY_RUNNER, ServiceProcess, wait_until

from mindeval.formats.digest import digest_bytes
from mindeval.v1 import blob_pb2
from mindeval.v1 import evaluation_pb2 as pb


@pytest.fixture
def own_service() -> Iterator[ServiceProcess]:
    with ServiceProcess(runner_command=FAULTY_RUNNER, **QUICK) as process:
        yield process


def test_killed_while_running_is_finished_by_a_second_attempt(own_service: ServiceProcess, tmp_path: Path) -> None:
    with own_service.channel() as channel:
        client = Client(channel, "p")
        suite = client.suite("s", "ok", f"gate {tmp_path / 'open'}")
        running = client.create(client.spec(suite)).evaluation.name
        queued = client.create(client.spec(suite)).evaluation.name
        watcher = watch_until(client, running, lambda event: event.WhichOneof("payload") == "task_finished")
        own_service.kill()
    own_service.start()
    with own_service.channel() as channel:
        client = Client(channel, "p")
        (tmp_path / "open").touch()
        evaluation = client.finished(running)
        assert evaluation.state == pb.EVALUATION_STATE_SUCCEEDED
        assert evaluation.attempt == 2
        assert [task.task for task in evaluation.tasks] == ["task0", "task1"]
        log = client.log(running)
        assert states(log) == ["QUEUED", "RUNNING", "QUEUED", "RUNNING", "SUCCEEDED"]
        assert [event.sequence for event in log] == list(range(1, len(log) + 1))
        # The task that was committed before the kill was not done again.
        assert [event.WhichOneof("payload") for event in log].count("task_finished") == 2
        # What a watcher saw before the kill, and what it gets afterwards, is the log.
        rest = [response.event for response in client.watch(running, watcher[-1].sequence)]
        assert watcher + [event for event in rest if event.WhichOneof("payload") != "bookmark"] == log
        assert client.finished(queued).attempt == 1


def test_killed_while_cancelling_is_cancelled(own_service: ServiceProcess) -> None:
    with own_service.channel() as channel:
        client = Client(channel, "p")
        name = client.create(client.spec(client.suite("s", "deaf"))).evaluation.name
        client.working(name)
        assert client.cancel(name).state == pb.EVALUATION_STATE_CANCELLING
        own_service.kill()
    own_service.start()
    with own_service.channel() as channel:
        evaluation = Client(channel, "p").finished(name)
        assert evaluation.state == pb.EVALUATION_STATE_CANCELLED
        assert reason_of(evaluation.error) == "CANCELLED_BY_USER"


def test_registry_and_request_ids_survive_a_kill(own_service: ServiceProcess) -> None:
    with own_service.channel() as channel:
        client = Client(channel, "p")
        spec = client.spec(client.suite("s"))
        first = client.create(spec, "5b9d1f6e-7a55-4d7e-9d7c-1f2b3c4d5e6f").evaluation
        own_service.kill()
    own_service.start()
    with own_service.channel() as channel:
        again = Client(channel, "p").create(spec, "5b9d1f6e-7a55-4d7e-9d7c-1f2b3c4d5e6f")
        assert (again.evaluation.name, again.created) == (first.name, False)


def test_watch_concatenated_over_cuts_and_restarts_is_the_log(own_service: ServiceProcess, tmp_path: Path) -> None:
    with own_service.channel() as channel:
        client = Client(channel, "p")
        gates = [tmp_path / str(number) for number in range(3)]
        name = client.create(client.spec(client.suite("s", *(f"gate {gate}" for gate in gates)))).evaluation.name
        client.working(name)
    seen: list[pb.EvaluationEvent] = []
    for gate in gates:
        gate.touch()
        for cut in range(2):
            with own_service.channel() as channel:
                after = seen[-1].sequence if seen else 0
                for response in Client(channel, "p").watch(name, after):
                    if response.event.WhichOneof("payload") == "bookmark":
                        break
                    seen.append(response.event)
                    if cut == 0:
                        break
        own_service.restart()
    with own_service.channel() as channel:
        client = Client(channel, "p")
        client.finished(name)
        rest = [response.event for response in client.watch(name, seen[-1].sequence)]
        seen += [event for event in rest if event.WhichOneof("payload") != "bookmark"]
        assert seen == client.log(name)
        assert states(seen)[-1] == "SUCCEEDED"


def test_drain_under_load(own_service: ServiceProcess, tmp_path: Path) -> None:
    with own_service.channel() as channel, ThreadPoolExecutor(8) as pool:
        client = Client(channel, "p")
        suite = client.suite("s", f"gate {tmp_path / 'open'}")
        names = [client.create(client.spec(suite, step=step)).evaluation.name for step in range(4)]
        client.working(names[0])
        streams = [client.watch(name) for name in names]
        watched = [pool.submit(lambda s=stream: [response.event for response in s]) for stream in streams]
        uploading = start_upload(own_service, client)
        own_service_exit = pool.submit(own_service.stop)
        for future in watched:
            # The end of the stream is not an error, and not the end of the evaluation either.
            events = future.result(TIMEOUT_S)
            assert events[-1].WhichOneof("payload") == "bookmark"
            assert events[-1].sequence == events[-2].sequence
        with pytest.raises(grpc.RpcError) as caught:
            uploading.result(TIMEOUT_S)
        assert refusal_of(caught.value).reason == "SERVICE_DRAINING"
        assert own_service_exit.result(TIMEOUT_S) == 0
    assert not (own_service.data_dir / "endpoint").exists()
    own_service.start()
    with own_service.channel() as channel:
        client = Client(channel, "p")
        (tmp_path / "open").touch()
        for name in names:
            assert client.finished(name).state == pb.EVALUATION_STATE_SUCCEEDED
        assert client.get(names[0]).attempt == 2
        again = client.create_upload(digest_bytes(b"12345"), 5)
        assert again.committed_offset == 3


def test_new_work_is_refused_while_running_work_finishes(tmp_path: Path) -> None:
    settings = {**QUICK, "drain_grace_s": 30.0}
    with ServiceProcess(runner_command=FAULTY_RUNNER, **settings) as service, service.channel() as channel:
        client = Client(channel, "p")
        suite = client.suite("s", f"gate {tmp_path / 'open'}")
        spec = client.spec(suite)
        name = client.create(spec).evaluation.name
        client.working(name)
        os.kill(service.pid, signal.SIGTERM)
        request = health_pb2.HealthCheckRequest()
        wait_until(lambda: client.health.Check(request).status == health_pb2.HealthCheckResponse.NOT_SERVING)
        for call in (
            lambda: client.create(spec),
            lambda: client.create_upload(digest_bytes(b"new"), 3),
            lambda: list(client.watch(name)),
            lambda: client.dataset("d", text="new"),
        ):
            with refused("SERVICE_DRAINING") as refusals:
                call()
            assert refusals[0].code == grpc.StatusCode.UNAVAILABLE
            assert any(hasattr(detail, "retry_delay") for detail in refusals[0].details)
        assert client.get(name).state == pb.EVALUATION_STATE_RUNNING
        (tmp_path / "open").touch()
        assert service.wait() == 0
        service.start()
        with service.channel() as channel:
            evaluation = Client(channel, "p").get(name)
            assert (evaluation.state, evaluation.attempt) == (pb.EVALUATION_STATE_SUCCEEDED, 1)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    settings = {**QUICK, "drain_grace_s": 60.0}
    with ServiceProcess(runner_command=FAULTY_RUNNER, **settings) as service, service.channel() as channel:
        client = Client(channel, "p")
        name = client.create(client.spec(client.suite("s", f"gate {tmp_path / 'never'}"))).evaluation.name
        client.working(name)
        os.kill(service.pid, signal.SIGINT)
        wait_until(lambda: "draining" in service.log())
        os.kill(service.pid, signal.SIGINT)
        assert service.wait(10) == -signal.SIGINT


def watch_until(client: Client, name: str, condition: object) -> list[pb.EvaluationEvent]:
    seen = []
    for response in client.watch(name):
        if response.event.WhichOneof("payload") == "bookmark":
            continue
        seen.append(response.event)
        if condition(response.event):  # type: ignore[operator]
            return seen
    raise AssertionError("the evaluation ended")


def start_upload(service: ServiceProcess, client: Client) -> grpc.Future:
    """Begins an upload that waits for ever after three bytes."""
    upload = client.create_upload(digest_bytes(b"12345"), 5)
    never = threading.Event()

    def chunks() -> Iterator[blob_pb2.WriteUploadRequest]:
        yield blob_pb2.WriteUploadRequest(name=upload.name, data=b"123")
        never.wait(TIMEOUT_S)

    call = client.blobs.WriteUpload.future(chunks(), timeout=TIMEOUT_S)
    call.add_done_callback(lambda _: never.set())

    file = service.data_dir / "uploads" / upload.name.rpartition("/")[2]
    wait_until(lambda: file.exists() and file.stat().st_size == 3, what="the first bytes")
    return call
