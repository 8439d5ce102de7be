"""A real model and real text: the published reference values (shared/data/smollm2/REFERENCE.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.models import checkpoint_manifest
from tests.support.runner_driver import Runner, language_modeling
from tests.support.smollm2 import shared_folder, smollm2_folder

from mindeval.formats.manifest import Manifest
from mindeval.service.metrics import state_from_dict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Row:
    """One row of the reference table."""

    file: str
    lines: int
    max_length: int
    tokens: int
    words: int
    utf8_bytes: int
    nll: float
    values: dict[str, float]


ROWS = {
    "english_1024": Row(
        "lm_wikitext2_valid/valid.txt", 60, 1024, 3248, 2444, 12475, 8789.35339,
        {
            "loss": 2.70608171, "token_ppl": 14.9705017, "word_ppl": 36.4630144, "byte_ppl": 2.02295110,
            "bits_per_byte": 1.01646145, "token_accuracy": 0.47598522,
        },
    ),
    "chinese_512": Row(
        "lm_zh_lunyu/lunyu.txt", 60, 512, 3611, 61, 6361, 10640.73898,
        {
            "loss": 2.94675685, "token_ppl": 19.0440906, "byte_ppl": 5.32711144, "bits_per_byte": 2.41335346,
            "token_accuracy": 0.34976461,
        },
    ),
    "english_512": Row(
        "lm_wikitext2_valid/valid.txt", 200, 512, 15340, 11439, 59564, 45148.4484,
        {
            "loss": 2.94318438, "token_ppl": 18.9761776, "word_ppl": 51.7739799, "byte_ppl": 2.13396584,
            "bits_per_byte": 1.09353708, "token_accuracy": 0.45071708,
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(work: Path) -> tuple[Manifest, dict[str, Path]]:
    return checkpoint_manifest(smollm2_folder(), work / "blobs")


@pytest.mark.parametrize("name", ROWS)
def test_reference_values(runner: Runner, work: Path, checkpoint: tuple[Manifest, dict[str, Path]], name: str) -> None:
    row = ROWS[name]
    data = work / f"{name}.txt"
    lines = (shared_folder() / "data" / row.file).read_bytes().splitlines(keepends=True)
    data.write_bytes(b"".join(lines[: row.lines]))
    runner.connection.settimeout(600)
    task = language_modeling(
        data, format="text", settings={"max_length": row.max_length}, metrics=["loss", "token_accuracy"]
    )
    frames = runner.evaluate(*checkpoint, [task])
    assert [frame["type"] for frame in frames] == ["task_result", "finished"], frames
    statistics = frames[-1]["statistics"]
    print(f"{name}: {row.tokens / statistics['compute_seconds']:.0f} tokens/s, {statistics}")
    state = state_from_dict(frames[0]["state"])
    counts = state.counts()  # type: ignore[attr-defined]
    assert (counts["tokens"], counts["words"], counts["bytes"]) == (row.tokens, row.words, row.utf8_bytes)
    result = state.result()
    assert result["loss"].value * row.tokens == pytest.approx(row.nll, rel=1e-4)
    for metric, value in row.values.items():
        tolerance = {"abs": 2e-3} if metric == "token_accuracy" else {"rel": 1e-4}
        print(f"  {metric}: {result[metric].value:.8f} (reference {value})")
        assert result[metric].value == pytest.approx(value, **tolerance)
