"""The examples as a user runs them: a process, its output, its exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(script, *options, timeout_s=280):
    command = [sys.executable, str(EXAMPLES / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    lines = done.stdout.splitlines()
    return lines, json.loads(lines[-1])


def test_the_demonstration():
    lines, result = run("train_docstrings.py", "--quick")
    assert result["ok"]
    assert result["stopped_early"] is True
    assert result["best_step"] < result["stopped_at_step"]
    assert result["restored_step"] == result["best_step"]
    assert result["restored_val_loss"] == pytest.approx(result["best_val_loss"], abs=1e-3)
    assert result["evaluations"] >= 4
    assert result["stall_over_in_loop"] == pytest.approx(result["stall_ms"] / result["in_loop_ms"], rel=0.01)
    (header,) = [line for line in lines if line.split()[:1] == ["step"]]
    for column in ("train loss", "val loss", "perplexity", "decision", "reason"):
        assert column in header
    rows = [line.split() for line in lines if len(line.split()) > 4 and line.split()[0].isdigit()]
    assert len(rows) == result["evaluations"]
    assert [row[4] for row in rows].count("stop") == 1
    # Perplexity and loss of a row are of the same numbers.
    assert float(rows[0][3]) == pytest.approx(2.718281828 ** float(rows[0][2]), rel=1e-3)


def test_the_replacement_gives_the_numbers_of_the_in_loop_evaluation():
    _, before = run("replace_in_loop_evaluation.py", "--in-loop")
    _, after = run("replace_in_loop_evaluation.py")
    assert after["ok"]
    assert after["best_val_loss"] == pytest.approx(after["in_loop_val_loss"], abs=1e-4)
    both = before["losses"].keys() & after["losses"].keys()
    assert len(both) >= 5
    for step in both:
        assert after["losses"][step] == pytest.approx(before["losses"][step], abs=1e-4), step
    assert len(after["checkpoints"]) == 3
