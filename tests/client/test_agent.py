"""The push agent as a process, against a service that misbehaves on command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.client.agent import AgentProcess
from tests.client.fake import EVALUATION, FakeService, Fault, state_event

from mindeval.formats.manifest import Manifest

# A port of the discard service: nothing listens there.
NOWHERE = "127.0.0.1:9"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot.bin"
    save_file({"w": np.arange(1 << 16, dtype=np.float32), "b": np.ones(3, np.float32)}, path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return {"config.json": str(tmp_path / "config.json")}


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path / "log", endpoint=NOWHERE) as agent:
        yield agent


async def in_thread(function: Any, *arguments: Any, **fields: Any) -> Any:
    """The fake lives in the test's event loop, so the trainer's side must not block it."""
    return await asyncio.to_thread(function, *arguments, **fields)


async def test_push_is_evaluated_and_released(
    fake: FakeService, tmp_path: Path, weights: Path, files: dict[str, str]
) -> None:
    done = state_event(2, "SUCCEEDED")
    outcome = done.state_changed.evaluation.tasks.add(task="val", expected_count=2, scored_count=2)
    outcome.results.add(metric="loss", value=2.5, standard_error=0.1, count=100, higher_is_better=False)
    outcome.results.add(metric="ppl", value=float("inf"), count=100, flags=["overflow"])
    fake.events.extend([state_event(1, "QUEUED"), done])
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint, files=files) as agent:
        agent.send("push", id=1, step=10, epoch=0.5, weights=str(weights), parameters={"lr": "1e-3"})
        released = await in_thread(agent.wait_for, "released", id=1)
        result = await in_thread(agent.wait_for, "result", id=1)
        assert agent.wait_for("ready")["version"]
        assert agent.wait_for("connected")["service_version"] == "9.9.9"
        assert agent.wait_for("submitted", id=1)["evaluation"] == EVALUATION
        assert released["bytes_sent"] == released["bytes_total"] > 1 << 18
        assert (result["step"], result["state"], result["error"]) == (10, "SUCCEEDED", None)
        assert result["metrics"]["val/loss"] == {
            "value": 2.5,
            "standard_error": 0.1,
            "count": 100,
            "higher_is_better": False,
        }
        assert result["metrics"]["val/ppl"]["value"] == float("inf")
        assert result["metrics"]["val/ppl"]["standard_error"] is None
        spec = fake.requests["EvaluateCheckpoint"][0].spec
        assert (spec.run, spec.step, spec.epoch, dict(spec.parameters)) == (
            "projects/default/runs/r",
            10,
            0.5,
            {"lr": "1e-3"},
        )
        manifest = Manifest.from_bytes(fake.blobs[spec.checkpoint.manifest])
        assert [file.path for file in manifest.files] == ["config.json"]

        # The files were read once; the weights are read anew.
        await in_thread(os.unlink, files["config.json"])
        save_file({"w": np.arange(1 << 16, dtype=np.float32), "b": np.zeros(3, np.float32)}, weights)
        agent.send("push", id=2, step=20, epoch=1, weights=str(weights), parameters={})
        released = await in_thread(agent.wait_for, "released", id=2)
        assert released["bytes_sent"] < 2000
        await in_thread(agent.wait_for, "result", id=2)
        agent.send("stop", deadline_s=5)
        assert await in_thread(agent.wait_for_end) == 0
        assert agent.messages[-1]["type"] == "stopped"


async def test_service_absent_then_there_then_restarted(tmp_path: Path, weights: Path, files: dict[str, str]) -> None:
    fake = FakeService()
    await fake.start()
    endpoint = fake.endpoint
    await fake.stop()
    try:
        with AgentProcess(tmp_path / "log", endpoint=endpoint, files=files) as agent:
            agent.send("push", id=1, step=1, epoch=0, weights=str(weights))
            agent.send("train_metrics", points=[{"step": 1, "loss": 2.0}])
            await in_thread(agent.wait_for, "status", code="SERVICE_UNAVAILABLE")
            fake.events.append(state_event(1, "RUNNING"))
            await fake.start(endpoint)
            await in_thread(agent.wait_for, "submitted", id=1)
            assert agent.wait_for("status", code="SERVICE_BACK")
            await fake.stop()
            second = asyncio.ensure_future(in_thread(_wait_for_count, agent, "SERVICE_UNAVAILABLE", 2))
            await second
            fake.events.append(state_event(2, "SUCCEEDED"))
            await fake.start(endpoint)
            result = await in_thread(agent.wait_for, "result", id=1)
            assert result["state"] == "SUCCEEDED"
            agent.send("stop", deadline_s=5)
            await in_thread(agent.wait_for_end)
            codes = [message["code"] for message in agent.kinds("status")]
            assert codes == ["SERVICE_UNAVAILABLE", "SERVICE_BACK"] * 2
            assert [point.step for point in fake.points] == [1]
    finally:
        await fake.stop()


def _wait_for_count(agent: AgentProcess, code: str, count: int) -> None:
    while sum(message.get("code") == code for message in agent.messages) < count:
        agent.messages.append(agent._lines.get(timeout=30))


async def test_failed_evaluation_carries_its_error(
    fake: FakeService, tmp_path: Path, weights: Path, files: dict[str, str]
) -> None:
    from google.protobuf import any_pb2
    from google.rpc import error_details_pb2

    failed = state_event(2, "FAILED")
    status = failed.state_changed.evaluation.error
    status.message = "weight w holds NaN"
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason="NON_FINITE_WEIGHT", domain="mindeval", metadata={"tensor": "w"}))
    status.details.append(packed)
    fake.events.extend([state_event(1, "QUEUED"), failed])
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint, files=files) as agent:
        agent.send("push", id=7, step=1, epoch=0, weights=str(weights))
        result = await in_thread(agent.wait_for, "result", id=7)
    assert result["state"] == "FAILED"
    assert result["error"] == {
        "reason": "NON_FINITE_WEIGHT",
        "message": "weight w holds NaN",
        "metadata": {"tensor": "w"},
    }


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "CHECKPOINT_UNREADABLE"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "CHECKPOINT_TRUNCATED"),
        (lambda path: path.write_bytes(b"\x08" + bytes(7) + b"not json" + bytes(100)), "CHECKPOINT_UNREADABLE"),
    ],
)
def test_unusable_weights_fail_their_push_alone(nowhere: AgentProcess, weights: Path, damage: Any, reason: str) -> None:
    damage(weights)
    nowhere.send("push", id=1, step=4, epoch=0, weights=str(weights))
    result = nowhere.wait_for("result", id=1)
    assert result["error"]["reason"] == reason
    assert result["error"]["metadata"]["file"] == str(weights)
    assert [message["type"] for message in nowhere.messages if message.get("id") == 1] == ["released", "result"]


async def test_refused_evaluation_is_a_failed_result(
    fake: FakeService, tmp_path: Path, weights: Path, files: dict[str, str]
) -> None:
    refusal = Fault(grpc.StatusCode.NOT_FOUND, "SUITE_NOT_FOUND", {"suite": "s"})
    fake.fail_next("GetSuite", refusal)
    fake.fail_next("EvaluateCheckpoint", refusal)
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint, files=files) as agent:
        warning = await in_thread(agent.wait_for, "status", code="SUITE_NOT_FOUND")
        agent.send("push", id=1, step=4, epoch=0, weights=str(weights))
        result = await in_thread(agent.wait_for, "result", id=1)
    assert warning["level"] == "error"
    assert (result["state"], result["error"]["reason"]) == ("FAILED", "SUITE_NOT_FOUND")


def test_malformed_lines_are_reported_and_survived(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "log") as agent:
        lines = [
            b"not json",
            b"[1]",
            b'{"no": "type"}',
            b'{"type": "push", "id": 1}',
            b'{"type": "start", "protocol": 99}',
            b'{"type": "start", "protocol": 1, "endpoint": "no port", "suite": "s"}',
            b"\xff\xfe",
            b'{"type": "unheard-of"}',
        ]
        agent.send_raw(b"\n\n" + b"\n".join(lines) + b"\n")
        agent.send_raw(b"x" * (17 << 20) + b"\n")
        agent.send("start", protocol=1, endpoint=NOWHERE, suite="s", run="r")
        for bad in ({"id": "1"}, {"id": 1, "step": 1, "epoch": "x", "weights": "w"}, {"id": 1, "step": 1}):
            agent.send("push", **bad)
        agent.send("train_metrics", points=[{"step": 1, "los": 2.0}])
        agent.send("train_metrics", points="x")
        agent.send("cancel", id=99)
        agent.send("stop", deadline_s=0)
        assert agent.wait_for_end() == 0
        errors = [message for message in agent.kinds("status") if message["level"] == "error"]
        assert len(errors) == len(lines) + 1 + 3 + 2
        assert all(error["code"] == "INVALID_FIELD" for error in errors)
        assert agent.messages[-1]["type"] == "stopped"


def test_waiting_pushes_are_dropped_at_stop(nowhere: AgentProcess, weights: Path) -> None:
    for number in (1, 2, 3):
        nowhere.send("push", id=number, step=number, epoch=0, weights=str(weights))
    nowhere.wait_for("status", code="SERVICE_UNAVAILABLE")
    nowhere.send("stop", deadline_s=0.2)
    assert nowhere.wait_for_end() == 0
    assert {message["id"] for message in nowhere.kinds("released")} == {1, 2, 3}
    assert {message["state"] for message in nowhere.kinds("result")} == {"CANCELLED"}


def test_cancel_before_it_is_sent(nowhere: AgentProcess, weights: Path) -> None:
    nowhere.send("push", id=1, step=1, epoch=0, weights=str(weights))
    nowhere.send("push", id=2, step=2, epoch=0, weights=str(weights))
    nowhere.send("cancel", id=2)
    assert nowhere.wait_for("result", id=2)["state"] == "CANCELLED"
    nowhere.send("cancel", id=1)
    assert nowhere.wait_for("result", id=1)["error"]["reason"] == "CANCELLED_BY_USER"


async def test_cancel_of_a_running_evaluation_goes_to_the_service(
    fake: FakeService, tmp_path: Path, weights: Path, files: dict[str, str]
) -> None:
    fake.events.append(state_event(1, "RUNNING"))
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint, files=files) as agent:
        agent.send("push", id=1, step=1, epoch=0, weights=str(weights))
        await in_thread(agent.wait_for, "submitted", id=1)
        agent.send("cancel", id=1)
        result = await in_thread(agent.wait_for, "result", id=1)
    assert result["state"] == "CANCELLED"
    assert fake.requests["CancelEvaluation"][0].name == EVALUATION


async def test_end_of_input_finishes_the_push_at_hand(
    fake: FakeService, tmp_path: Path, weights: Path, files: dict[str, str]
) -> None:
    fake.events.append(state_event(1, "RUNNING"))
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint, files=files) as agent:
        agent.send("train_metrics", points=[{"step": 5, "loss": float("nan"), "time": 1.7e9}])
        agent.send("push", id=1, step=1, epoch=0, weights=str(weights))
        agent.close_input()
        assert await in_thread(agent.wait_for_end) == 0
        assert agent.kinds("submitted")
        assert agent.messages[-1]["type"] == "stopped"
    assert fake.calls["EvaluateCheckpoint"] == 1
    assert len(fake.points) == 1


def test_signals(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "log", endpoint=NOWHERE) as agent:
        agent.wait_for("ready")
        agent.wait_for("status", code="SERVICE_UNAVAILABLE")
        agent.process.send_signal(signal.SIGINT)
        agent.send_raw(b"still there?\n")
        agent.wait_for("status", code="INVALID_FIELD")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.wait_for_end() == 0


async def test_fetch(fake: FakeService, tmp_path: Path, weights: Path, files: dict[str, str]) -> None:
    fake.events.extend([state_event(1, "QUEUED"), state_event(2, "SUCCEEDED")])
    target = tmp_path / "best.safetensors"
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint, files=files) as agent:
        agent.send("push", id=1, step=1, epoch=0, weights=str(weights))
        result = await in_thread(agent.wait_for, "result", id=1)
        digest = fake.requests["EvaluateCheckpoint"][0].spec.checkpoint.manifest
        fake.events[-1].state_changed.evaluation.resolved.checkpoint = digest
        agent.send("fetch", id=8, evaluation=result["evaluation"], path=str(target))
        fetched = await in_thread(agent.wait_for, "fetched", id=8)
        assert fetched["error"] is None
        original, copy = load_file(weights), load_file(target)
        assert {name: value.tobytes() for name, value in original.items()} == {
            name: value.tobytes() for name, value in copy.items()
        }
        fake.fail_next("GetEvaluation", Fault(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"))
        agent.send("fetch", id=9, evaluation="not a name", path=str(target))
        assert (await in_thread(agent.wait_for, "fetched", id=9))["error"]["reason"] == "INVALID_FIELD"
        agent.send("fetch", id=10, evaluation=result["evaluation"], path="/proc/nope/x.safetensors")
        assert (await in_thread(agent.wait_for, "fetched", id=10))["error"]["reason"] == "CHECKPOINT_UNWRITABLE"


async def test_training_metrics_travel_in_batches(fake: FakeService, tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint) as agent:
        for begin in range(0, 11_000, 100):
            agent.send("train_metrics", points=[{"step": step, "loss": 1.0} for step in range(begin, begin + 100)])
        agent.send("stop", deadline_s=20)
        await in_thread(agent.wait_for_end)
    assert fake.points[-1].step == 10_999
    assert fake.calls["ReportTrainingMetrics"] < 60


async def test_refused_training_metrics_are_said_once(fake: FakeService, tmp_path: Path) -> None:
    refusal = Fault(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
    fake.fail_next("ReportTrainingMetrics", refusal, refusal)
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint) as agent:
        for step in range(1, 1002, 500):
            agent.send("train_metrics", points=[{"step": step + i} for i in range(500)])
        agent.send("stop", deadline_s=20)
        await in_thread(agent.wait_for_end)
        assert [message["code"] for message in agent.kinds("status")] == ["PERMISSION_DENIED"]
    assert len(fake.points) == 500


def test_messages_are_one_json_object_a_line() -> None:
    from mindeval.client.agent.messages import parse

    kind, fields = parse(json.dumps({"type": "push", "id": 1, "text": "\u2028多\n"}).encode())
    assert (kind, fields) == ("push", {"id": 1, "text": "\u2028多\n"})


async def test_watch_takes_up_what_an_earlier_agent_submitted(fake: FakeService, tmp_path: Path) -> None:
    fake.events.extend([state_event(1, "QUEUED"), state_event(2, "SUCCEEDED")])
    with AgentProcess(tmp_path / "log", endpoint=fake.endpoint) as agent:
        agent.send("watch", id=3, step=30, evaluation=EVALUATION)
        result = await in_thread(agent.wait_for, "result", id=3)
        assert (result["step"], result["state"], result["evaluation"]) == (30, "SUCCEEDED", EVALUATION)
        fake.fail_next("WatchEvaluation", Fault(grpc.StatusCode.NOT_FOUND, "EVALUATION_NOT_FOUND"))
        agent.send("watch", id=4, step=40, evaluation=EVALUATION)
        assert (await in_thread(agent.wait_for, "result", id=4))["error"]["reason"] == "EVALUATION_NOT_FOUND"
    assert not agent.kinds("released")
