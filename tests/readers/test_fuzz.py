"""Mutated real files: only FormatError ever comes out, and memory stays bounded. MINDEVAL_FUZZ_S sets the seconds."""

from __future__ import annotations

import os
import random
import time
import tracemalloc

import pytest

from mindeval.formats.errors import FormatError
from mindeval.formats.readers import (
    assemble,
    iter_bytes,
    iter_record_bytes,
    open_tensors,
    read_strategy,
    verify_crc,
)

SECONDS = float(os.environ.get("MINDEVAL_FUZZ_S", "5"))
MAX_MEMORY_BYTES = 16 << 20
REASONS = {"CHECKPOINT_UNREADABLE", "CHECKPOINT_TRUNCATED", "CHECKPOINT_CORRUPT"}
EXTREMES = [
    b"\xff" * 10,
    b"\x80" * 9 + b"\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff\xff\xff\xff\x07",
    b"\x00",
    b"\x80",
    b"\x0a",
]


def mutate(data: bytes, chosen: random.Random) -> bytes:
    """One to four changes, most of them near a length or a name."""
    mutated = bytearray(data)
    for _ in range(chosen.randint(1, 4)):
        at = (
            chosen.randrange(min(len(mutated), 4000) or 1)
            if chosen.random() < 0.7
            else chosen.randrange(len(mutated) or 1)
        )
        kind = chosen.randrange(7)
        if kind == 0 and mutated:
            mutated[at] ^= 1 << chosen.randrange(8)
        elif kind == 1 and mutated:
            mutated[at] = chosen.randrange(256)
        elif kind == 2:
            del mutated[at : at + chosen.choice([1, 2, 7, 100, len(mutated)])]
        elif kind == 3:
            mutated[at:at] = chosen.choice(EXTREMES)
        elif kind == 4:
            extreme = chosen.choice(EXTREMES)
            mutated[at : at + len(extreme)] = extreme
        elif kind == 5:
            begin = chosen.randrange(len(mutated) or 1)
            mutated[at:at] = mutated[begin : begin + chosen.choice([3, 20, 300])]
        elif mutated:
            mutated = mutated[: chosen.randrange(len(mutated))]
    return bytes(mutated)


def read_all(path) -> None:
    file = open_tensors(path)
    verify_crc(file)
    for tensor in file.tensors:
        assert sum(map(len, iter_record_bytes(tensor))) == tensor.size_bytes


def fuzz(seeds, path, seconds, use) -> tuple[int, int]:
    chosen = random.Random(os.environ.get("MINDEVAL_FUZZ_SEED", "11"))
    tried = refused = 0
    tracemalloc.start()
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            path.write_bytes(mutate(chosen.choice(seeds), chosen))
            tried += 1
            try:
                use(path)
            except FormatError as error:
                refused += 1
                assert error.reason in REASONS
                assert error.metadata
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY_BYTES
    finally:
        tracemalloc.stop()
    print(f"{path.name}: {tried} files, {refused} refused")
    return tried, refused


@pytest.mark.parametrize("ending", ["ckpt", "safetensors"])
def test_checkpoints(made, tmp_path, ending):
    names = ["plain", "appended"] + (["crc", "split_async"] if ending == "ckpt" else [])
    seeds = [(made / f"{name}.{ending}").read_bytes() for name in names]
    tried, refused = fuzz(seeds, tmp_path / f"fuzz.{ending}", SECONDS * 0.3, read_all)
    assert tried > 20
    assert refused > tried // 4


def test_strategies(made, tmp_path):
    seeds = [(made / name).read_bytes() for name in ("strategy.ckpt", "stages_merged.ckpt")]
    files = {rank: made / "ranks_ckpt" / f"rank_{rank}" / "net.ckpt" for rank in range(8)}

    def use(path) -> None:
        strategy = read_strategy([path])
        for tensor in assemble({r: f for r, f in files.items() if r < strategy.ranks}, strategy):
            assert sum(map(len, iter_bytes(tensor))) == tensor.size_bytes

    tried, refused = fuzz(seeds, tmp_path / "strategy.ckpt", SECONDS * 0.4, use)
    assert tried > 20
    assert refused > tried // 4
