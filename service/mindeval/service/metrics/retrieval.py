"""Image-text retrieval from embeddings, and image-text matching from scores. Exact over samples.

Ranks need every embedding, so the retrieval state keeps them: its memory grows with the data set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.errors import MetricInputError, MetricStateError
from mindeval.service.metrics.estimators import Constant, Estimator, Given, Mean, Median
from mindeval.service.metrics.exact import FloatArray, IntArray
from mindeval.service.metrics.settings import Settings, check_int, check_number
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState

_BLOCK = 1024
# Cosines of equal embeddings may differ by rounding, which must not break a tie in either direction.
_TIE = 1e-12
_WAYS = ("image_to_text", "text_to_image")


@dataclass(frozen=True)
class RetrievalSettings(Settings):
    """Settings of image-text retrieval.

    Attributes:
        dimension: Length of the embeddings.
        clip_scale: What `clip_score` multiplies max(cosine, 0) by (2.5 in Hessel et al. 2021).
    """

    dimension: int = 512
    clip_scale: float = 2.5

    def __post_init__(self) -> None:
        """Check the values."""
        check_int("dimension", self.dimension, low=1, high=1 << 20)
        check_number("clip_scale", self.clip_scale, low=0)


class RetrievalState(TableState):
    """Embeddings of captions with those of their images.

    A sample is one caption; its group is its image, so an image may have several captions. Ranks start at 1, and ties
    count against: a model that maps everything to one point finds nothing.

    Metrics: `text_to_image_recall@1`, `@5`, `@10` (the caption's image is among the k nearest images) and
    `text_to_image_mean_rank`, `_median_rank`; the same `image_to_text` (for each image, the rank of its nearest own
    caption); `cosine` (mean over captions, with their images); `clip_score` (mean of scale * max(cosine, 0)).

    Flags: `zero_vector` (an embedding has length 0; its cosines are 0); `non_finite` (an embedding holds NaN or
    infinity: all values are nan).
    """

    family: ClassVar[str] = "image_text"
    settings_type = RetrievalSettings
    settings: RetrievalSettings

    def _columns(self) -> Sequence[Column]:
        size = self.settings.dimension
        return (Column("image", "float32", size), Column("text", "float32", size))

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        image_ids: Sequence[str],
        image_embeddings: npt.NDArray[Any] | Sequence[Any],
        text_embeddings: npt.NDArray[Any] | Sequence[Any],
    ) -> None:
        """Add captions with their images.

        Args:
            sample_ids: n ids of captions.
            image_ids: n ids of the images that the captions describe.
            image_embeddings: Shape (n, dimension); the same row for each caption of an image. Kept as float32.
            text_embeddings: Shape (n, dimension).

        Raises:
            MetricInputError: A shape is wrong (`length_mismatch`), an image id is empty (`invalid_group`), or a
                caption repeats with other content (`conflicting_repeat`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), image_ids=image_ids, image_embeddings=image_embeddings, text_embeddings=text_embeddings)
        images = group_list(image_ids) or []
        if not all(images):
            raise MetricInputError("an image id is empty", reason="invalid_group")
        arrays = {
            "image": _embeddings(image_embeddings, len(ids), self.settings.dimension, "image_embeddings"),
            "text": _embeddings(text_embeddings, len(ids), self.settings.dimension, "text_embeddings"),
        }
        self._table.add(ids, arrays, images)

    def counts(self) -> dict[str, int]:
        """Captions and images."""
        rows = self._table.rows()
        return {"samples": len(rows), "images": len(set(rows.groups))}

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        if not len(rows):
            return {name: Constant(0, math.nan) for name in names}
        if not (np.isfinite(rows["image"]).all() and np.isfinite(rows["text"]).all()):
            return {name: Constant(len(rows), math.nan, flags=("non_finite",)) for name in names}
        images, texts = _unit(rows["image"]), _unit(rows["text"])
        flags = () if images.any(axis=1).all() and texts.any(axis=1).all() else ("zero_vector",)
        first, owner = _images(rows)
        cosines: FloatArray = (images * texts).sum(axis=1)
        ranks = _ranks(images[first], texts, owner) if any("_to_" in name for name in names) else {}
        found: dict[str, Estimator] = {}
        for name in names:
            if name == "cosine":
                found[name] = Mean(len(rows), cosines, flags=flags)
            elif name == "clip_score":
                found[name] = Mean(len(rows), self.settings.clip_scale * np.maximum(cosines, 0.0), flags=flags)
            else:
                way = next(way for way in _WAYS if name.startswith(way))
                found[name] = _rank_estimator(name[len(way) + 1 :], ranks[way], first, owner, flags)
        return found

    def ranks(self, way: str) -> IntArray:
        """Ranks from 1, for captions (`text_to_image`, by id) or images (`image_to_text`, by their first caption)."""
        rows = self._table.rows()
        first, owner = _images(rows)
        return _ranks(_unit(rows["image"])[first], _unit(rows["text"]), owner)[way]


def _rank_estimator(kind: str, ranks: IntArray, first: IntArray, owner: IntArray, flags: tuple[str, ...]) -> Estimator:
    count = int(ranks.size)
    if kind == "median_rank":
        # Images are drawn whole, so an image occurs as often as its first caption.
        places = np.arange(owner.size) if count == owner.size else first
        return Median(count, ranks, places, int(owner.size), flags=flags)
    values = ranks if kind == "mean_rank" else (ranks <= int(kind.partition("@")[2])).astype(np.int64)
    if count == owner.size:
        return Mean(count, values, flags=flags)
    # One value an image: its effect belongs to the image's cluster, and is put on the image's captions in equal parts.
    mean = Mean(count, values)
    effects = mean.influence()
    shares = None if effects is None else effects[owner] / np.bincount(owner)[owner]
    return Given(count, mean.value(), shares, flags=flags)


def _images(rows: Rows) -> tuple[IntArray, IntArray]:
    """Row of each image's first caption, and each caption's image, in order of first captions.

    Raises:
        MetricStateError: Captions of one image carry different embeddings of it (`conflicting_image`).
    """
    codes = rows.clusters()
    owner = np.zeros(0, dtype=np.int64) if codes is None else codes
    first = np.unique(owner, return_index=True)[1].astype(np.int64)
    same = (rows["image"] == rows["image"][first][owner]).all(axis=1)
    if not same.all() and np.isfinite(rows["image"]).all():
        k = int(np.argmin(same))
        raise MetricStateError(
            f"image {rows.groups[k]!r} has different embeddings", reason="conflicting_image", sample_id=rows.ids[k]
        )
    return first, owner


def _ranks(images: FloatArray, texts: FloatArray, owner: IntArray) -> dict[str, IntArray]:
    """Ranks both ways; similarities are made block by block, so memory stays below a block by the larger side."""
    right = (images[owner] * texts).sum(axis=1)
    captions = np.zeros(len(texts), dtype=np.int64)
    for start in range(0, len(texts), _BLOCK):
        block = texts[start : start + _BLOCK] @ images.T
        rows = np.arange(len(block))
        # The own image always counts, so that ranks start at 1 whatever the product's rounding gave.
        block[rows, owner[start : start + _BLOCK]] = np.inf
        captions[start : start + _BLOCK] = (block >= right[start : start + _BLOCK, None] - _TIE).sum(axis=1)
    best = np.full(len(images), -np.inf)
    np.maximum.at(best, owner, right)
    pictures = np.zeros(len(images), dtype=np.int64)
    for start in range(0, len(images), _BLOCK):
        block = images[start : start + _BLOCK] @ texts.T
        own = owner[None, :] == np.arange(start, start + len(block))[:, None]
        block[own] = -np.inf
        pictures[start : start + _BLOCK] = 1 + (block >= best[start : start + _BLOCK, None] - _TIE).sum(axis=1)
    return {"text_to_image": captions, "image_to_text": pictures}


def _unit(vectors: npt.NDArray[Any]) -> FloatArray:
    wide = vectors.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    unit: FloatArray = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    return unit


def _embeddings(values: Any, size: int, dimension: int, name: str) -> npt.NDArray[np.float32]:
    try:
        array = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise MetricInputError(f"{name} is not a matrix of numbers", reason="length_mismatch") from None
    if not size:
        return np.zeros((0, dimension), dtype=np.float32)
    if array.shape != (size, dimension):
        raise MetricInputError(f"{name} has shape {array.shape}, not {(size, dimension)}", reason="length_mismatch")
    return array


@dataclass(frozen=True)
class MatchingSettings(Settings):
    """Settings of image-text matching.

    Attributes:
        threshold: A pair is taken as matching when its score is at least this.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the values."""
        check_number("threshold", self.threshold)


class MatchingState(TableState):
    """Whether a model tells pairs of image and text that belong together from pairs that do not.

    Metrics: `image_text_matching_accuracy`, the share of pairs judged rightly. Flag: `non_finite` (a score was NaN or
    infinite; the pair counts as wrong).
    """

    family: ClassVar[str] = "image_text_matching"
    settings_type = MatchingSettings
    settings: MatchingSettings

    def _columns(self) -> Sequence[Column]:
        return (Column("match", "uint8"), Column("score", "float64"))

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        matches: Sequence[bool] | npt.NDArray[Any],
        scores: Sequence[float] | npt.NDArray[Any],
        groups: Sequence[str] | None = None,
    ) -> None:
        """Add pairs.

        Args:
            sample_ids: n ids.
            matches: n bools: whether image and text belong together.
            scores: n scores, larger for pairs that do.
            groups: n names of clusters of dependent pairs, such as the image.

        Raises:
            MetricInputError: Lengths differ (`length_mismatch`), or a value has the wrong type (`invalid_value`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), matches=matches, scores=scores, groups=groups)
        for own, match in zip(ids, matches):
            if not isinstance(match, (bool, np.bool_)):
                raise MetricInputError(f"match is {match!r}, not a bool", reason="invalid_value", sample_id=own)
        try:
            values = np.asarray(scores, dtype=np.float64).reshape(len(ids))
        except (TypeError, ValueError):
            raise MetricInputError("scores are not numbers", reason="invalid_value") from None
        self._table.add(ids, {"match": np.asarray(matches, np.uint8), "score": values}, group_list(groups))

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        finite = np.isfinite(rows["score"])
        with np.errstate(invalid="ignore"):
            right = finite & ((rows["score"] >= self.settings.threshold) == (rows["match"] == 1))
        flags = () if finite.all() else ("non_finite",)
        return {name: Mean(len(rows), right.astype(np.int64), flags=flags) for name in names}
