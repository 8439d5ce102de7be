"""Student's t distribution for whole degrees of freedom, from its finite trigonometric sum."""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL_FROM = 2_000


def two_sided(statistic: float, degrees: int) -> float:
    """P(|T| >= |statistic|) for `degrees` of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4).

    From 2,000 degrees of freedom on it is the normal distribution's, which differs by less than 0.0003.
    """
    size = abs(statistic)
    if math.isinf(size):
        return 0.0
    if degrees >= _NORMAL_FROM:
        return 2.0 * NormalDist().cdf(-size)
    angle = math.atan(size / math.sqrt(degrees))
    cosine_squared = math.cos(angle) ** 2
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine_squared * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return min(1.0, max(0.0, 1.0 - inside))


def quantile(confidence: float, degrees: int) -> float:
    """The t with P(|T| <= t) = confidence.

    Args:
        confidence: In (0, 1).
        degrees: At least 1.
    """
    low, high = 0.0, 1.0
    while two_sided(high, degrees) > 1.0 - confidence:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if two_sided(middle, degrees) > 1.0 - confidence else (low, middle)
    return high
