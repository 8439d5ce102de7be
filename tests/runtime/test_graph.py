"""Networks that the service has never seen, as MindIR, equal to numpy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file
from tests.runtime import reference
from tests.support.models import checkpoint_manifest
from tests.support.runner_driver import Runner, language_modeling

from mindeval.service.metrics import state_from_dict

MAX_LENGTH, PREFIX = 32, 256
LINES = ["a line", "", "another, longer line that needs more than a single window", "x" * 32, "é三", "z"]


FAULTS = ("static", "last_only", "other_vocabulary")


@pytest.fixture(scope="module")
def exported(work: Path) -> Path:
    """Folders of exported networks, by kind."""
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-m", "tests.support.export_graph", str(work / "exported"), "dynamic", *FAULTS],
        check=True,
        capture_output=True,
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(root), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
    )
    return work / "exported"


@pytest.fixture(scope="module")
def model(exported: Path) -> Path:
    return exported / "dynamic"


@pytest.fixture(scope="module")
def data(work: Path) -> Path:
    path = work / "data.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


def evaluate(runner: Runner, folder: Path, data: Path, **task: Any) -> list[dict[str, Any]]:
    manifest, blobs = checkpoint_manifest(folder, folder.parent / "blobs")
    return runner.evaluate(manifest, blobs, [language_modeling(data, **task)])


def loss(frames: list[dict[str, Any]]) -> float:
    assert [frame["type"] for frame in frames] == ["task_result", "finished"], frames
    return float(state_from_dict(frames[0]["state"]).result()["loss"].value)


def logits(tensors: dict[str, npt.NDArray[Any]], tokens: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The network of tests.support.export_graph in float64."""
    weights = {name: array.astype(np.float64) for name, array in tensors.items()}
    means = np.cumsum(weights["table"][tokens], axis=0) / np.arange(1, tokens.size + 1)[:, None]
    return np.asarray(np.tanh(means) @ weights["head.weight"].T + weights["head.bias"])


def expected_loss(folder: Path) -> float:
    tensors = load_file(folder / "model.safetensors")
    nll: list[float] = []
    for line in filter(None, LINES):
        for inputs, predicted in reference.rolling_windows(list(line.encode()), PREFIX, MAX_LENGTH):
            rows = logits(tensors, np.array(inputs))[-len(predicted) :]
            nll += reference.token_nll(rows, np.array(predicted)).tolist()
    return float(np.mean(nll))


def test_scores_equal_numpy_with_the_checkpoints_weights(runner: Runner, model: Path, data: Path) -> None:
    for batch_tokens in (1, 4096):
        frames = evaluate(runner, model, data, settings={"batch_tokens": batch_tokens})
        assert loss(frames) == pytest.approx(expected_loss(model), rel=1e-5)


def test_the_next_checkpoint_compiles_nothing(runner: Runner, work: Path, model: Path, data: Path) -> None:
    first = loss(evaluate(runner, model, data))
    other = shutil.copytree(model, work / "other")
    rng = np.random.default_rng(9)
    tensors = load_file(model / "model.safetensors")
    changed = {name: rng.standard_normal(array.shape).astype(np.float16) for name, array in tensors.items()}
    (other / "model.safetensors").unlink()
    save_file(changed, other / "model.safetensors")
    frames = evaluate(runner, other, data)
    assert loss(frames) == pytest.approx(expected_loss(other), rel=1e-5)
    assert loss(frames) != pytest.approx(first, rel=1e-2)
    assert frames[-1]["statistics"]["compiled_graphs"] == 0
    assert frames[-1]["statistics"]["warm"] is True
    assert loss(evaluate(runner, model, data)) == first


@pytest.mark.parametrize("kind", FAULTS)
def test_a_graph_that_does_something_else(runner: Runner, exported: Path, data: Path, model: Path, kind: str) -> None:
    for _ in range(2):
        frames = evaluate(runner, exported / kind, data)
        assert [frame["type"] for frame in frames] == ["task_failed", "finished"]
        error = frames[0]["error"]
        assert error["reason"] == "MODEL_INVALID"
        assert error["metadata"] == {"file": "model.mindir", "field": "graph"}
    assert loss(evaluate(runner, model, data)) > 0


def test_a_file_that_is_no_graph(runner: Runner, work: Path, data: Path, model: Path) -> None:
    folder = shutil.copytree(model, work / "no_graph")
    graph = folder / "model.mindir"
    content = graph.read_bytes()
    for damaged in (b"", b"no graph" * 50, content[: len(content) // 2]):
        graph.chmod(0o600)
        graph.write_bytes(damaged)
        frames = evaluate(runner, folder, data)
        assert [frame["type"] for frame in frames] == ["failed"]
        assert frames[0]["error"]["reason"] == "MODEL_INVALID"
        assert frames[0]["error"]["metadata"]["file"] == "model.mindir"
    graph.unlink()
    assert evaluate(runner, folder, data)[0]["error"]["reason"] == "MODEL_INVALID"
    assert loss(evaluate(runner, model, data)) > 0


def test_weights_of_another_network(runner: Runner, work: Path, data: Path, model: Path) -> None:
    folder = shutil.copytree(model, work / "foreign")
    tensors = load_file(model / "model.safetensors")
    for name, array, reason in (
        ("table", None, "TENSOR_MISSING"),
        ("bias", np.zeros(3, np.float32), "TENSOR_UNEXPECTED"),
        ("table", np.zeros((259, 25), np.float32), "TENSOR_MISMATCH"),
    ):
        changed = {key: value for key, value in {**tensors, name: array}.items() if value is not None}
        (folder / "model.safetensors").unlink()
        save_file(changed, folder / "model.safetensors")
        error = evaluate(runner, folder, data)[0]["error"]
        assert (error["reason"], error["metadata"]["tensor"]) == (reason, name)
    assert loss(evaluate(runner, model, data)) > 0
