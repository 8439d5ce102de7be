"""What one rank of `test_msrun.py` runs: its shards of several families through MindSpore's collectives.

msrun ... rank_main.py OUT_FOLDER graph|pynative
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mindeval.service.metrics import MetricState, create
from mindeval.service.metrics.checking import bits, select

SAMPLES = 8
# How many of the samples each rank has; with 3 ranks one of the layouts leaves the middle one empty.
LAYOUTS = {2: {"uneven": (6, 2), "one_empty": (0, 8)}, 3: {"uneven": (5, 1, 2), "one_empty": (3, 0, 5)}}
METHODS = ("all_reduce", "gather")
Family = tuple[str, dict[str, Any], dict[str, Any]]


def families() -> list[Family]:
    """Name, settings and one batch of `SAMPLES` samples of each family."""
    generator = np.random.default_rng(0)
    ids = [f"样本-{k}" for k in range(SAMPLES)]
    labels = generator.integers(0, 3, SAMPLES)
    scores = generator.dirichlet(np.ones(3), SAMPLES)
    lengths = generator.integers(1, 9, SAMPLES)
    words = ["the", "cat", "sat", "on", "a", "mat", "猫"]
    texts = [" ".join(generator.choice(words, 12)) for _ in range(2 * SAMPLES)]
    return [
        (
            "language_modeling",
            {"max_length": 512},
            {
                "document_ids": [f"d{k // 3}" for k in range(SAMPLES)],
                "window_indices": [k % 3 for k in range(SAMPLES)],
                # Magnitudes so far apart that a sum in another order is another number.
                "token_nll": [generator.exponential(10.0 ** generator.integers(-8, 9), size) for size in lengths],
                "token_correct": [generator.random(size) < 0.5 for size in lengths],
                "words": [7 if k % 3 == 0 else 0 for k in range(SAMPLES)],
                "utf8_bytes": [31 if k % 3 == 0 else 0 for k in range(SAMPLES)],
            },
        ),
        ("classification", {"labels": [0, 1, 2]}, {"sample_ids": ids, "labels": labels, "scores": scores}),
        (
            "generation",
            {"language": "mixed", "bootstrap_replicates": 20},
            {"sample_ids": ids, "predictions": texts[:SAMPLES], "references": texts[SAMPLES:]},
        ),
        (
            "classification_bounded",
            {"labels": [0, 1, 2]},
            {"ordinals": np.arange(SAMPLES) * 3_000_000_019, "labels": labels, "scores": scores},
        ),
        (
            "image_text",
            {"dimension": 6},
            {
                "sample_ids": ids,
                "image_ids": [f"i{k}" for k in range(SAMPLES)],
                "image_embeddings": generator.normal(size=(SAMPLES, 6)),
                "text_embeddings": generator.normal(size=(SAMPLES, 6)),
            },
        ),
    ]


def shard(family: Family, counts: tuple[int, ...], rank: int) -> MetricState:
    """The state of one rank."""
    name, settings, batch = family
    start = sum(counts[:rank])
    state = create(name, settings)
    if counts[rank]:
        state.update(**select(batch, range(start, start + counts[rank])))
    return state


def fingerprint(state: MetricState) -> dict[str, Any]:
    """Every bit of a state and of its results, as JSON-able data."""
    found = bits(state.result())
    return {"state": state.to_bytes().hex(), "results": {name: repr(value) for name, value in found.items()}}


def main(folder: Path, mode: str) -> None:
    import mindspore as ms
    from mindspore.communication import init

    from mindeval.service.runtime.collectives import collective

    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init()
    found = {}
    for method in METHODS:
        ranks = collective("cpu", method)
        for layout, counts in LAYOUTS[ranks.world].items():
            for family in families():
                own = shard(family, counts, ranks.rank)
                found[f"{family[0]}/{layout}/{method}"] = fingerprint(ranks.merged(own))
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
