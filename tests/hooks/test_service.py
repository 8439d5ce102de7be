"""Training jobs against the real service, through the real agent."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.service import ServiceProcess, wait_until

JOB = Path(__file__).with_name("service_job.py")


class RunningJob:
    """A training process, and what its event log says so far."""

    def __init__(self, folder: Path, endpoint: str, **options) -> None:
        self.folder = folder
        self.log = folder / "output.log"
        command = [sys.executable, str(JOB), endpoint, str(folder), json.dumps(options)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def events(self, kind: str) -> list[dict]:
        path = self.folder / "logs" / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == kind]

    def wait_for(self, kind: str, count: int = 1, timeout_s: float = 60.0) -> list[dict]:
        def enough():
            assert self.process.poll() in (None, 0), self.log.read_text()
            found = self.events(kind)
            return found if len(found) >= count else None

        return wait_until(enough, timeout_s, f"{count} {kind} events")

    def result(self, timeout_s: float = 120.0) -> dict:
        try:
            assert self.process.wait(timeout_s) == 0, self.log.read_text()[-3000:]
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        result = json.loads((self.folder / "result.json").read_text())
        assert result["error"] is None
        return result


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service on a port that it gets again when it is started anew."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ServiceProcess(listen=f"127.0.0.1:{port}") as running:
        folder = tmp_path_factory.mktemp("registered")
        running.valid = folder / "valid.npy"
        # Other tokens than the training set's, which are random too: whatever is learnt makes these worse.
        np.save(running.valid, np.random.default_rng(99).integers(0, 32, (64, 8)).astype(np.int32))
        suite = folder / "s.yaml"
        suite.write_text("tasks:\n  - {name: val, type: language_modeling, dataset: d, metrics: [loss, token_ppl]}\n")
        mindeval(running, "dataset", "put", "d", str(running.valid), "--format", "tokens_npy", "--language", "en")
        mindeval(running, "suite", "put", str(suite), "--name", "s")
        yield running


def mindeval(service, *arguments):
    command = [sys.executable, "-m", "mindeval.client.cli", "--endpoint", service.endpoint, "--quiet", *arguments]
    subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL)


def states(result):
    return [record["state"] for record in result["summary"]["evaluations"]]


def test_overfitting_is_stopped_and_the_best_weights_come_back(service, tmp_path):
    job = RunningJob(tmp_path, service.endpoint, run="stop", epochs=20, valid=str(service.valid))
    result = job.result()
    summary = result["summary"]
    assert summary["stopped_early"]
    assert result["steps"] < 200
    assert summary["decision"]["stopped_at_step"] == summary["stopped_at_step"] == result["steps"]
    assert summary["restored_step"] == summary["best_step"] == result["final_is_step"]
    assert result["in_loop_loss"] == pytest.approx(summary["best_value"], abs=1e-4)
    assert all(result["pushed_equal"].values())
    assert set(states(result)) == {"SUCCEEDED"}
    assert result["staging_left"] == []
    metrics = summary["evaluations"][0]["metrics"]
    assert metrics["val/loss"]["count"] == 64 * 7
    assert metrics["val/loss"]["higher_is_better"] is False


@pytest.mark.slow
def test_an_agent_that_is_killed_loses_nothing(service, tmp_path):
    job = RunningJob(tmp_path, service.endpoint, run="agent", epochs=8, patience=999)
    job.wait_for("push", 3)
    os.kill(job.events("agent_started")[0]["pid"], signal.SIGKILL)
    result = job.result()
    assert result["steps"] == 80
    assert len(job.events("agent_started")) == 2
    assert sum("the agent ended" in text for text in result["said"]) == 1
    assert set(states(result)) == {"SUCCEEDED"}
    assert result["summary"]["restored_step"] == result["summary"]["best_step"] == result["final_is_step"]


@pytest.mark.slow
def test_a_service_that_is_killed_and_comes_back_is_waited_for(service, tmp_path):
    job = RunningJob(tmp_path, service.endpoint, run="service", epochs=20, patience=999)
    job.wait_for("result", 2)
    service.kill()
    pushed = len(job.events("push"))
    job.wait_for("status")
    job.wait_for("skip", 2)
    service.restart()
    job.wait_for("push", pushed + 3)
    result = job.result()
    assert result["steps"] == 200
    assert result["summary"]["skipped"] >= 2
    assert [event["code"] for event in job.events("status")] == ["SERVICE_UNAVAILABLE", "SERVICE_BACK"]
    assert set(states(result)) == {"SUCCEEDED"}
    assert result["summary"]["restored_step"] == result["final_is_step"]


@pytest.mark.slow
def test_without_a_service_training_ends_as_if_alone(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
        job = RunningJob(tmp_path, nobody, epochs=4, final_wait_s=2.0)
        result = job.result()
    assert result["steps"] == 40
    assert result["final_is_step"] == 40
    assert len([text for text in result["said"] if "training goes on" in text]) == 1
    assert set(states(result)) == {"LOST"}
    assert result["summary"]["not_restored"] == "no evaluation came back from the service"


@pytest.mark.slow
def test_an_unknown_suite_is_said_once_and_training_goes_on(service, tmp_path, monkeypatch):
    script = JOB.read_text().replace('suite="s"', 'suite="nothing"')
    changed = tmp_path / "service_job.py"
    changed.write_text(script.replace("str(Path(__file__).parent)", repr(str(JOB.parent))))
    monkeypatch.setattr(sys.modules[__name__], "JOB", changed)
    result = RunningJob(tmp_path, service.endpoint, epochs=3).result()
    assert result["steps"] == 30
    said = [text for text in result["said"] if "SUITE_NOT_FOUND" in text]
    assert len(said) == 1
