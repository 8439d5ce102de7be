"""Each bad input gives its own reason, and the same runner then evaluates a good checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.support.models import checkpoint_manifest, write_tiny_llama
from tests.support.runner_driver import Runner, language_modeling, location_of

from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest

Blobs = dict[str, Path]


@pytest.fixture(scope="module")
def data(work: Path) -> Path:
    path = work / "data.txt"
    path.write_text("hello\nworld\n", encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", layers=1, seed=7)


@pytest.fixture(autouse=True)
def _a_good_checkpoint_still_works(runner: Runner, data: Path, tmp_path: Path) -> Any:
    yield
    manifest, blobs = checkpoint_manifest(write_tiny_llama(tmp_path / "good", layers=1), tmp_path / "good_blobs")
    frames = runner.evaluate(manifest, blobs, [language_modeling(data)])
    assert [frame["type"] for frame in frames] == ["task_result", "finished"]


def job_error(frames: list[dict[str, Any]]) -> dict[str, Any]:
    assert [frame["type"] for frame in frames] == ["failed"], frames
    return dict(frames[0]["error"])


def evaluate_folder(runner: Runner, folder: Path, data: Path) -> dict[str, Any]:
    manifest, blobs = checkpoint_manifest(folder, folder.parent / "blobs")
    return job_error(runner.evaluate(manifest, blobs, [language_modeling(data)]))


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def edit_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def test_an_unreadable_manifest(runner: Runner, folder: Path, data: Path, tmp_path: Path) -> None:
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    path = tmp_path / "manifest"
    for content in (b"not JSON", b'{"mindeval_manifest":2,"tensors":[],"files":[]}', manifest.to_bytes() + b"\n"):
        path.write_bytes(content)
        changes = {"manifest": location_of(path), "checkpoint": digest_bytes(content)}
        frames = runner.evaluate(manifest, blobs, [], changes)
        assert job_error(frames)["reason"] == "MANIFEST_INVALID"
    path.write_bytes(manifest.to_bytes().replace(b"lm_head", b"lm_hood"))
    frames = runner.evaluate(manifest, blobs, [], {"manifest": location_of(path)})
    assert job_error(frames)["reason"] == "CHECKPOINT_CORRUPT"
    frames = runner.evaluate(manifest, blobs, [], {"manifest": [str(tmp_path / "absent"), 0, 10]})
    assert job_error(frames)["reason"] == "BLOB_MISSING"


def damage(manifest: Manifest, blobs: Blobs, change: Callable[[bytes], bytes | None]) -> tuple[str, str]:
    """Changes one weight's blob; returns the tensor's name and digest."""
    entry = next(tensor for tensor in manifest.tensors if tensor.name.endswith("mlp.down_proj.weight"))
    path = blobs[entry.digest]
    content = change(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    return entry.name, entry.digest


def flip_one_bit(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 0x10
    return bytes(changed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content[:-3], "CHECKPOINT_TRUNCATED"),
        (flip_one_bit, "CHECKPOINT_CORRUPT"),
        (lambda content: b"", "CHECKPOINT_TRUNCATED"),
        (lambda content: None, "BLOB_MISSING"),
    ],
)
def test_a_damaged_blob_names_the_tensor(
    runner: Runner, folder: Path, data: Path, tmp_path: Path, change: Callable[[bytes], bytes | None], reason: str
) -> None:
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    name, digest = damage(manifest, blobs, change)
    error = job_error(runner.evaluate(manifest, blobs, [language_modeling(data)]))
    assert error["reason"] == reason
    assert (error["metadata"]["tensor"], error["metadata"]["digest"]) == (name, digest)
    # Nothing half-loaded may pass for the checkpoint at the next try.
    assert job_error(runner.evaluate(manifest, blobs, [language_modeling(data)]))["reason"] == reason


def test_a_damaged_description_names_the_file(runner: Runner, folder: Path, data: Path, tmp_path: Path) -> None:
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    entry = manifest.file("config.json")
    assert entry is not None
    blobs[entry.digest].write_bytes(flip_one_bit(blobs[entry.digest].read_bytes()))
    error = job_error(runner.evaluate(manifest, blobs, [language_modeling(data)]))
    assert (error["reason"], error["metadata"]["file"]) == ("CHECKPOINT_CORRUPT", "config.json")


def test_a_weight_that_is_nan(runner: Runner, folder: Path, data: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = np.nan

    edit_tensors(folder, change)
    error = evaluate_folder(runner, folder, data)
    assert error["reason"] == "NON_FINITE_WEIGHT"
    assert error["metadata"]["tensor"] == "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "reason", "tensor"),
    [
        (lambda t: t.pop("model.norm.weight"), "TENSOR_MISSING", "model.norm.weight"),
        (lambda t: t.update({"extra.weight": np.zeros(3, np.float32)}), "TENSOR_UNEXPECTED", "extra.weight"),
        (
            lambda t: t.update({"lm_head.weight": t["lm_head.weight"].T.copy()}),
            "TENSOR_MISMATCH",
            "lm_head.weight",
        ),
        (
            lambda t: t.update({"model.norm.weight": t["model.norm.weight"].astype(np.int32)}),
            "TENSOR_MISMATCH",
            "model.norm.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    runner: Runner, folder: Path, data: Path, change: Callable[[dict[str, Any]], None], reason: str, tensor: str
) -> None:
    edit_tensors(folder, change)
    error = evaluate_folder(runner, folder, data)
    assert (error["reason"], error["metadata"]["tensor"]) == (reason, tensor)


def test_the_wrong_architecture(runner: Runner, folder: Path, data: Path) -> None:
    edit_config(folder, num_hidden_layers=2)
    assert evaluate_folder(runner, folder, data)["reason"] == "TENSOR_MISSING"
    edit_config(folder, num_hidden_layers=1, intermediate_size=95)
    assert evaluate_folder(runner, folder, data)["reason"] == "TENSOR_MISMATCH"
    edit_config(folder, model_type="mamba", architectures=["MambaForCausalLM"])
    error = evaluate_folder(runner, folder, data)
    assert error["reason"] == "MODEL_UNSUPPORTED"
    assert "llama" in error["metadata"]["known"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "hidden_size"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"bos_token_id": 259}, "bos_token_id"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
    ],
)
def test_a_description_that_contradicts_itself(
    runner: Runner, folder: Path, data: Path, fields: dict[str, Any], field: str
) -> None:
    edit_config(folder, **fields)
    error = evaluate_folder(runner, folder, data)
    assert (error["reason"], error["metadata"]["field"]) == ("MODEL_INVALID", field)


def test_a_description_that_is_absent_doubled_or_no_json(runner: Runner, folder: Path, data: Path) -> None:
    (folder / "mindeval_model.json").write_text("{}")
    assert evaluate_folder(runner, folder, data)["reason"] == "MODEL_INVALID"
    (folder / "mindeval_model.json").unlink()
    for content in (b"{", b"[]", b"\xff"):
        (folder / "config.json").write_bytes(content)
        assert evaluate_folder(runner, folder, data)["reason"] == "MODEL_INVALID"
    (folder / "config.json").unlink()
    assert evaluate_folder(runner, folder, data)["reason"] == "MODEL_UNSUPPORTED"


def test_a_bad_task_leaves_the_others_running(runner: Runner, folder: Path, data: Path, tmp_path: Path) -> None:
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    empty, garbled, foreign = tmp_path / "empty.txt", tmp_path / "garbled.jsonl", tmp_path / "foreign.npy"
    empty.write_bytes(b"\n")
    garbled.write_bytes(b'{"text": "fine"}\n{oops\n')
    np.save(foreign, np.array([[1, 2, 259]]))
    damaged = language_modeling(data, name="damaged")
    damaged["dataset"]["files"][0]["digest"] = "blake3:" + "0" * 64
    tasks = [
        language_modeling(empty, name="empty"),
        language_modeling(garbled, name="garbled", format="jsonl"),
        language_modeling(foreign, name="foreign", format="tokens_npy"),
        damaged,
        language_modeling(data, name="metric", metrics=["loss", "bleu"]),
        {**language_modeling(data, name="kind"), "type": "translation"},
        language_modeling(data, name="setting", settings={"stride": 3}),
        language_modeling(data, name="long", settings={"max_length": 4096}),
        language_modeling(data, name="half", settings={"compute_dtype": "float16"}),
        language_modeling(data, name="good"),
    ]
    frames = runner.evaluate(manifest, blobs, tasks)
    errors = {frame["task"]: frame["error"] for frame in frames if frame["type"] == "task_failed"}
    assert {task: error["reason"] for task, error in errors.items()} == {
        "empty": "DATASET_EMPTY",
        "garbled": "DATASET_INVALID",
        "foreign": "TOKEN_OUT_OF_VOCABULARY",
        "damaged": "DATASET_INVALID",
        "metric": "UNKNOWN_METRIC",
        "kind": "UNKNOWN_TASK_TYPE",
        "setting": "INVALID_FIELD",
        "long": "INVALID_FIELD",
        "half": "INVALID_FIELD",
    }
    assert errors["garbled"]["metadata"]["sample"] == "garbled.jsonl:2"
    assert errors["foreign"]["metadata"]["token"] == "259"
    assert errors["foreign"]["metadata"]["vocabulary_size"] == "259"
    assert [frame["task"] for frame in frames if frame["type"] == "task_result"] == ["good"]
    assert frames[-1]["type"] == "finished"


def test_a_text_dataset_without_a_tokenizer(runner: Runner, folder: Path, data: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    frames = runner.evaluate(manifest, blobs, [language_modeling(data)])
    assert frames[0]["error"]["reason"] == "TOKENIZER_INVALID"


def test_a_malformed_message(runner: Runner, folder: Path, data: Path, tmp_path: Path) -> None:
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    task = language_modeling(data)
    wrong = (["path", 0], [0, "path", 5], ["path", -1, 5], ["path", 0, -5], ["path", 0, 1.5])
    locations: list[Any] = [None, "path", *wrong]
    for location in locations:
        task["dataset"]["files"][0]["location"] = location
        error = job_error(runner.evaluate(manifest, blobs, [task]))
        assert (error["reason"], error["metadata"]["field"]) == ("INVALID_FIELD", "tasks[0].dataset.files[0].location")
    error = job_error(runner.evaluate(manifest, blobs, [], {"blobs": {manifest.digest: "path"}}))
    assert (error["reason"], error["metadata"]["field"]) == ("INVALID_FIELD", "blobs")


def test_nothing_is_written_to_the_blobs(runner: Runner, folder: Path, data: Path, tmp_path: Path) -> None:
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    for path in blobs.values():
        os.chmod(path, 0o400)
    before = {path: path.read_bytes() for path in blobs.values()}
    frames = runner.evaluate(manifest, blobs, [language_modeling(data)])
    assert frames[-1]["type"] == "finished"
    assert {path: path.read_bytes() for path in blobs.values()} == before
