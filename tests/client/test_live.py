"""Client and agent against the real service, killed and started again at the worst moments."""

from __future__ import annotations

import contextlib
import filecmp
import importlib.util
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.client.agent import AgentProcess
from tests.client.checkpoints import tensors, write_folder
from tests.client.conftest import put_suite
from tests.support.models import write_tiny_llama
from tests.support.service import ServiceProcess, wait_until

from mindeval.client import Client, Conflict, InvalidRequest, NotFound, PreconditionFailed, PushProgress, ServiceError

MIB = 1 << 20


def large(seed: int = 0, mib: int = 48) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "large": rng.integers(0, 255, mib * MIB, dtype=np.uint8),
        "small": rng.integers(0, 255, MIB, dtype=np.uint8),
    }


def test_push_resumes_after_the_service_was_killed(fixed_service: ServiceProcess, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", large())
    starter = threading.Thread(target=fixed_service.start)
    killed_at = 0

    def kill_halfway(progress: PushProgress) -> None:
        nonlocal killed_at
        if not killed_at and progress.bytes_sent > progress.bytes_to_send // 2:
            killed_at = progress.bytes_sent
            fixed_service.kill()
            starter.start()

    with Client(fixed_service.endpoint) as client:
        pushed = client.push_checkpoint(folder, progress=kill_halfway)
        starter.join()
        assert killed_at
        again = client.push_checkpoint(folder)
        assert (again.digest, again.bytes_sent) == (pushed.digest, 0)
        fetched = client.fetch_checkpoint(pushed.digest, tmp_path / "back.safetensors")
        for name, value in load_file(fetched.weights).items():
            assert value.tobytes() == large()[name].tobytes()


def test_second_push_sends_what_changed(service: ServiceProcess, tmp_path: Path) -> None:
    values = tensors()
    with Client(service.endpoint, project="second-push") as client:
        first = client.push_checkpoint(write_folder(tmp_path / "c", values))
        assert first.bytes_sent == first.bytes_total
        values["model.layers.0.weight"] = values["model.layers.0.weight"] + 1
        second = client.push_checkpoint(write_folder(tmp_path / "c", values))
        manifest_bytes = second.bytes_sent - values["model.layers.0.weight"].nbytes
        assert second.blobs_sent == 2
        assert 0 < manifest_bytes < 3000
        fetched = client.fetch_checkpoint(second.digest, str(tmp_path / "back") + os.sep)
        assert client.push_checkpoint(tmp_path / "back").bytes_sent == 0
        assert filecmp.cmp(fetched.files[0], tmp_path / "c" / "config.json", shallow=False)


def test_evaluation_from_end_to_end(service: ServiceProcess, tmp_path: Path) -> None:
    with Client(service.endpoint, project="whole") as client:
        put_suite(client, tmp_path, "ok")
        kinds: list[str] = []
        result = client.evaluate(
            write_tiny_llama(tmp_path / "llama"),
            "s",
            run="r",
            step=5,
            epoch=0.5,
            parameters={"k": "v"},
            on_event=lambda event: kinds.append(
                event.state_change.state if event.state_change else "task" if event.task else "progress"
            ),
        ).raise_for_state()
        assert [kind for kind in kinds if kind != "progress"] == ["QUEUED", "RUNNING", "task", "SUCCEEDED"]
        loss = result.metrics["val/loss"]
        assert (loss.value, loss.count, loss.higher_is_better) == (1.0, 5, False)
        assert (result.run, result.step, result.epoch, result.parameters) == ("r", 5, 0.5, {"k": "v"})
        assert result.tasks[0].scored_count == result.tasks[0].expected_count == 2
        assert result.statistics is not None
        assert result.run_s is not None
        assert result.run_s >= 0
        assert client.get_evaluation(result.name) == result
        again = client.evaluate(result.checkpoint, "s", run="r", step=5, epoch=0.5, parameters={"k": "v"})
        assert again.name == result.name
        rerun = client.evaluate(
            result.checkpoint, "s", run="r", step=5, epoch=0.5, parameters={"k": "v"}, conflict_policy="rerun"
        )
        assert rerun.name != result.name
        with pytest.raises(Conflict, match="EVALUATION_EXISTS"):
            client.create_evaluation(
                result.checkpoint, "s", run="r", step=5, epoch=0.5, parameters={"k": "v"}, conflict_policy="fail"
            )
        assert [item.name for item in client.list_evaluations("run = r")] == [rerun.name, result.name]
        assert [item.name for item in client.list_evaluations(limit=1)] == [rerun.name]
        with pytest.raises(PreconditionFailed, match="EVALUATION_TERMINAL"):
            client.cancel_evaluation(result.name)
        events = list(client.watch(result.name, after_sequence=1))
        assert [event.sequence for event in events] == list(range(2, result.last_sequence + 1))
        client.report_training_metrics("r", [{"step": step, "loss": 1.0} for step in range(2500)])


def test_refusals_have_reasons(service: ServiceProcess, tmp_path: Path) -> None:
    with Client(service.endpoint, project="refusals") as client:
        put_suite(client, tmp_path, "ok")
        with pytest.raises(NotFound) as caught:
            client.evaluate("blake3:" + "0" * 64, "unknown")
        assert caught.value.reason == "SUITE_NOT_FOUND"
        with pytest.raises(ServiceError) as missing:
            client.create_evaluation("blake3:" + "0" * 64, "s")
        assert missing.value.reason == "BLOB_MISSING"
        assert missing.value.missing_digests
        task = {"name": "val", "type": "language_modeling", "dataset": "s-data", "metrics": ["lossy"]}
        with pytest.raises(InvalidRequest) as unknown:
            client.put_suite("bad", {"tasks": [task]})
        assert unknown.value.reason == "UNKNOWN_METRIC"
        with pytest.raises(InvalidRequest, match="FILTER_INVALID"):
            list(client.list_evaluations("state ~ X"))
        assert client.capabilities().task_types["language_modeling"]


def test_failed_evaluation(service: ServiceProcess, tmp_path: Path) -> None:
    with Client(service.endpoint, project="failed") as client:
        put_suite(client, tmp_path, "fail NON_FINITE_WEIGHT tensor=w")
        result = client.evaluate(write_tiny_llama(tmp_path / "llama"), "s")
        assert result.state == "FAILED"
        assert result.error is not None
        assert (result.error.reason, result.error.metadata.get("tensor")) == ("NON_FINITE_WEIGHT", "w")


def test_watch_goes_on_over_a_kill(fixed_service: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Client(fixed_service.endpoint) as client:
        put_suite(client, tmp_path, f"gate {gate}")
        pushed = client.push_checkpoint(write_tiny_llama(tmp_path / "llama"))
        created = client.create_evaluation(pushed.digest, "s")
        killed = False
        sequences = []
        for event in client.watch(created.name):
            sequences.append(event.sequence)
            if not killed and event.progress is not None:
                killed = True
                fixed_service.kill()
                fixed_service.start()
                gate.touch()
        assert killed
        assert sequences == list(range(1, len(sequences) + 1))
        result = client.get_evaluation(created.name)
        assert (result.state, result.attempt) == ("SUCCEEDED", 2)


def test_agent_outlives_the_service(fixed_service: ServiceProcess, tmp_path: Path) -> None:
    """Absent at the start, killed while a checkpoint travels, killed while it is evaluated."""
    gate = tmp_path / "gate"
    with Client(fixed_service.endpoint) as client:
        put_suite(client, tmp_path, f"gate {gate}")
    fixed_service.stop()
    weights = tmp_path / "snapshot.bin"
    save_file(large(1, 192), weights)
    files = {"config.json": str(write_tiny_llama(tmp_path / "llama") / "config.json")}
    with AgentProcess(tmp_path / "log", endpoint=fixed_service.endpoint, files=files) as agent:
        agent.send("push", id=1, step=1, epoch=0.1, weights=str(weights))
        agent.send("train_metrics", points=[{"step": 1, "loss": 2.0}])
        agent.wait_for("status", code="SERVICE_UNAVAILABLE")
        fixed_service.start()
        agent.wait_for("connected")
        wait_until(lambda: _largest_upload(fixed_service) > MIB, what="the upload")
        fixed_service.kill()
        assert not agent.kinds("released"), "the push was quicker than the kill"
        fixed_service.start()
        released = agent.wait_for("released", id=1)
        assert released["bytes_sent"] > 192 * MIB
        agent.wait_for("submitted", id=1)
        save_file({**large(1, 192), "small": np.zeros(MIB, np.uint8)}, weights)
        agent.send("push", id=2, step=2, epoch=0.2, weights=str(weights))
        assert agent.wait_for("released", id=2)["bytes_sent"] < MIB + 4000
        fixed_service.kill()
        fixed_service.start()
        gate.touch()
        for number in (1, 2):
            result = agent.wait_for("result", id=number)
            assert (result["state"], result["step"]) == ("SUCCEEDED", number)
            assert result["metrics"]["val/loss"]["value"] == 1.0
        agent.send("fetch", id=3, evaluation=result["evaluation"], path=str(tmp_path / "best.safetensors"))
        assert agent.wait_for("fetched", id=3)["error"] is None
        fetched = load_file(tmp_path / "best.safetensors")
        assert fetched["large"].tobytes() == large(1, 192)["large"].tobytes()
        agent.send("stop", deadline_s=10)
        assert agent.wait_for_end() == 0
        codes = [message["code"] for message in agent.kinds("status")]
        assert codes == ["SERVICE_UNAVAILABLE", "SERVICE_BACK"] * (len(codes) // 2)
        assert len(codes) >= 4


def _largest_upload(service: ServiceProcess) -> int:
    largest = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(service.data_dir / "uploads"):
            largest = max(largest, entry.stat().st_size)
    return largest


@pytest.mark.slow
def test_real_runner(tmp_path: Path) -> None:
    if importlib.util.find_spec("mindspore") is None:
        pytest.skip("MindSpore is not installed here")
    text = tmp_path / "valid.txt"
    text.write_text("hello world\n多语言文本\n", encoding="utf-8")
    with ServiceProcess() as service, Client(service.endpoint) as client:
        client.put_dataset("docs", [text], format="text_lines", language="mixed")
        task = {"name": "val", "type": "language_modeling", "dataset": "docs", "max_length": 64}
        client.put_suite("valid", {"tasks": [task]})
        result = client.evaluate(write_tiny_llama(tmp_path / "llama"), "valid").raise_for_state()
        assert result.metrics["val/loss"].value > 0
        assert result.metrics["val/loss"].standard_error is not None
        second = client.evaluate(write_tiny_llama(tmp_path / "llama2", seed=1), "valid").raise_for_state()
        assert second.statistics is not None
        assert second.statistics.warm
        damaged = write_tiny_llama(tmp_path / "llama3")
        values = load_file(damaged / "model.safetensors")
        del values["model.norm.weight"]
        save_file(values, damaged / "model.safetensors")
        failed = client.evaluate(damaged, "valid")
        assert failed.error is not None
        assert failed.error.reason == "TENSOR_MISSING"
