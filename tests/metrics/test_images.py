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
from mindeval.service.metrics.estimators import Median
from mindeval.service.metrics.frechet import frechet_distance, frechet_effects


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


def frechet(real: Any, made: Any) -> Any:
    state = create("frechet", {"dimension": real.shape[1]})
    state.update(
        sample_ids=[f"s{k}" for k in range(len(real) + len(made))],
        features=np.concatenate([real, made]),
        generated=[False] * len(real) + [True] * len(made),
    )
    return state


def test_the_error_of_a_frechet_distance_is_its_spread_over_draws() -> None:
    generator = np.random.default_rng(3)
    mixing = generator.normal(size=(3, 3))
    values, errors = [], []
    for _ in range(150):
        state = frechet(generator.normal(size=(400, 3)), generator.normal(0.4, 1.0, (300, 3)) @ mixing)
        distance = state.result()["frechet_distance"]
        values.append(distance.value)
        errors.append(distance.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.15)
    assert distance.standard_error_method == "linearized_by_sample"


def test_effects_on_a_frechet_distance_are_its_derivative() -> None:
    generator = np.random.default_rng(4)
    real, made = generator.normal(size=(30, 3)), generator.normal(0.5, 2.0, (20, 3))
    effects = frechet_effects(real, made)
    assert effects is not None
    assert [side.sum() for side in effects] == pytest.approx([0, 0], abs=1e-9)
    # To add a copy of a row is to raise its weight by about 1/n; 200 copies of every row keep n - 1 near n.
    many = np.repeat(real, 200, axis=0), np.repeat(made, 200, axis=0)
    whole = frechet_distance(*many)
    for k in (0, 7):
        for side, rows in enumerate((real, made)):
            more = list(many)
            more[side] = np.concatenate([many[side], rows[k : k + 1]])
            assert (frechet_distance(*more) - whole) * 200 == pytest.approx(effects[side][k], rel=0.05, abs=0.005)


def test_singular_features_have_a_distance_and_no_error() -> None:
    generator = np.random.default_rng(5)
    few = frechet(generator.normal(size=(4, 4)), generator.normal(size=(9, 4))).result()["frechet_distance"]
    flat = generator.normal(size=(40, 4))
    flat[:, 3] = 2 * flat[:, 0]
    level = frechet(flat, generator.normal(size=(40, 4))).result()["frechet_distance"]
    for distance in (few, level):
        assert distance.value > 0
        assert distance.standard_error is None
        assert distance.flags == ("singular",)


def test_the_error_of_a_median_rank_is_its_spread_over_draws() -> None:
    generator = np.random.default_rng(6)
    values, errors = [], []
    for _ in range(40):
        images = generator.normal(size=(120, 8))
        state = retrieval(images, images + generator.normal(size=(120, 8)) * 2.5)
        median = state.result(["text_to_image_median_rank"])["text_to_image_median_rank"]
        values.append(median.value)
        errors.append(median.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.4)
    assert median.standard_error_method == "bootstrap_by_group"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_weighted_medians_are_medians_of_repeated_values(values: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    places = generator.permutation(len(values) + 2)[: len(values)]
    weights = generator.integers(0, 4, (5, len(values) + 2))
    weights[:, places[0]] += 1
    median = Median(len(values), np.array(values), places, len(values) + 2)
    wanted = [np.median(np.repeat(values, row[places])) for row in weights]
    assert median.resampled(weights.astype(np.float64)) == wanted
    assert median.value() == np.median(values)


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
