"""What the service makes of runners that fail: a clear reason, a new runner, and the next job goes through."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.service.conftest import QUICK
from tests.service.stubs import TIMEOUT_S, Client, manifest_of, reason_of, states
from tests.support.service import FAULTY_RUNNER, ServiceProcess, wait_until

from mindeval.v1 import capability_pb2
from mindeval.v1 import evaluation_pb2 as pb


@pytest.mark.parametrize(
    ("mode", "reason", "words"),
    [
        ("crash", "RUNNER_LOST", ["exit code 7", "the runner is about to crash"]),
        ("kill", "RUNNER_LOST", ["SIGKILL"]),
        ("hang", "RUNNER_HUNG", ["silent for 2 s"]),
        ("garbage", "RUNNER_LOST", ["broke the protocol"]),
        ("nonsense", "RUNNER_LOST", ["broke the protocol", "task"]),
        ("badstate", "RUNNER_ERROR", ["metric state"]),
        ("silent", "RUNNER_ERROR", ["no result"]),
        ("taskfail DATASET_EMPTY", "DATASET_EMPTY", ["this task was told to fail"]),
        ("taskfail NEVER_HEARD_OF", "RUNNER_ERROR", ["this task was told to fail"]),
        ("fail OUT_OF_MEMORY", "OUT_OF_MEMORY", ["this job was told to fail"]),
    ],
)
def test_failures_have_a_reason_and_the_next_job_succeeds(
    client: Client, mode: str, reason: str, words: list[str]
) -> None:
    evaluation = client.run(client.suite("bad", mode))
    assert evaluation.state == pb.EVALUATION_STATE_FAILED
    assert reason_of(evaluation.error) == reason
    for word in words:
        assert word in evaluation.error.message
    assert evaluation.end_time.ToMicroseconds() > 0
    assert client.run(client.suite("good")).state == pb.EVALUATION_STATE_SUCCEEDED


def test_good_tasks_keep_their_results(client: Client) -> None:
    evaluation = client.run(client.suite("s", "ok", "taskfail DATASET_INVALID", "ok", "taskfail DATASET_EMPTY"))
    assert evaluation.state == pb.EVALUATION_STATE_FAILED
    assert reason_of(evaluation.error) == "TASKS_FAILED"
    assert "task1" in evaluation.error.message
    assert "task3" in evaluation.error.message
    assert [bool(task.results) for task in evaluation.tasks] == [True, False, True, False]
    assert [task.HasField("error") for task in evaluation.tasks] == [False, True, False, True]
    one = client.run(client.suite("one", "ok", "taskfail DATASET_INVALID"))
    assert reason_of(one.error) == "DATASET_INVALID"


def test_partial_results_are_marked(client: Client) -> None:
    evaluation = client.run(client.suite("s", "partial"))
    assert evaluation.state == pb.EVALUATION_STATE_SUCCEEDED
    (task,) = evaluation.tasks
    assert (task.expected_count, task.scored_count, task.failed_count) == (2, 1, 1)
    assert all("incomplete" in result.flags for result in task.results)


def test_stale_reports_change_nothing(client: Client, service: ServiceProcess) -> None:
    evaluation = client.run(client.suite("s", "stale"))
    assert evaluation.state == pb.EVALUATION_STATE_SUCCEEDED
    assert evaluation.tasks[0].expected_count == 2
    assert "a stale report was ignored" in service.log()


def test_a_corrupt_blob_is_dropped_so_that_it_is_sent_again(client: Client, service: ServiceProcess) -> None:
    manifest = manifest_of("some weights")
    digest = manifest.tensors[0].digest
    suite = client.suite("s", f"fail CHECKPOINT_CORRUPT digest={digest}")
    checkpoint = client.checkpoint("some weights")
    # The runner is wrong: the blob is fine, and stays.
    evaluation = client.finished(client.create(client.spec(suite, checkpoint)).evaluation.name)
    assert reason_of(evaluation.error) == "CHECKPOINT_CORRUPT"
    assert client.missing(digest) == []
    digits = digest.split(":")[1]
    path = service.data_dir / "blobs" / client.project / digits[:2] / digits
    path.write_bytes(b"other bytes!")
    evaluation = client.finished(client.create(client.spec(suite, checkpoint)).evaluation.name)
    assert reason_of(evaluation.error) == "CHECKPOINT_CORRUPT"
    assert client.missing(digest) == [digest]
    client.checkpoint("some weights")
    assert client.missing(digest) == []
    assert client.read_blob(digest) == b"some weights"


def test_an_idle_runner_that_dies_is_replaced_without_harm(client: Client, service: ServiceProcess) -> None:
    assert client.run(client.suite("s")).state == pb.EVALUATION_STATE_SUCCEEDED
    (before,) = service.runner_pids()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: before not in service.runner_pids() and service.runner_pids(), what="a new runner")
    assert client.run(client.suite("s")).state == pb.EVALUATION_STATE_SUCCEEDED


def test_runners_end_with_the_service() -> None:
    with ServiceProcess(runner_command=FAULTY_RUNNER, devices="cpu:2") as service, service.channel() as channel:
        wait_for_devices(Client(channel, "p"), capability_pb2.DEVICE_STATE_IDLE)
        pids = service.runner_pids()
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGSTOP)
        service.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), what="the end of the runners")


def test_runners_that_cannot_start_fail_what_is_queued() -> None:
    env = {"FAULTY_RUNNER_START": "exit"}
    with ServiceProcess(runner_command=FAULTY_RUNNER, env=env, **QUICK) as service, service.channel() as channel:
        client = Client(channel, "p")
        evaluation = client.run(client.suite("s"))
        assert reason_of(evaluation.error) == "RUNNER_START_FAILED"
        assert "told to fail at the start" in evaluation.error.message
        assert states(client.log(evaluation.name)) == ["QUEUED", "FAILED"]
        wait_for_devices(client, capability_pb2.DEVICE_STATE_LOST)


def test_a_runner_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    command = (*FAULTY_RUNNER[:1], "-c", "import time; time.sleep(60)")
    with (
        ServiceProcess(runner_command=command, runner_start_timeout_s=0.3, **QUICK) as service,
        service.channel() as channel,
    ):
        client = Client(channel, "p")
        evaluation = client.run(client.suite("s"))
        assert reason_of(evaluation.error) == "RUNNER_START_FAILED"
        assert "not ready within 0.3 s" in evaluation.error.message


def test_two_devices_work_at_the_same_time(tmp_path: Path) -> None:
    with (
        ServiceProcess(runner_command=FAULTY_RUNNER, devices="cpu:2", **QUICK) as service,
        service.channel() as channel,
    ):
        client = Client(channel, "p")
        suite = client.suite("s", f"gate {tmp_path / 'open'}")
        names = [client.create(client.spec(suite)).evaluation.name for _ in range(2)]
        for name in names:
            client.working(name)
        wait_for_devices(client, capability_pb2.DEVICE_STATE_BUSY)
        (tmp_path / "open").touch()
        devices = {client.finished(name).statistics.device for name in names}
        assert devices == {"cpu:0", "cpu:1"}


def wait_for_devices(client: Client, state: int) -> None:
    request = capability_pb2.GetCapabilitiesRequest()

    def all_there() -> bool:
        devices = client.capabilities.GetCapabilities(request, timeout=TIMEOUT_S).devices
        return all(device.state == state for device in devices)

    condition: Callable[[], bool] = all_there
    wait_until(condition, what=f"state {state} of all devices")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
