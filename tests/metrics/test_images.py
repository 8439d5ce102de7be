"""Image-text retrieval and matching, image quality against scikit-image, Fréchet distance against SciPy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from mindeval.service.metrics import MetricInputError, MetricStateError, create, metric_names


def retrieval(images: Any, texts: Any, owners: list[str] | None = None, **options: Any) -> Any:
    state = create("image_text", {"dimension": np.shape(images)[1], **options})
    state.update(
        sample_ids=[f"c{k:04d}" for k in range(len(texts))],
        image_ids=owners or [f"i{k:04d}" for k in range(len(texts))],
        image_embeddings=images,
        text_embeddings=texts,
    )
    return state


def test_ranks_and_recalls_by_their_definition() -> None:
    generator = np.random.default_rng(0)
    images = generator.normal(size=(40, 16))
    texts = images + generator.normal(size=(40, 16)) * 1.5
    state = retrieval(images, texts)
    result = state.result(metric_names("image_text"))
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (images.astype(np.float32), texts.astype(np.float32))]
    cosines = unit[0].astype(float) @ unit[1].astype(float).T
    for way, matrix in (("image_to_text", cosines), ("text_to_image", cosines.T)):
        ranks = (matrix >= np.diag(matrix)[:, None]).sum(axis=1)
        assert state.ranks(way).tolist() == ranks.tolist()
        for k in (1, 5, 10):
            assert result[f"{way}_recall@{k}"].value == (ranks <= k).mean()
        assert result[f"{way}_mean_rank"].value == ranks.mean()
        assert result[f"{way}_median_rank"].value == np.median(ranks)
    assert result["cosine"].value == pytest.approx(np.diag(cosines).mean(), abs=1e-6)
    assert result["clip_score"].value == pytest.approx(2.5 * np.maximum(np.diag(cosines), 0).mean(), abs=1e-6)
    assert result["text_to_image_mean_rank"].higher_is_better is False


def test_published_matrix_gives_perfect_recall(data: Path) -> None:
    expected = json.loads((data / "img_clip_skimage" / "expected.json").read_text(encoding="utf-8"))
    matrix = np.array(next(value for value in expected.values() if np.shape(value) == (7, 7)), dtype=float)
    # Unit embeddings with these inner products: images are the axes, texts the columns, completed to length 1.
    rest = np.sqrt(1 - (matrix**2).sum(axis=0))
    images = np.concatenate([np.eye(7), np.zeros((7, 1))], axis=1)
    texts = np.concatenate([matrix, rest[None, :]], axis=0).T
    result = retrieval(images, texts).result()
    assert result["image_to_text_recall@1"].value == result["text_to_image_recall@1"].value == 1.0
    assert result["cosine"].value == pytest.approx(np.diag(matrix).mean(), abs=1e-6)


def test_several_captions_of_an_image() -> None:
    images = np.eye(3)[[0, 0, 1, 2]]
    texts = np.array([[1, 0, 0], [0, 1, 0.1], [0, 1, 0], [0, 0, 1.0]])
    state = retrieval(images, texts, ["a", "a", "b", "c"])
    result = state.result()
    assert state.counts() == {"samples": 4, "images": 3}
    assert result["text_to_image_recall@1"].value == 0.75
    assert result["image_to_text_recall@1"].value == 1.0  # image a finds its first caption
    assert result["image_to_text_recall@1"].count == 3
    assert result["text_to_image_recall@1"].standard_error_method == "mean_by_group"


def test_a_collapsed_model_finds_nothing() -> None:
    state = retrieval(np.ones((20, 4)), np.ones((20, 4)))
    assert state.result()["text_to_image_recall@10"].value == 0.0
    assert state.result()["text_to_image_mean_rank"].value == 20


def test_strange_embeddings_are_flagged_or_refused() -> None:
    zero = retrieval([[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]])
    assert zero.result()["cosine"].flags == ("zero_vector",)
    bad = retrieval([[math.nan, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]])
    assert bad.result()["cosine"].flags == ("non_finite",)
    with pytest.raises(MetricStateError) as caught:
        retrieval([[1.0, 0.0], [0.0, 1.0]], np.ones((2, 2)), ["same", "same"]).result()
    assert caught.value.reason == "conflicting_image"
    with pytest.raises(MetricInputError):
        retrieval(np.ones((2, 3)), np.ones((2, 4)))


def test_matching_accuracy() -> None:
    state = create("image_text_matching")
    scores = [0.9, 0.2, 0.6, math.nan]
    state.update(sample_ids=["a", "b", "c", "d"], matches=[True, False, False, True], scores=scores)
    value = state.result()["image_text_matching_accuracy"]
    assert (value.value, value.flags) == (0.5, ("non_finite",))
    with pytest.raises(MetricInputError) as caught:
        state.update(sample_ids=["x"], matches=[1], scores=[0.5])
    assert caught.value.sample_id == "x"


@pytest.mark.parametrize("shape", [(32, 40), (32, 40, 3)])
@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_psnr_and_ssim_equal_scikit_image(shape: tuple[int, ...], kind: str) -> None:
    reference = pytest.importorskip("skimage.metrics")
    generator = np.random.default_rng(1)
    left = generator.integers(0, 256, shape).astype(np.uint8)
    right = np.clip(left + generator.normal(0, 20, shape), 0, 255).astype(np.uint8)
    data_range = 255.0
    if kind == "float":
        left, right, data_range = left / 255, right / 255, 1.0
    state = create("image_quality", {"data_range": data_range})
    state.update(sample_ids=["a"], images=[left], references=[right])
    result = state.result()
    want = reference.structural_similarity(
        left, right, data_range=data_range, channel_axis=2 if len(shape) == 3 else None
    )
    assert result["ssim"].value == pytest.approx(want, abs=1e-12)
    want = reference.peak_signal_noise_ratio(right, left, data_range=data_range)
    assert result["psnr"].value == pytest.approx(want, rel=1e-12)


def test_image_quality_of_odd_images() -> None:
    state = create("image_quality")
    image = np.zeros((8, 8))
    state.update(sample_ids=["a"], images=[image], references=[image])
    assert state.result()["psnr"].flags == ("identical",)
    assert state.result()["ssim"].value == 1.0
    state.update(sample_ids=["b"], images=[image], references=[np.full((8, 8), math.nan)])
    assert state.result()["ssim"].flags == ("non_finite",)
    for bad in (np.zeros((3, 3)), np.zeros((8, 9)), np.zeros(8), np.array(["x"])):
        with pytest.raises(MetricInputError) as caught:
            state.update(sample_ids=["c"], images=[bad], references=[image])
        assert caught.value.sample_id == "c"


def test_frechet_distance_equals_the_closed_form() -> None:
    generator = np.random.default_rng(2)
    real = generator.normal(size=(200, 12)) @ generator.normal(size=(12, 12))
    made = generator.normal(0.3, 1.2, size=(150, 12))
    state = create("frechet", {"dimension": 12})
    state.update(
        sample_ids=[f"s{k}" for k in range(350)],
        features=np.concatenate([real, made]),
        generated=[False] * 200 + [True] * 150,
    )
    got = state.result()["frechet_distance"]
    real, made = real.astype(np.float32).astype(float), made.astype(np.float32).astype(float)
    first, second = np.cov(real, rowvar=False), np.cov(made, rowvar=False)
    gap = real.mean(axis=0) - made.mean(axis=0)
    want = gap @ gap + np.trace(first + second - 2 * linalg.sqrtm(first @ second).real)
    assert got.value == pytest.approx(want, rel=1e-9)
    assert got.count == 150
    few = create("frechet", {"dimension": 2}).result()["frechet_distance"]
    assert (math.isnan(few.value), few.flags) == (True, ("too_few", "empty"))


def batches(seed: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(2, 12))
    ids = [f"s{k}" for k in range(size)]
    images = generator.normal(size=(size, 4))
    owners = generator.integers(0, 4, size)
    return {
        "image_text": (
            {"dimension": 4},
            {
                "sample_ids": ids,
                "image_ids": [f"i{k}" for k in owners],
                "image_embeddings": images[owners % size],
                "text_embeddings": generator.normal(size=(size, 4)),
            },
        ),
        "image_text_matching": (
            {},
            {"sample_ids": ids, "matches": generator.random(size) < 0.5, "scores": generator.random(size)},
        ),
        "image_quality": (
            {},
            {
                "sample_ids": ids,
                "images": list(generator.integers(0, 255, (size, 8, 9))),
                "references": list(generator.integers(0, 255, (size, 8, 9))),
            },
        ),
        "frechet": (
            {"dimension": 3},
            {
                "sample_ids": ids,
                "features": generator.normal(size=(size, 3)),
                "generated": generator.random(size) < 0.5,
            },
        ),
    }


@pytest.mark.parametrize("family", ["image_text", "image_text_matching", "image_quality", "frechet"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_any_way_of_arriving_gives_the_same_bits(assert_exact: Callable[..., None], family: str, seed: int) -> None:
    options, batch = batches(seed)[family]
    assert_exact(family, options, batch, names=metric_names(family), trials=1, seed=seed)
