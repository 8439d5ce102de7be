"""How a value and its standard error come from per-sample statistics.

Every estimator covers n samples in canonical order. `influence` linearises the value: the standard error is then
sqrt(c/(c-1) * sum of squared cluster sums of influences) over c clusters, which for a plain mean is the sample
standard deviation (n-1) over sqrt(n). A value with no such form is resampled instead (uncertainty.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.exact import FloatArray, IntArray, exact_mean, exact_sum


@dataclass(frozen=True)
class Estimator(ABC):
    """Base of the estimators; `count` is the denominator to report, `flags` are added to the value's."""

    kind: ClassVar[str]
    count: int
    flags: tuple[str, ...] = field(default=(), kw_only=True)

    @abstractmethod
    def value(self) -> float:
        """The value over all samples."""

    @abstractmethod
    def sizes(self) -> int:
        """The number of samples n."""

    def influence(self) -> FloatArray | None:
        """First-order effect of each sample on the value, shape (n,), summing to 0; None when there is no formula."""
        return None

    def resampled(self, weights: FloatArray) -> list[float]:
        """For each row of `weights`, the value when sample i occurs `weights[row, i]` times; nan when undefined."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Estimator):
    """The mean of per-sample values, times a constant."""

    kind = "mean"
    values: npt.NDArray[Any]
    scale: float = 1.0

    def value(self) -> float:
        """The exactly rounded sum over n, times the scale."""
        return self.scale * exact_mean(self.values)

    def sizes(self) -> int:
        """n."""
        return int(self.values.size)

    def influence(self) -> FloatArray | None:
        """(value_i - mean) / n."""
        if not self.values.size:
            return None
        values = self.values.astype(np.float64, copy=False)
        influence: FloatArray = self.scale * (values - exact_mean(self.values)) / values.size
        return influence


@dataclass(frozen=True)
class Ratio(Estimator):
    """f(scale * sum(numerator) / sum(denominator)), with f the identity or exp.

    The linearisation of a ratio R = A/B is (a_i - R b_i) / B (Cochran 1977, section 6.3); exp multiplies it by
    the value (delta method).

    Attributes:
        numerator: a_i, shape (n,).
        denominator: b_i, shape (n,).
        scale: A constant factor of the ratio.
        link: `identity` or `exp`.
        exposure: Shape (n,), or None. Where the denominators of several samples are recorded on one of them, the
            b_i of the linearisation are B in proportion to these instead. The value does not depend on them.
    """

    kind = "ratio"
    numerator: npt.NDArray[Any]
    denominator: npt.NDArray[Any]
    scale: float = 1.0
    link: str = "identity"
    exposure: npt.NDArray[Any] | None = None

    def value(self) -> float:
        """The ratio; nan with denominator 0, inf when exp overflows."""
        ratio = self._ratio() * self.scale
        if self.link == "identity":
            return ratio
        try:
            return math.exp(ratio)
        except OverflowError:
            return math.inf

    def sizes(self) -> int:
        """n."""
        return int(self.numerator.size)

    def influence(self) -> FloatArray | None:
        """The linearisation above; None when the value is not finite."""
        value, ratio, total = self.value(), self._ratio(), exact_sum(self.denominator)
        if not math.isfinite(value):
            return None
        slope = self.scale / total * (value if self.link == "exp" else 1.0)
        denominator = self.denominator.astype(np.float64)
        exposed = 0.0 if self.exposure is None else exact_sum(self.exposure)
        if self.exposure is not None and exposed:
            denominator = self.exposure * (total / exposed)
        influence: FloatArray = slope * (self.numerator.astype(np.float64) - ratio * denominator)
        return influence

    def _ratio(self) -> float:
        total = exact_sum(self.denominator)
        return exact_sum(self.numerator) / total if total else math.nan


@dataclass(frozen=True)
class Statistic(Estimator):
    """Any function of column totals; its standard error is a bootstrap over the per-sample columns.

    Attributes:
        columns: Shape (n, m), integers; or fractions, which are summed with exact rounding.
        function: Maps totals of shape (m,) to the value.
        undefined: The value of no samples at all.
    """

    kind = "bootstrap"
    columns: FloatArray
    function: Callable[[FloatArray], float]
    undefined: float = math.nan

    def value(self) -> float:
        """The function of the totals."""
        if not self.columns.shape[0]:
            return self.undefined
        return self.function(np.array([exact_sum(column) for column in self.columns.T], dtype=np.float64))

    def sizes(self) -> int:
        """n."""
        return int(self.columns.shape[0])

    def resampled(self, weights: FloatArray) -> list[float]:
        """The function of the weighted totals, row by row."""
        return [self.function(totals) for totals in weights @ self.columns]


@dataclass(frozen=True)
class Median(Estimator):
    """The median of per-unit values; its standard error is a bootstrap.

    Attributes:
        values: Shape (m,), one value a unit.
        places: Shape (m,): the sample that stands for the unit in a resample.
        samples: The number of samples n.
    """

    kind = "bootstrap"
    values: npt.NDArray[Any]
    places: IntArray
    samples: int

    def value(self) -> float:
        """The middle value, or the mean of the two middle ones; nan without values."""
        return float(np.median(self.values)) if self.values.size else math.nan

    def sizes(self) -> int:
        """n."""
        return self.samples

    def resampled(self, weights: FloatArray) -> list[float]:
        """The median when each value occurs as often as its sample."""
        order = np.argsort(self.values, kind="stable")
        values = np.append(self.values[order].astype(np.float64), math.nan)
        upto = np.cumsum(weights[:, self.places[order]], axis=1)
        total = upto[:, -1]
        low, high = np.floor((total + 1) / 2), np.floor(total / 2) + 1
        middles = [(upto < rank[:, None]).sum(axis=1) for rank in (low, high)]
        found: list[float] = ((values[middles[0]] + values[middles[1]]) / 2).tolist()
        return found


@dataclass(frozen=True)
class Given(Estimator):
    """A value computed elsewhere, with the first-order effect of each sample on it (None when it has none)."""

    kind = "linearized"
    given: float
    effects: FloatArray | None

    def value(self) -> float:
        """The value."""
        return self.given

    def sizes(self) -> int:
        """n, or 0 without effects."""
        return 0 if self.effects is None else int(self.effects.size)

    def influence(self) -> FloatArray | None:
        """The effects."""
        return self.effects if math.isfinite(self.given) else None


@dataclass(frozen=True)
class Constant(Estimator):
    """A value without a standard error, such as an undefined one with the flag that says why."""

    kind = "none"
    constant: float

    def value(self) -> float:
        """The constant."""
        return self.constant

    def sizes(self) -> int:
        """No samples."""
        return 0
