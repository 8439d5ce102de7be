"""A real runner process, tiny Llama models, and an independent forward pass in float64."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.runtime import reference
from tests.support.models import checkpoint_manifest, tiny_llama_config, write_tiny_llama
from tests.support.runner_driver import Runner, language_modeling
from tokenizers import Tokenizer

from mindeval.service.metrics import state_from_dict

TEXT = "".join(f"Line {i}: the quick brown fox jumps over {i * i} lazy dogs, 三只.\n" for i in range(12))
LINES = "short\n\na somewhat longer line of text\n" + "x" * 150 + "\n" + "yz" * 20 + "\n"


def scored(frames: list[dict[str, Any]]) -> Any:
    """The metric state of the only task, which must have ended well."""
    assert [frame["type"] for frame in frames] == ["task_result", "finished"], frames
    return state_from_dict(frames[0]["state"])


def expected(config: dict[str, Any], folder: Path, documents: list[str], max_length: int) -> dict[str, float]:
    """Loss, accuracies and tokens by the reference."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tensors = load_file(folder / "model.safetensors")
    sums = np.zeros(4)
    for document in documents:
        ids = tokenizer.encode(document, add_special_tokens=False).ids
        sums += reference.document_nll(config, tensors, ids, 256, max_length)
    tokens = sums[3]
    return {"loss": sums[0] / tokens, "accuracy": sums[1] / tokens, "top5": sums[2] / tokens, "tokens": tokens}


VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tied": True},
    "multi_head_with_biases": {"kv_heads": 4, "attention_bias": True, "mlp_bias": True, "layers": 1},
    "one_key_head_wide": {"kv_heads": 1, "head_dim": 32, "layers": 1, "max_length": 300},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_equal_an_independent_forward_pass(runner: Runner, work: Path, variant: str) -> None:
    fields = VARIANTS[variant]
    config = tiny_llama_config(**fields)
    folder = write_tiny_llama(work / variant, seed=3, **fields)
    data = work / f"{variant}.txt"
    data.write_text(TEXT, encoding="utf-8")
    manifest, blobs = checkpoint_manifest(folder, work / "blobs")
    frames = runner.evaluate(manifest, blobs, [language_modeling(data, format="text")])
    state = scored(frames)
    wanted = expected(config, folder, [TEXT], config["max_position_embeddings"])
    result = state.result()
    assert result["loss"].count == wanted["tokens"]
    assert result["loss"].value == pytest.approx(wanted["loss"], rel=1e-5)
    assert result["token_accuracy"].value == pytest.approx(wanted["accuracy"], rel=1e-12)
    assert result["top5_accuracy"].value == pytest.approx(wanted["top5"], rel=1e-12)
    assert 0 <= wanted["accuracy"] < wanted["top5"] < 1
    assert (frames[0]["expected_count"], frames[0]["scored_count"], frames[0]["failed_count"]) == (1, 1, 0)


@pytest.fixture(scope="module")
def model(work: Path) -> Path:
    return write_tiny_llama(work / "model", seed=0)


@pytest.fixture(scope="module")
def lines(work: Path) -> Path:
    path = work / "lines.txt"
    path.write_text(LINES, encoding="utf-8")
    return path


def test_lines_of_many_lengths(runner: Runner, work: Path, model: Path, lines: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    documents = [line for line in LINES.split("\n") if line]
    wanted = expected(tiny_llama_config(), model, documents, 64)
    for batch_tokens in (64, 100, 4096):
        settings = {"max_length": 64, "batch_tokens": batch_tokens}
        frames = runner.evaluate(manifest, blobs, [language_modeling(lines, settings=settings)])
        state = scored(frames)
        assert state.result()["loss"].value == pytest.approx(wanted["loss"], rel=1e-5)
        assert state.result()["token_accuracy"].value == pytest.approx(wanted["accuracy"], rel=1e-12)
        assert state.counts()["documents"] == frames[0]["expected_count"] == 4


def test_without_prefix_the_first_token_is_not_scored(runner: Runner, work: Path, model: Path, lines: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    counts = [
        scored(runner.evaluate(manifest, blobs, [language_modeling(lines, settings={"prefix": prefix})])).counts()
        for prefix in ("auto", "none")
    ]
    assert counts[0]["tokens"] - counts[1]["tokens"] == 4
    assert counts[0]["bytes"] == counts[1]["bytes"]


def test_token_ids_are_scored_like_their_text(runner: Runner, work: Path, model: Path, lines: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    rows = [tokenizer.encode(line, add_special_tokens=False).ids for line in LINES.split("\n") if line]
    padded = np.full((len(rows), 200), 258)
    for row, ids in enumerate(rows):
        # Padding at either end must not change a number.
        start = 7 if row % 2 else 0
        padded[row, start : start + len(ids)] = ids
    buffer = io.BytesIO()
    np.save(buffer, padded)
    path = work / "tokens.npy"
    path.write_bytes(buffer.getvalue())
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    as_text = scored(runner.evaluate(manifest, blobs, [language_modeling(lines)]))
    task = language_modeling(path, format="tokens_npy", padding_token=258)
    as_tokens = scored(runner.evaluate(manifest, blobs, [task]))
    assert as_tokens.result()["loss"].value == pytest.approx(as_text.result()["loss"].value, rel=1e-12)


def test_a_second_checkpoint_compiles_nothing_and_the_first_gives_the_same_bits_again(
    runner: Runner, work: Path, model: Path, lines: Path
) -> None:
    task = language_modeling(lines, settings={"max_length": 96})
    losses, statistics = [], []
    other = write_tiny_llama(work / "other", seed=1)
    for folder in (model, other, model):
        manifest, blobs = checkpoint_manifest(folder, work / "blobs")
        frames = runner.evaluate(manifest, blobs, [task])
        losses.append(scored(frames).result()["loss"].value)
        statistics.append(frames[-1]["statistics"])
    assert losses[0] == losses[2]
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)
    assert [s["compiled_graphs"] for s in statistics[1:]] == [0, 0]
    assert all(s["warm"] for s in statistics[1:])
    assert all(s["compile_seconds"] == 0 for s in statistics[1:])


def test_a_training_checkpoint_with_optimizer_state_in_half_precision(
    runner: Runner, work: Path, model: Path, lines: Path
) -> None:
    tensors = load_file(model / "model.safetensors")
    half = {name: array.astype(np.float16) for name, array in tensors.items()}
    folder = write_tiny_llama(work / "half")
    exact = {name: array.astype(np.float32) for name, array in half.items()}
    state = {f"adam_m.{name}": array for name, array in exact.items()} | {"global_step": np.zeros(1, dtype=np.int32)}
    losses = []
    for content in (exact, half | state):
        (folder / "model.safetensors").unlink()
        save_file(content, folder / "model.safetensors")
        manifest, blobs = checkpoint_manifest(folder, work / "blobs")
        frames = runner.evaluate(manifest, blobs, [language_modeling(lines)])
        losses.append(scored(frames).result()["loss"].value)
    assert losses[0] == losses[1]


def test_an_overflowing_model_is_reported_with_flags(runner: Runner, work: Path, model: Path, lines: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = np.full_like(tensors["lm_head.weight"], 3e38)
    folder = write_tiny_llama(work / "overflow")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors")
    manifest, blobs = checkpoint_manifest(folder, work / "blobs")
    result = scored(runner.evaluate(manifest, blobs, [language_modeling(lines)])).result()
    assert "non_finite" in result["loss"].flags
    assert np.isnan(result["loss"].value)
    assert result["token_accuracy"].value == result["top5_accuracy"].value == 0


def test_top_five_is_computed_only_when_asked_for(runner: Runner, work: Path, model: Path, lines: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    state = scored(runner.evaluate(manifest, blobs, [language_modeling(lines, metrics=["loss"])]))
    assert "no_top5" in state.result()["top5_accuracy"].flags


def test_the_signature_records_what_changes_the_value(runner: Runner, work: Path, model: Path, lines: Path) -> None:
    manifest, blobs = checkpoint_manifest(model, work / "blobs")
    state = scored(runner.evaluate(manifest, blobs, [language_modeling(lines, settings={"max_length": 64})]))
    assert "max_length:64|stride:64|prefix:bos|add_special_tokens:False" in state.signature()
