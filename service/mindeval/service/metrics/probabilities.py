"""Values of class probabilities, sample by sample: log loss, Brier score, calibration error, area under the ROC.

References: scikit-learn's log_loss, brier_score_loss and roc_auc_score; Guo et al. (2017) for the calibration error;
DeLong et al. (1988) for the effects of samples on the area.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.exact import FloatArray, IntArray, exact_sum

_EPSILON = float(np.finfo(np.float64).eps)


def log_losses(probabilities: FloatArray, labels: IntArray) -> FloatArray:
    """-ln p(label), with p clipped to [eps, 1-eps] of float64 as scikit-learn clips it.

    Args:
        probabilities: Shape (n, k).
        labels: Shape (n,), codes in [0, k).
    """
    chosen = probabilities[np.arange(labels.size), labels]
    losses: FloatArray = -np.log(np.clip(chosen, _EPSILON, 1.0 - _EPSILON))
    return losses


def brier_scores(probabilities: FloatArray, labels: IntArray) -> FloatArray:
    """Squared distance to the one-hot label; halved for two classes, where it is (p1 - y)**2.

    This is scikit-learn's `scale_by_half="auto"`.
    """
    hot = np.zeros(probabilities.shape)
    hot[np.arange(labels.size), labels] = 1.0
    squares = (probabilities - hot) ** 2
    if probabilities.shape[1] == 2:
        return squares[:, 1].copy()
    scores = squares[:, 0].copy()
    for column in range(1, squares.shape[1]):  # column by column: the order of addition is then fixed
        scores += squares[:, column]
    return scores


def confidence_bins(confidence: FloatArray, bins: int) -> IntArray:
    """The equal-width bin (lower, upper] of each confidence in [0, 1]; 0 falls in the first bin."""
    codes: IntArray = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return codes


def calibration_terms(confidence: FloatArray, hits: npt.NDArray[np.bool_], bins: int) -> FloatArray:
    """Per-sample terms whose mean is the expected calibration error.

    The error is sum over bins of |sum of (hit - confidence)| / n; the term of a sample is its own difference with the
    sign of its bin's sum.
    """
    gaps = hits - confidence
    codes = confidence_bins(confidence, bins)
    signs = np.ones(bins)
    for code in np.unique(codes).tolist():
        signs[code] = math.copysign(1.0, exact_sum(gaps[codes == code]))
    terms: FloatArray = gaps * signs[codes]
    return terms


@dataclass(frozen=True)
class Area:
    """An area under the ROC curve and the first-order effect of each sample, shape (n,); nan with one class only."""

    value: float
    influence: FloatArray


def roc_area(scores: FloatArray, positive: npt.NDArray[np.bool_]) -> Area:
    """The share of (positive, negative) pairs that are ordered rightly, ties counting half.

    Args:
        scores: Shape (n,), finite; larger means more positive.
        positive: Shape (n,).
    """
    ups, downs = np.sort(scores[positive]), np.sort(scores[~positive])
    if not ups.size or not downs.size:
        return Area(math.nan, np.zeros(scores.shape))
    pairs = ups.size * downs.size
    # Twice the number of right pairs, an integer: the value is one exact division.
    below = np.searchsorted(downs, scores[positive], "left") + np.searchsorted(downs, scores[positive], "right")
    value = int(below.sum()) / (2 * pairs)
    above = 2 * ups.size - np.searchsorted(ups, scores[~positive], "left")
    above -= np.searchsorted(ups, scores[~positive], "right")
    influence = np.empty(scores.shape)
    influence[positive] = (below / (2 * downs.size) - value) / ups.size
    influence[~positive] = (above / (2 * ups.size) - value) / downs.size
    return Area(value, influence)


def mean_roc_area(areas: Sequence[Area]) -> Area:
    """The unweighted mean of at least one area over the same samples; nan when one of them is."""
    if any(math.isnan(area.value) for area in areas):
        return Area(math.nan, np.zeros_like(areas[0].influence))
    influence = np.zeros_like(areas[0].influence)
    for area in areas:
        influence += area.influence
    return Area(math.fsum(area.value for area in areas) / len(areas), influence / len(areas))


def binned_roc_area(positive_counts: IntArray, negative_counts: IntArray) -> float:
    """The area when only a histogram of the scores is known; pairs inside one bin count half.

    The true area differs by at most half the share of pairs that fall in a common bin.

    Args:
        positive_counts: Shape (bins,), positives in each bin, by ascending score.
        negative_counts: Shape (bins,), likewise.
    """
    ups: list[int] = positive_counts.tolist()
    downs: list[int] = negative_counts.tolist()
    pairs = sum(ups) * sum(downs)
    if not pairs:
        return math.nan
    right = below = 0
    for up, down in zip(ups, downs):
        right += up * (2 * below + down)
        below += down
    return right / (2 * pairs)
