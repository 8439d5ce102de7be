"""`mindeval push` and `mindeval checkpoints` against the real service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.client.conftest import put_suite
from tests.client.test_cli import Command, InProcess, assert_error
from tests.support.containers import (
    encode_ckpt,
    weights,
    write_ckpt,
    write_config,
    write_hugging_face,
    write_ranks,
    write_shards,
)
from tests.support.service import FAULTY_RUNNER, ServiceProcess

from mindeval.client import Client


@pytest.fixture
def mindeval(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    return InProcess(Command(service.endpoint, tmp_path), capsys, monkeypatch)


def client_of(command: Command) -> Client:
    return Client(command.env["MINDEVAL_ENDPOINT"], project=command.env["MINDEVAL_PROJECT"])


def test_one_checkpoint_from_push_to_delete(mindeval: Command) -> None:
    values = weights()
    write_hugging_face(mindeval.folder / "a", values)
    values["model.norm"] = values["model.norm"] * 3
    del values["model.scale"]
    write_hugging_face(mindeval.folder / "b", values)

    first = mindeval("push", "a", "--run", "r", "--step", "1", "--json").document
    assert first["bytes_sent"] == first["bytes_total"]
    done = mindeval("push", "b", "--run", "r", "--step", "2")
    assert done.code == 0
    assert "r@2" in done.out
    assert "were there already" in done.out

    listed = mindeval("checkpoints", "list", "--json").document["checkpoints"]
    assert {(item["steps"][0]["step"], item["state"]) for item in listed} == {(1, "READY"), (2, "READY")}
    assert "r@1" in mindeval("checkpoints", "list", "--run", "r").out
    digits = first["digest"].split(":")[1]
    for name in (first["digest"], digits, digits[:10], f"blake3:{digits[:8]}", "r@1", first["name"]):
        assert mindeval("checkpoints", "show", name, "--json").document["digest"] == first["digest"], name

    diff = mindeval("checkpoints", "diff", "r@1", "r@2", "--json").document
    changes = {item["name"]: item for item in diff["differences"]}
    assert changes["model.norm"]["relative_change"] == pytest.approx(2.0)
    assert changes["model.norm"]["largest_difference"] == pytest.approx(2.0)
    assert changes["model.scale"]["change"] == "REMOVED"
    assert diff["different_count"] == 2
    text = mindeval("checkpoints", "diff", "r@1", "r@2").out
    assert "2 tensors differ, 4 are the same" in text
    assert text.index("model.scale") < text.index("model.norm"), "what has no number comes first"
    assert "-" in mindeval("checkpoints", "diff", "r@1", "r@2", "--names-only").out

    assert mindeval("checkpoints", "pin", "r@1", "--json").document["pinned"]
    assert_error(mindeval("checkpoints", "delete", "r@1"), 4, "[CHECKPOINT_IN_USE]")
    assert not mindeval("checkpoints", "unpin", "r@1", "--json").document["pinned"]
    assert "freed" in mindeval("checkpoints", "delete", "r@1").out
    assert_error(mindeval("checkpoints", "show", "r@1"), 4, "[CHECKPOINT_NOT_FOUND]")
    assert_error(mindeval("checkpoints", "show", digits[:10]), 4, "[CHECKPOINT_NOT_FOUND]")


@pytest.mark.parametrize("name", ["", "abc", "run@", "a/b@3", "xyz", "../x"])
def test_names_that_are_none(mindeval: Command, name: str) -> None:
    assert_error(mindeval("checkpoints", "show", name), 2, "[INVALID_FIELD]")


def test_every_container_is_the_same_checkpoint(mindeval: Command) -> None:
    values = weights()
    write_hugging_face(mindeval.folder / "one", values)
    write_shards(mindeval.folder / "shards", values)
    write_ckpt(write_config(mindeval.folder / "ckpt") / "net-1_10.ckpt", values)
    write_ranks(mindeval.folder / "ranks", values)
    write_ckpt(mindeval.folder / "bare" / "net.ckpt", values)
    pushed = [mindeval("push", name, "--json").document for name in ("one", "shards", "ckpt", "ranks")]
    pushed.append(mindeval("push", "bare/net.ckpt", "--model-files", "one", "--json").document)
    assert {item["digest"] for item in pushed} == {pushed[0]["digest"]}
    assert [item["bytes_sent"] for item in pushed[1:]] == [0, 0, 0, 0]
    assert_error(mindeval("push", "bare/net.ckpt"), 2, "[MODEL_UNSUPPORTED]")
    assert_error(mindeval("push", "bare/net.ckpt", "--model-files", "bare"), 2, "[MODEL_UNSUPPORTED]")


def test_evaluate_takes_what_was_pushed(mindeval: Command) -> None:
    with client_of(mindeval) as client:
        put_suite(client, mindeval.folder, "ok")
    write_hugging_face(mindeval.folder / "a", weights())
    done = mindeval("push", "a", "--run", "r", "--step", "7", "--evaluate", "s", "--json")
    created = done.document["evaluation"]
    result = mindeval("evaluate", "r@7", "--suite", "s", "--run", "r", "--step", "7", "--json").document
    assert (result["name"], result["state"]) == (created, "SUCCEEDED")
    digits = done.document["digest"].split(":")[1][:12]
    assert mindeval("evaluate", digits, "--suite", "s", "--json").document["checkpoint"] == done.document["digest"]
    assert_error(mindeval("evaluate", "r@8", "--suite", "s"), 4, "[CHECKPOINT_NOT_FOUND]")
    assert_error(mindeval("push", "a", "--evaluate", "unknown"), 4, "[SUITE_NOT_FOUND]")
    assert_error(mindeval("push", "a", "--step", "3"), 2, "--run")


def test_by_reference_is_refused_outside_of_the_roots(mindeval: Command) -> None:
    write_hugging_face(mindeval.folder / "a", weights())
    assert_error(mindeval("push", f"file://{mindeval.folder}/a"), 4, "[URI_FORBIDDEN]")


def test_by_reference(tmp_path: Path) -> None:
    """The digest is that of a push, and an evaluation takes a URI as well."""
    shared = write_hugging_face(tmp_path / "shared" / "a", weights())
    roots = json.dumps({"*": [f"file://{tmp_path}/shared"]})
    with ServiceProcess(tmp_path / "service", runner_command=FAULTY_RUNNER, storage_roots=roots) as service:
        command = Command(service.endpoint, tmp_path)
        done = command("push", f"file://{shared}", "--run", "r", "--step", "4")
        assert done.code == 0, done.err
        assert "by reference" in done.out
        pushed = command("push", str(shared), "--json").document
        assert pushed["bytes_sent"] == 0
        assert pushed["digest"] in done.out
        with client_of(command) as client:
            put_suite(client, tmp_path, "ok")
            result = client.evaluate(f"file://{shared}", "s", run="r", step=4)
            assert result.succeeded
            assert result.checkpoint == pushed["digest"]
            created = client.create_evaluation(f"file://{shared}", "s")
            assert client.wait(created.name).checkpoint == pushed["digest"]


@contextmanager
def watching(command: Command, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    env = {**command.env, "XDG_CACHE_HOME": str(command.folder / "cache")}
    line = command.interruptible_line("push", "out", "--watch", "--poll", "0.1", "--json", *words)
    with subprocess.Popen(line, env=env, cwd=command.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def stop(process: subprocess.Popen[bytes]) -> str:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err.decode()
    assert out == b"", "everything was read before"
    assert b"Traceback" not in err
    return err.decode()


def save(file: Path, seed: int) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(encode_ckpt(weights(seed)))
    os.rename(temporary, file)


def next_document(process: subprocess.Popen[bytes]) -> dict[str, object]:
    assert process.stdout is not None
    document: dict[str, object] = json.loads(process.stdout.readline())
    return document


def test_watch_pushes_each_checkpoint_once_over_restarts_of_both(fixed_service: ServiceProcess, tmp_path: Path) -> None:
    command = Command(fixed_service.endpoint, tmp_path)
    output = write_config(tmp_path / "out")
    with client_of(command) as client:
        put_suite(client, tmp_path, "ok")
        with watching(command, "--run", "r", "--evaluate", "s") as process:
            save(output / "net-1_10.ckpt", 1)
            first = next_document(process)
            assert (first["step"], first["run"]) == (10, "r")
            fixed_service.stop()
            save(output / "net-2_10.ckpt", 2)
            (output / "broken-1_1.ckpt").write_bytes(b"\xff" * 100)
            fixed_service.start()
            assert next_document(process)["step"] == 20
            assert "interrupted; 2 checkpoints pushed" in stop(process)
        with watching(command, "--run", "r", "--evaluate", "s") as process:
            save(output / "net-3_10.ckpt", 3)
            third = next_document(process)
            assert third["step"] == 30
            stop(process)
        steps = sorted(step for item in client.list_checkpoints(run="r") for _, step in item.steps)
        assert steps == [10, 20, 30]
        assert client.wait(str(third["evaluation"])).succeeded
        assert len(list(client.list_evaluations())) == 3


def test_watch_says_what_cannot_be_used(service: ServiceProcess, tmp_path: Path) -> None:
    command = Command(service.endpoint, tmp_path)
    output = write_config(tmp_path / "out")
    (output / "broken-1_1.ckpt").write_bytes(b"\xff" * 100)
    with watching(command) as process:
        assert process.stderr is not None
        lines = []
        while not any(b"[CHECKPOINT_" in line for line in lines):
            lines.append(process.stderr.readline())
        save(output / "net-1_10.ckpt", 1)
        assert next_document(process)["digest"]
        assert "CHECKPOINT_" not in stop(process), "said once"


@pytest.mark.parametrize(
    "words",
    [
        ("out", "--watch", "--step", "3", "--run", "r"),
        ("s3://bucket/x", "--watch"),
        ("out/net.ckpt", "--watch"),
        ("out", "--watch", "--poll", "never"),
    ],
)
def test_watches_that_make_no_sense(mindeval: Command, words: tuple[str, ...]) -> None:
    write_ckpt(mindeval.folder / "out" / "net.ckpt", weights())
    assert_error(Command.__call__(mindeval, "push", *words), 2)


def test_two_clients_push_the_same_checkpoint_at_once(service: ServiceProcess, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    values = {f"w{number}": random.standard_normal(1 << 18).astype("<f4") for number in range(40)}
    write_hugging_face(tmp_path / "out", values)
    command = Command(service.endpoint, tmp_path)
    line = command.line("push", "out", "--json")
    both = [
        subprocess.Popen(line, env=command.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    found = []
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err.decode()
        found.append(json.loads(out))
    assert found[0]["digest"] == found[1]["digest"]
    total = found[0]["bytes_total"]
    # A stream that has to yield has sent some before it learns so; nothing is sent over and over.
    assert sum(item["bytes_sent"] for item in found) < 3 * total
