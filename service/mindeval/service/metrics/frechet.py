"""The Fréchet distance between the features of generated images and of real ones. Exact over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths, id_list
from mindeval.service.metrics.errors import MetricInputError
from mindeval.service.metrics.estimators import Constant, Estimator, Given
from mindeval.service.metrics.exact import FloatArray, exact_mean
from mindeval.service.metrics.settings import Settings, check_int
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState


@dataclass(frozen=True)
class FrechetSettings(Settings):
    """Settings of the Fréchet distance.

    Attributes:
        dimension: Length of the feature vectors.
        features: The network and layer that made them, recorded with the value.
    """

    dimension: int = 2048
    features: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        check_int("dimension", self.dimension, low=1, high=1 << 16)


class FrechetState(TableState):
    """Features of generated images and of real ones, and the distance between Gaussians fitted to them.

    Metric: `frechet_distance`. Its standard error is that of the first-order effects of the images; the bias, which is
    upwards and falls with the number of images, is not in it. `count` is the smaller of the two numbers of images.

    Flags: `too_few` (fewer than two images on a side); `singular` (a covariance has no inverse, as with fewer
    images than dimensions: the distance is strongly biased and has no standard error); `non_finite`.
    """

    family: ClassVar[str] = "frechet"
    settings_type = FrechetSettings
    settings: FrechetSettings

    def _columns(self) -> Sequence[Column]:
        return (Column("generated", "uint8"), Column("features", "float32", self.settings.dimension))

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        features: npt.NDArray[Any] | Sequence[Any],
        generated: Sequence[bool] | npt.NDArray[Any],
    ) -> None:
        """Add feature vectors.

        Args:
            sample_ids: n ids.
            features: Shape (n, dimension); kept as float32.
            generated: n bools: whether the image was generated, or is real.

        Raises:
            MetricInputError: A shape is wrong (`length_mismatch`) or `generated` holds other than bools
                (`invalid_value`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), features=features, generated=generated)
        for own, side in zip(ids, generated):
            if not isinstance(side, (bool, np.bool_)):
                raise MetricInputError(f"generated is {side!r}, not a bool", reason="invalid_value", sample_id=own)
        try:
            array = np.asarray(features, dtype=np.float32).reshape(len(ids), self.settings.dimension)
        except (TypeError, ValueError):
            raise MetricInputError("features have a wrong shape", reason="length_mismatch") from None
        self._table.add(ids, {"generated": np.asarray(generated, np.uint8), "features": array})

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        real = rows["generated"] == 0
        sides = [rows["features"][chosen].astype(np.float64) for chosen in (real, ~real)]
        count = min(len(side) for side in sides)
        if count < 2:
            estimator: Estimator = Constant(count, math.nan, flags=("too_few",))
        elif not all(np.isfinite(side).all() for side in sides):
            estimator = Constant(count, math.nan, flags=("non_finite",))
        else:
            estimator = Constant(count, frechet_distance(*sides), flags=("singular",))
            found = frechet_effects(*sides) if count > self.settings.dimension else None
            if found is not None:
                effects = np.empty(len(rows))
                effects[real], effects[~real] = found
                estimator = Given(count, estimator.value(), effects)
        return dict.fromkeys(names, estimator)


def frechet_distance(left: FloatArray, right: FloatArray) -> float:
    """Squared distance |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) between fitted Gaussians (Dowson, Landau 1982).

    The trace of the root is taken from the symmetric form C1^(1/2) C2 C1^(1/2), whose eigenvalues are real.

    Args:
        left: Shape (n, d), float64, n at least 2.
        right: Shape (m, d).
    """
    gap = left.mean(axis=0) - right.mean(axis=0)
    first, second = np.atleast_2d(np.cov(left, rowvar=False)), np.atleast_2d(np.cov(right, rowvar=False))
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))) @ vectors.T
    inner = root @ second @ root
    overlap = np.sqrt(np.clip(np.linalg.eigvalsh((inner + inner.T) / 2), 0.0, None)).sum()
    return max(0.0, float(gap @ gap + np.trace(first) + np.trace(second) - 2 * overlap))


def frechet_effects(left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """First-order effects of the rows on the distance, shapes (n,) and (m,), which sum to 0.

    None when a covariance has no inverse in float64.

    The derivative by the first covariance is I - T, with T = C1^(-1/2) (C1^(1/2) C2 C1^(1/2))^(1/2) C1^(-1/2) the
    linear map that carries the first Gaussian to the second, and by the second I - T^(-1) (Rippl, Munk, Sturm 2016).

    Args:
        left: Shape (n, d), n above d.
        right: Shape (m, d), m above d.
    """
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(left, rowvar=False)))
    if not _invertible(values):
        return None
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    inner = root @ np.atleast_2d(np.cov(right, rowvar=False)) @ root
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    if not _invertible(values):
        return None
    forth, back = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    gap = left.mean(axis=0) - right.mean(axis=0)
    return _side_effects(left, inverse @ forth @ inverse, gap), _side_effects(right, root @ back @ root, -gap)


def _side_effects(side: FloatArray, transport: FloatArray, gap: FloatArray) -> FloatArray:
    centred = side - side.mean(axis=0)
    terms: FloatArray = 2 * centred @ gap + (centred * (centred - centred @ transport)).sum(axis=1)
    effects: FloatArray = (terms - exact_mean(terms)) / len(side)
    return effects


def _invertible(eigenvalues: FloatArray) -> bool:
    """Whether ascending eigenvalues are all above what rounding makes of 0."""
    return bool(eigenvalues[0] > eigenvalues[-1] * len(eigenvalues) * np.finfo(np.float64).eps)
