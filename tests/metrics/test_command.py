"""`mindeval metrics list` and `mindeval metrics check` as processes, on built-in and installed metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.metrics.test_checking import documented_example, write_package

from mindeval.client.cli import serving
from mindeval.service.metrics.catalog import FAMILY_METRICS

# The mean of the means of batches: the number that evaluation loops often report.
BATCH_MEANS = """
class BatchMeansState(NumericState):
    family = "batch_means"

    def __init__(self, settings=None):
        super().__init__(settings)
        self.means = []

    def update(self, *, sample_ids, predictions, targets):
        super().update(sample_ids=sample_ids, predictions=predictions, targets=targets)
        self.means.append(float(np.mean(np.abs(np.subtract(predictions, targets)))) if len(predictions) else 0.0)

    def _merge(self, other):
        super()._merge(other)
        self.means += other.means

    def _estimators(self, rows, names):
        return {name: Mean(len(self.means), np.array(self.means)) for name in names}

class NoExampleState(NumericState):
    family = "no_example"

    @classmethod
    def example_batch(cls):
        return TableState.example_batch()
"""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    names = {
        "numeric": "NumericState",
        "batch_means": "BatchMeansState",
        "no_example": "NoExampleState",
        "gone": "Gone",
    }
    points = "".join(f"{name} = numeric_plugin:{kind}\n" for name, kind in names.items())
    write_package(folder, "numeric_plugin", documented_example() + BATCH_MEANS, points)
    return folder


def run(packages: Path, *words: str) -> Finished:
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "mindeval.client.cli", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
        timeout=60,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def test_the_documented_metric_passes_all_checks(packages: Path) -> None:
    done = run(packages, "metrics", "check", "numeric", "--settings", '{"scale": 0.1}')
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["CHECK", "RESULT", "PROMISE"]
    assert [line.split()[1] for line in lines[1:13]] == ["pass"] * 12
    assert lines[-1] == "numeric keeps its promises: 12 of 12 checks passed on 3 samples"


def test_a_metric_that_averages_means_of_batches_fails_with_examples(packages: Path) -> None:
    done = run(packages, "metrics", "check", "batch_means")
    assert (done.code, done.err) == (1, "")
    assert "batches             FAIL" in done.out
    assert "batches: mae: value " in done.out
    assert "[0 1 2] (positions in the example batch)" in done.out
    assert "batch_means breaks its promises" in done.out


def test_the_outcome_as_json(packages: Path) -> None:
    done = run(packages, "--json", "metrics", "check", "batch_means", "--trials", "30", "--seed", "3")
    document = json.loads(done.out)
    assert (done.code, document["passed"], document["samples"], document["seed"]) == (1, False, 3, 3)
    checks = {check["name"]: check for check in document["checks"]}
    assert len(checks) == 12
    failed = {name for name, check in checks.items() if check["status"] == "failed"}
    assert {"batches", "duplicates", "shards"} <= failed
    assert checks["batches"]["example"]
    assert checks["names"]["status"] == "passed"


def test_what_a_bounded_state_is_not_asked(packages: Path) -> None:
    done = run(packages, "metrics", "check", "classification_bounded", "--trials", "2")
    assert done.code == 0
    assert "overlapping_shards  -" in done.out
    assert "11 of 11 checks passed" in done.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("check", "nothing"), 2, "no metric family 'nothing'"),
        (("check", "bleu"), 2, "'bleu' is a metric of generation"),
        (("check", "gone"), 2, "cannot be imported"),
        (("check", "no_example"), 2, "example_batch"),
        (("check", "numeric", "--settings", "{"), 2, "not JSON"),
        (("check", "numeric", "--settings", '{"size": 1}'), 2, "unknown setting"),
        (("check", "numeric", "--trials", "0"), 2, "at least 1"),
        (("check",), 2, "NAME"),
        ((), 2, "ACTION"),
    ],
)
def test_wrong_use_is_one_line(packages: Path, words: tuple[str, ...], code: int, message: str) -> None:
    done = run(packages, "metrics", *words)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_the_list_has_built_in_and_installed_families(packages: Path) -> None:
    families: dict[str, Any] = {
        f["name"]: f for f in json.loads(run(packages, "metrics", "list", "--json").out)["families"]
    }
    assert set(families) == {*FAMILY_METRICS, "numeric", "batch_means", "no_example", "gone"}
    assert families["numeric"]["metrics"] == [{"name": "mae", "higher_is_better": False}]
    assert families["classification_bounded"]["memory"] == "bounded"
    assert "cannot be imported" in families["gone"]["error"]
    text = run(packages, "metrics", "list")
    assert text.code == 0
    assert "image_quality" in text.out
    assert max(map(len, text.out.splitlines())) <= 120


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "_METRICS_NEED", ("mindeval.service.metrics", "a_package_that_nobody_has"))
    assert serving.metrics(["list"]) == 2
    message = capsys.readouterr().err
    assert "pip install 'mindeval[service]'" in message
    assert "a_package_that_nobody_has" in message
