"""A few samples for each family of this package, made to be hard: what `mindeval metrics check` replays.

Magnitudes differ so much that a sum in another order is another number; some samples share a group; texts are blank,
long, repeated and Chinese.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

_SAMPLES = 9
_IDS = [f"sample-{k}" for k in range(_SAMPLES)]
_GROUPS = [f"group-{k % 4}" for k in range(_SAMPLES)]
_MAGNITUDES = np.array([1e-8, 1.0, 1e8])


@dataclass(frozen=True)
class Example:
    """Keyword arguments of one update, and the settings that they fit."""

    batch: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _language_modeling() -> Example:
    generator = _generator()
    sizes = generator.integers(1, 9, _SAMPLES)
    first = np.arange(_SAMPLES) % 3 == 0
    return Example(
        {
            "document_ids": [f"document-{k // 3}" for k in range(_SAMPLES)],
            "window_indices": [k % 3 for k in range(_SAMPLES)],
            "token_nll": [generator.exponential(generator.choice(_MAGNITUDES), size) for size in sizes],
            "token_correct": [generator.random(size) < 0.5 for size in sizes],
            "token_top5": None,
            "words": np.where(first, 11, 0).tolist(),
            "utf8_bytes": np.where(first, 60, 0).tolist(),
        }
    )


def _multiple_choice() -> Example:
    generator = _generator()
    scale = generator.choice(_MAGNITUDES, _SAMPLES)
    return Example(
        {
            "sample_ids": _IDS,
            "choice_logprobs": [list(-generator.exponential(s, 3)) for s in scale],
            "unconditional_logprobs": [list(-generator.exponential(s, 3)) for s in scale],
            "choices": [["yes", "no", "也许"]] * _SAMPLES,
            "labels": generator.integers(0, 3, _SAMPLES).tolist(),
            "groups": _GROUPS,
        }
    )


def _labels(generator: np.random.Generator) -> dict[str, Any]:
    return {
        "labels": generator.integers(0, 3, _SAMPLES).tolist(),
        "scores": generator.dirichlet(np.full(3, 0.2), _SAMPLES),
    }


def _classification() -> Example:
    return Example({"sample_ids": _IDS, **_labels(_generator()), "groups": _GROUPS}, {"labels": [0, 1, 2]})


def _classification_bounded() -> Example:
    # Few enough of them are kept for the exact area that both of its forms are replayed.
    settings = {"labels": [0, 1, 2], "exact_samples": 5, "score_bins": 64}
    return Example({"ordinals": np.arange(_SAMPLES) * 7, **_labels(_generator())}, settings)


def _multilabel() -> Example:
    generator = _generator()
    return Example(
        {
            "sample_ids": _IDS,
            "labels": generator.random((_SAMPLES, 3)) < 0.4,
            "predictions": generator.random((_SAMPLES, 3)) < 0.4,
            "scores": generator.random((_SAMPLES, 3)),
            "groups": _GROUPS,
        },
        {"labels": ["red", "green", "蓝"]},
    )


def _generation() -> Example:
    predictions = [
        "",
        "the cat sat.\nOn a mat",
        "猫坐在垫子上",
        "a b c d e",
        "the the the the",
        "no",
        "x" * 500,
        "é",
        "a b",
    ]
    references = [
        "a cat",
        ["the cat sat", "on a mat.\nIt sat"],
        "一只猫坐在垫子上",
        "a b c d e",
        "the",
        "yes",
        "x",
        "e",
        "b a",
    ]
    return Example(
        {"sample_ids": _IDS, "predictions": predictions, "references": references, "groups": _GROUPS},
        {"language": "mixed", "bootstrap_replicates": 10},
    )


def _image_text() -> Example:
    generator = _generator()
    owners = np.arange(_SAMPLES) % 5
    return Example(
        {
            "sample_ids": _IDS,
            "image_ids": [f"image-{k}" for k in owners],
            "image_embeddings": generator.normal(size=(5, 4))[owners],
            "text_embeddings": generator.normal(size=(_SAMPLES, 4)),
        },
        {"dimension": 4},
    )


def _image_text_matching() -> Example:
    generator = _generator()
    return Example(
        {"sample_ids": _IDS, "matches": generator.random(_SAMPLES) < 0.5, "scores": generator.random(_SAMPLES)}
    )


def _image_quality() -> Example:
    generator = _generator()
    images, references = (list(generator.integers(0, 256, (_SAMPLES, 8, 9))) for _ in range(2))
    return Example({"sample_ids": _IDS, "images": images, "references": references, "groups": _GROUPS})


def _frechet() -> Example:
    features = _generator().normal(size=(_SAMPLES, 2))
    return Example(
        {"sample_ids": _IDS, "features": features, "generated": np.arange(_SAMPLES) % 2 == 0}, {"dimension": 2}
    )


def _generator() -> np.random.Generator:
    return np.random.default_rng(0)


EXAMPLES: Mapping[str, Callable[[], Example]] = MappingProxyType(
    {
        "language_modeling": _language_modeling,
        "multiple_choice": _multiple_choice,
        "classification": _classification,
        "classification_bounded": _classification_bounded,
        "multilabel_classification": _multilabel,
        "generation": _generation,
        "image_text": _image_text,
        "image_text_matching": _image_text_matching,
        "image_quality": _image_quality,
        "frechet": _frechet,
    }
)
