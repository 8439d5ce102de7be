"""The process itself: ready, heartbeats, progress, cancel, shutdown, death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.models import checkpoint_manifest, write_tiny_llama
from tests.support.runner_driver import Runner, language_modeling

from mindeval.service.build import evaluator_build


@pytest.fixture(scope="module")
def data(work: Path) -> Path:
    path = work / "data.txt"
    path.write_text("a line of some text\n" * 150, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(work: Path) -> Path:
    return write_tiny_llama(work / "model")


def test_ready_says_what_it_is(runner: Runner) -> None:
    assert runner.ready["type"] == "ready"
    assert runner.ready["pid"] == runner.process.pid
    assert runner.ready["device"] == "cpu:0"
    assert runner.ready["build"] == evaluator_build()


def test_heartbeats_come_every_two_seconds_also_when_idle(runner: Runner) -> None:
    times = []
    while len(times) < 3:
        if runner.receive()["type"] == "heartbeat":
            times.append(time.monotonic())
    assert 1.0 < times[2] - times[1] < 4.0


def test_progress_is_bounded_and_knows_its_total(runner: Runner, work: Path, model: Path, data: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    began = time.monotonic()
    frames = runner.finish(runner.start(manifest, blobs, [language_modeling(data, settings={"batch_tokens": 32})]))
    seconds = time.monotonic() - began
    progress = [frame for frame in frames if frame["type"] == "progress"]
    assert progress
    assert len(progress) <= 4 * seconds + 1
    scoring = [frame for frame in progress if frame["phase"] == "scoring"]
    assert scoring
    assert {(frame["unit"], frame["total"]) for frame in scoring} == {("tokens", 150 * 19)}
    done = [frame["done"] for frame in scoring]
    assert done == sorted(done)


def test_cancel_stops_at_the_next_batch(runner: Runner, work: Path, model: Path, data: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    task = language_modeling(data, settings={"batch_tokens": 1})
    job = runner.start(manifest, blobs, [task, task])
    while runner.receive()["type"] != "progress":
        pass
    runner.send({"type": "cancel", "job": job})
    frames = runner.finish(job)
    assert frames[-1] == {"type": "cancelled", "job": job}
    assert not [frame for frame in frames if frame["type"] == "task_result"]
    assert runner.evaluate(manifest, blobs, [language_modeling(data)])[-1]["type"] == "finished"


def test_cancel_before_the_start(runner: Runner, work: Path, model: Path, data: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    runner.send({"type": "cancel", "job": "job-early"})
    frames = runner.evaluate(manifest, blobs, [language_modeling(data)], {"job": "job-early"})
    assert frames == [{"type": "cancelled", "job": "job-early"}]


def test_an_unknown_message_is_ignored(runner: Runner, work: Path, model: Path, data: Path) -> None:
    runner.send({"type": "dance"})
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    assert runner.evaluate(manifest, blobs, [language_modeling(data)])[-1]["type"] == "finished"


def test_kill_is_seen_as_end_of_file(work: Path) -> None:
    with Runner(work / "killed") as runner:
        os.kill(runner.process.pid, signal.SIGKILL)
        with pytest.raises((EOFError, ConnectionResetError)):
            runner.finish("a job that never ends")


def test_shutdown_ends_after_the_job_and_a_lost_service_ends_too(work: Path, model: Path, data: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    with Runner(work / "asked") as runner:
        job = runner.start(manifest, blobs, [language_modeling(data)])
        runner.send({"type": "shutdown"})
        assert runner.finish(job)[-1]["type"] == "finished"
        assert runner.process.wait(timeout=20) == 0
    with Runner(work / "lost") as runner:
        runner.start(manifest, blobs, [language_modeling(data, settings={"batch_tokens": 1})])
        runner.connection.close()
        assert runner.process.wait(timeout=20) == 0


def test_a_device_that_is_not_there(work: Path) -> None:
    for device in ("ascend:0", "gpu:0"):
        with pytest.raises(EOFError, match="device"):
            Runner(work / "absent", device=device)


def test_the_runner_loads_neither_grpc_nor_our_protobuf_modules() -> None:
    code = (
        "import sys, mindeval.service.runtime.worker, mindeval.service.runtime.job\n"
        "import mindeval.service.runtime.models.graph, mindeval.service.runtime.models.llama.adapter\n"
        "sys.exit(any(name == 'grpc' or name.startswith('mindeval.v1') for name in sys.modules))"
    )
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
