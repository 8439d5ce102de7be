"""Image quality: PSNR and SSIM of images against their references. Exact over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.errors import MetricInputError
from mindeval.service.metrics.estimators import Constant, Estimator, Mean
from mindeval.service.metrics.exact import FloatArray, content_digest
from mindeval.service.metrics.settings import Settings, check_choice, check_number
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState


@dataclass(frozen=True)
class ImageQualitySettings(Settings):
    """Settings of image quality.

    Attributes:
        data_range: Distance between the least and the greatest possible pixel value.
        ssim_window: Side of the square window, odd.
    """

    data_range: float = 255
    ssim_window: int = 7

    def __post_init__(self) -> None:
        """Check the values."""
        check_number("data_range", self.data_range, low=1e-12)
        check_choice("ssim_window", self.ssim_window, tuple(range(3, 100, 2)))


class ImageQualityState(TableState):
    """PSNR and SSIM of each image against its reference, averaged over images.

    References: scikit-image's peak_signal_noise_ratio and structural_similarity with their defaults (uniform window,
    sample covariance; channels averaged).

    Flags: `identical` (an image equals its reference: its PSNR, and so the mean, is infinite); `non_finite` (a pixel
    is NaN or infinite: the means are nan).
    """

    family: ClassVar[str] = "image_quality"
    settings_type = ImageQualitySettings
    settings: ImageQualitySettings

    def _columns(self) -> Sequence[Column]:
        return (Column("psnr", "float64"), Column("ssim", "float64"), Column("content", "uint64"))

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        images: Sequence[npt.NDArray[Any]],
        references: Sequence[npt.NDArray[Any]],
        groups: Sequence[str] | None = None,
    ) -> None:
        """Add pairs of images.

        Args:
            sample_ids: n ids.
            images: n arrays of shape (height, width) or (height, width, channels), any numeric dtype.
            references: n arrays of the same shapes.
            groups: n names of clusters of dependent images.

        Raises:
            MetricInputError: Lengths differ (`length_mismatch`), shapes differ or are smaller than the window
                (`invalid_value`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), images=images, references=references, groups=groups)
        rows = []
        for own, image, reference in zip(ids, images, references):
            left, right = _image(image, own), _image(reference, own)
            if left.shape != right.shape or min(left.shape[:2]) < self.settings.ssim_window:
                raise MetricInputError(
                    f"shapes {left.shape} and {right.shape} differ, or are smaller than the window",
                    reason="invalid_value",
                    sample_id=own,
                )
            content = content_digest((str(left.shape).encode(), left.tobytes(), right.tobytes()))
            rows.append((*self._quality(left, right), content))
        arrays: dict[str, npt.NDArray[Any]] = {
            "psnr": np.array([row[0] for row in rows], np.float64),
            "ssim": np.array([row[1] for row in rows], np.float64),
            "content": np.array([row[2] for row in rows], np.uint64),
        }
        self._table.add(ids, arrays, group_list(groups))

    def _quality(self, image: FloatArray, reference: FloatArray) -> tuple[float, float]:
        if not (np.isfinite(image).all() and np.isfinite(reference).all()):
            return math.nan, math.nan
        return (
            peak_signal_to_noise(image, reference, self.settings.data_range),
            structural_similarity(image, reference, self.settings.data_range, self.settings.ssim_window),
        )

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        found: dict[str, Estimator] = {}
        for name in names:
            values = rows[name]
            if np.isnan(values).any():
                found[name] = Constant(len(rows), math.nan, flags=("non_finite",))
            elif np.isinf(values).any():
                found[name] = Constant(len(rows), math.inf, flags=("identical",))
            else:
                found[name] = Mean(len(rows), values)
        return found


def peak_signal_to_noise(image: FloatArray, reference: FloatArray, data_range: float) -> float:
    """10 log10(range**2 / mean squared error), in decibels; infinite for equal images."""
    error = float(np.mean((image - reference) ** 2))
    return 10 * math.log10(data_range**2 / error) if error else math.inf


def structural_similarity(image: FloatArray, reference: FloatArray, data_range: float, window: int) -> float:
    """Mean SSIM (Wang et al. 2004) with a uniform window, K1 = 0.01, K2 = 0.03 and the sample covariance.

    Args:
        image: Shape (height, width, channels).
        reference: The same shape.
        data_range: Distance between the least and the greatest possible value.
        window: Side of the window.
    """
    first, second = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    unbiased = window**2 / (window**2 - 1)
    values = []
    for channel in range(image.shape[2]):
        left, right = image[:, :, channel], reference[:, :, channel]
        mean_left, mean_right = _window_mean(left, window), _window_mean(right, window)
        variance_left = unbiased * (_window_mean(left * left, window) - mean_left**2)
        variance_right = unbiased * (_window_mean(right * right, window) - mean_right**2)
        covariance = unbiased * (_window_mean(left * right, window) - mean_left * mean_right)
        top = (2 * mean_left * mean_right + first) * (2 * covariance + second)
        bottom = (mean_left**2 + mean_right**2 + first) * (variance_left + variance_right + second)
        values.append(float(np.mean(top / bottom)))
    return math.fsum(values) / len(values)


def _window_mean(image: FloatArray, window: int) -> FloatArray:
    rows = sliding_window_view(image, window, axis=0).mean(axis=-1)
    mean: FloatArray = sliding_window_view(rows, window, axis=1).mean(axis=-1)
    return mean


def _image(values: Any, sample_id: str) -> FloatArray:
    array = np.asarray(values)
    if array.dtype.kind not in "uifb" or array.ndim not in (2, 3) or not array.size:
        raise MetricInputError(
            f"an image is {array.dtype} of shape {array.shape}", reason="invalid_value", sample_id=sample_id
        )
    wide = array.astype(np.float64)
    return wide[:, :, None] if wide.ndim == 2 else wide
