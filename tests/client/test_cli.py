"""The `mindeval` command as a process: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.client.checkpoints import write_folder
from tests.client.conftest import put_suite
from tests.support.models import write_tiny_llama
from tests.support.service import ServiceProcess, wait_until

from mindeval.client import Client
from mindeval.client.cli import main

NOWHERE = "127.0.0.1:9"
SUITE = """\
name: valid
description: 验证 loss
tasks:
  - name: val
    type: language_modeling
    dataset: docs-valid
    metrics: [loss, ppl]
    max_length: 64
"""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Command:
    def __init__(self, endpoint: str, folder: Path) -> None:
        self.folder = folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MINDEVAL_")}
        self.env = {**clean, "MINDEVAL_ENDPOINT": endpoint, "MINDEVAL_PROJECT": folder.name[:60]}

    def __call__(self, *words: str, **env: str) -> Finished:
        done = subprocess.run(
            self.line(*words), capture_output=True, cwd=self.folder, env={**self.env, **env}, timeout=60, check=False
        )
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    def line(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "mindeval.client.cli", *words]

    def interruptible_line(self, *words: str) -> list[str]:
        """The same with Ctrl-C at its default: a shell starts background jobs, such as a test run, without it."""
        reset = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        return [sys.executable, "-c", reset + "os.execv(sys.argv[1], sys.argv[1:])", *self.line(*words)]


@pytest.fixture
def mindeval(service: ServiceProcess, tmp_path: Path) -> Command:
    return Command(service.endpoint, tmp_path)


@pytest.fixture
def ready(mindeval: Command) -> Command:
    """With a suite `s`, whose evaluations succeed, and a checkpoint `llama`."""
    with Client(mindeval.env["MINDEVAL_ENDPOINT"], project=mindeval.env["MINDEVAL_PROJECT"]) as client:
        put_suite(client, mindeval.folder, "ok")
        put_suite(client, mindeval.folder, "fail NON_FINITE_WEIGHT tensor=w", "failing")
    write_tiny_llama(mindeval.folder / "llama")
    return mindeval


class InProcess(Command):
    """The same without the start of an interpreter, for the many lines of the tests below."""

    def __init__(self, command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(command.env["MINDEVAL_ENDPOINT"], command.folder)
        self._capsys = capsys
        monkeypatch.chdir(command.folder)
        for name in ("MINDEVAL_ENDPOINT", "MINDEVAL_PROJECT"):
            monkeypatch.setenv(name, self.env[name])

    def __call__(self, *words: str, **env: str) -> Finished:
        assert not env
        code = main(words)
        out, err = self._capsys.readouterr()
        return Finished(code, out, err)


@pytest.fixture
def inside(ready: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return InProcess(ready, capsys, monkeypatch)


def assert_error(done: Finished, code: int, *parts: str) -> None:
    lines = [line for line in done.err.splitlines() if line.startswith("mindeval: error: ")]
    assert done.code == code, done
    assert len(lines) == 1, done.err
    assert "Traceback" not in done.err
    for part in parts:
        assert part in lines[0]


def test_first_session(mindeval: Command) -> None:
    (mindeval.folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    (mindeval.folder / "valid.txt").write_text("ok\none two\nthree\n", encoding="utf-8")
    write_tiny_llama(mindeval.folder / "llama")

    done = mindeval("dataset", "put", "docs-valid", "valid.txt", "--format", "text_lines", "--language", "en")
    assert (done.code, done.out.split(":")[0]) == (0, "dataset docs-valid")
    assert "new version" in done.out
    done = mindeval("suite", "put", "suite.yaml")
    assert (done.code, done.out.split(":")[0]) == (0, "suite valid")
    assert "unchanged" in mindeval("suite", "put", "suite.yaml").out
    assert mindeval("suite", "put", "suite.yaml", "--name", "other", "--json").document["name"] == "other"

    listed = mindeval("suite", "list")
    assert "验证 loss" in listed.out
    assert [suite["name"] for suite in mindeval("suite", "list", "--json").document["suites"]] == ["other", "valid"]
    (mindeval.folder / "again.yaml").write_text(mindeval("suite", "get", "valid").out, encoding="utf-8")
    assert "unchanged" in mindeval("suite", "put", "again.yaml").out
    assert mindeval("dataset", "list", "--json").document["datasets"][0]["files"][0]["path"] == "valid.txt"
    assert "valid.txt" in mindeval("dataset", "get", "docs-valid").out

    done = mindeval("evaluate", "llama", "--suite", "valid", "--run", "r1", "--step", "10", "--epoch", "0.5")
    assert done.code == 0
    assert "SUCCEEDED  run r1, step 10, epoch 0.5" in done.out
    assert [line.split()[:3] for line in done.out.splitlines() if line.startswith("val ")] == [
        ["val", "loss", "1"],
        ["val", "ppl", "2.71828"],
    ]
    assert "pushed" in done.err
    assert "running" in done.err

    done = mindeval("evaluate", "llama", "--suite", "valid", "--run", "r1", "--step", "10", "--epoch", "0.5", "--json")
    first = done.document
    assert first["metrics"]["val/loss"]["value"] == 1.0
    assert (first["state"], first["error"], first["tasks"][0]["scored_count"]) == ("SUCCEEDED", None, 2)
    done = mindeval("--json", "--quiet", "evaluate", first["checkpoint"], "--suite", "valid", "--run", "r1",
                    "--step", "10", "--epoch", "0.5", "--rerun")  # fmt: skip
    assert done.document["name"] != first["name"]
    assert done.err == ""

    listed = mindeval("list", "--filter", "run = r1 AND step >= 10", "--limit", "1", "--json").document
    assert [entry["name"] for entry in listed["evaluations"]] == [done.document["name"]]
    assert "val/loss" in mindeval("list").out
    shown = mindeval("get", first["name"].rsplit("/", 1)[1], "--json")
    assert shown.document == first
    watched = mindeval("watch", first["name"])
    assert (watched.code, watched.out) == (0, mindeval("get", first["name"]).out)


def test_no_wait_then_cancel(inside: Command) -> None:
    gate = inside.folder / "gate"
    with Client(inside.env["MINDEVAL_ENDPOINT"], project=inside.env["MINDEVAL_PROJECT"]) as client:
        put_suite(client, inside.folder, f"gate {gate}", "slow")
    done = inside("evaluate", "llama", "--suite", "slow", "--no-wait", "--timeout", "10m")
    assert done.code == 0
    name = done.out.split()[0]
    assert f"mindeval watch {name.rsplit('/', 1)[1]}" in done.out
    assert inside("cancel", name).code == 0
    ended = inside("watch", name, "--json")
    assert (ended.code, ended.document["state"]) == (1, "CANCELLED")
    name = inside("evaluate", "llama", "--suite", "s", "--json").document["name"]
    assert_error(inside("cancel", name), 4, "[EVALUATION_TERMINAL]")


def test_failed_evaluation(inside: Command) -> None:
    done = inside("evaluate", "llama", "--suite", "failing")
    assert_error(done, 1, "[NON_FINITE_WEIGHT]")
    assert "FAILED" in done.out
    done = inside("evaluate", "llama", "--suite", "failing", "--json")
    assert done.document["error"]["reason"] == "NON_FINITE_WEIGHT"
    assert done.document["error"]["metadata"]["tensor"] == "w"


def test_bad_input(inside: Command) -> None:
    folder = inside.folder
    write_folder(folder / "cut")
    os.truncate(folder / "cut" / "model.safetensors", 5000)
    write_folder(folder / "bare")
    (folder / "bare" / "config.json").unlink()
    (folder / "broken.yaml").write_text("tasks:\n  - name: [\n")
    (folder / "unknown-key.yaml").write_text(SUITE + "taks: []\n")
    (folder / "metric.yaml").write_text(SUITE.replace("docs-valid", "s-data").replace("ppl", "pplx"))
    (folder / "empty.token").write_text("\n")
    evaluate = ("--suite", "s")
    assert_error(inside("evaluate", "nothing", *evaluate), 2, "nothing: no such file", "[CHECKPOINT_UNREADABLE]")
    assert_error(inside("evaluate", "cut", *evaluate), 2, "cut/model.safetensors", "[CHECKPOINT_TRUNCATED]")
    assert_error(inside("evaluate", "bare", *evaluate), 2, "add config.json", "[MODEL_UNSUPPORTED]")
    assert_error(inside("evaluate", "s.txt", *evaluate), 2, "s.txt", "[CHECKPOINT_UNREADABLE]")
    assert_error(inside("suite", "put", "broken.yaml"), 2, "broken.yaml:3:1: ", "[INVALID_FIELD]")
    assert_error(inside("suite", "put", "unknown-key.yaml"), 2, "taks", "[INVALID_FIELD]")
    assert_error(inside("suite", "put", "no.yaml"), 2, "no.yaml: no such file")
    dataset = ("--format", "text", "--language", "en")
    assert_error(inside("dataset", "put", "d", "gone.txt", *dataset), 2, "gone.txt", "[DATASET_INVALID]")
    assert_error(inside("list", "--token-file", "empty.token"), 2, "empty.token", "[INVALID_FIELD]")
    assert_error(inside("list", "--endpoint", "nowhere"), 2, "host:port", "[INVALID_FIELD]")
    assert_error(inside("list", "--tls-ca", "gone.pem"), 2, "gone.pem", "[INVALID_FIELD]")
    # Refused by the service.
    assert_error(inside("suite", "put", "metric.yaml"), 4, "pplx", "[UNKNOWN_METRIC]")
    assert_error(inside("evaluate", "llama", "--suite", "nope"), 4, "nope", "[SUITE_NOT_FOUND]")
    assert_error(inside("get", "nope"), 4, "[EVALUATION_NOT_FOUND]")
    assert_error(inside("list", "--filter", "x ="), 4, "[FILTER_INVALID]")
    done = inside("get", "nope", "--json")
    assert (done.code, done.document["error"]["reason"]) == (4, "EVALUATION_NOT_FOUND")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("suite",),
        ("evaluate", "x"),
        ("evaluate", "x", "--suite", "s", "--timeout", "soon"),
        ("evaluate", "x", "--suite", "s", "--step", "many"),
        ("dataset", "put", "d", "f", "--format", "xml", "--language", "en"),
        ("list", "--limit", "0"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = Command(NOWHERE, tmp_path)(*words)
    assert_error(done, 2)
    assert len(done.err.splitlines()) == 1


def test_service_down(tmp_path: Path) -> None:
    done = Command(NOWHERE, tmp_path)("list", "--json")
    assert_error(done, 3, NOWHERE, "[SERVICE_UNAVAILABLE]")
    assert done.document["error"]["reason"] == "SERVICE_UNAVAILABLE"
    assert len(done.err.splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = Command(NOWHERE, tmp_path)("list", "--endpoint", "x", MINDEVAL_DEBUG="1")
    assert "Traceback" in done.err


def test_help_tells_the_exit_codes(tmp_path: Path) -> None:
    done = Command(NOWHERE, tmp_path)("--help")
    assert done.code == 0
    assert "the service cannot be reached" in done.out


def test_interrupt_tells_how_to_go_on(ready: Command) -> None:
    gate = ready.folder / "gate"
    with Client(ready.env["MINDEVAL_ENDPOINT"], project=ready.env["MINDEVAL_PROJECT"]) as client:
        put_suite(client, ready.folder, f"gate {gate}", "slow")
        line = ready.interruptible_line("evaluate", "llama", "--suite", "slow")
        with subprocess.Popen(
            line, env=ready.env, cwd=ready.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                wait_until(lambda: [item for item in client.list_evaluations() if item.state == "RUNNING"])
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=30)
            except BaseException:
                gate.touch()  # or the tests that follow wait for a runner for ever
                raise
        (created,) = client.list_evaluations()
        assert process.returncode == 130
        assert out == b""
        assert (
            f"the evaluation goes on, follow it with: mindeval watch {created.name.rsplit('/', 1)[1]}" in err.decode()
        )
        assert b"Traceback" not in err
        gate.touch()
        assert client.wait(created.name).succeeded


def test_bar_on_a_terminal(ready: Command) -> None:
    leader, follower = pty.openpty()
    try:
        with subprocess.Popen(
            ready.line("evaluate", "llama", "--suite", "s"), env={**ready.env, "COLUMNS": "100"}, cwd=ready.folder,
            stdout=subprocess.PIPE, stderr=follower,
        ) as process:  # fmt: skip
            os.close(follower)
            shown = b""
            while True:
                try:
                    piece = os.read(leader, 4096)
                except OSError:
                    break
                shown += piece
            out, _ = process.communicate(timeout=30)
    finally:
        os.close(leader)
    assert process.returncode == 0
    assert b"SUCCEEDED" in out
    assert b"push  [" in shown
    assert b"100%" in shown


def test_output_that_nobody_reads(ready: Command) -> None:
    line = f"{' '.join(ready.line('list'))} | true"
    done = subprocess.run(["bash", "-c", line], env=ready.env, capture_output=True, timeout=60, check=False)
    assert done.stderr == b""


def test_serve_runs_the_service_with_its_options(tmp_path: Path) -> None:
    done = Command(NOWHERE, tmp_path)("serve", "--help")
    assert done.code == 0
    assert "--data-dir" in done.out
    done = Command(NOWHERE, tmp_path)("--quiet", "serve", "--devices", "gpu:1", "--data-dir", str(tmp_path / "d"))
    assert done.code != 0
    assert "gpu:1" in done.err


def test_serve_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from mindeval.client.cli import serving

    monkeypatch.setattr(serving, "_NEEDED", ("mindeval.service", "a_package_that_nobody_has"))
    assert serving.serve([]) == 2
    assert "pip install 'mindeval[service]'" in capsys.readouterr().err
