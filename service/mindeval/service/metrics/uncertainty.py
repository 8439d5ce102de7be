"""Standard errors: by linearisation where a formula exists, else by a seeded bootstrap; clustered when asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mindeval.service.metrics.estimators import Estimator
from mindeval.service.metrics.exact import FloatArray, IntArray, exact_mean, exact_sum

_BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Bootstrap:
    """How to resample.

    Attributes:
        replicates: Number of resamples.
        seed: Seed of numpy's PCG64; the same seed and samples give the same bits.
    """

    replicates: int = 1000
    seed: int = 0

    def weights(self, samples: int, clusters: IntArray | None) -> Iterator[FloatArray]:
        """Yield blocks of replicates: how often each sample occurs, shape (block, samples), whole float64 numbers.

        Clusters are drawn whole. The draws depend on nothing but the seed and the sizes.
        """
        generator = np.random.Generator(np.random.PCG64(self.seed))
        units = samples if clusters is None else int(clusters.max()) + 1
        # Blocks, because one product of two matrices is far quicker than many of a vector and a matrix.
        size = max(1, min(64, _BLOCK_ELEMENTS // max(samples, 1)))
        for start in range(0, self.replicates, size):
            block = np.empty((min(size, self.replicates - start), samples))
            for row in block:
                drawn = np.bincount(generator.integers(0, units, units), minlength=units)
                row[:] = drawn if clusters is None else drawn[clusters]
            yield block


def linear_standard_error(influence: FloatArray, clusters: IntArray | None) -> float | None:
    """sqrt(c/(c-1) * sum(u_j**2)) over cluster sums u_j of the influences; None with fewer than two clusters.

    Args:
        influence: Shape (n,), summing to 0 up to rounding.
        clusters: Cluster numbers of shape (n,), or None when each sample is its own.
    """
    sums = influence if clusters is None else np.bincount(clusters, weights=influence)
    if sums.size < 2:
        return None
    return _norm(sums - exact_mean(sums)) * math.sqrt(sums.size / (sums.size - 1))


def standard_errors(
    estimators: Mapping[str, Estimator], clusters: IntArray | None, bootstrap: Bootstrap
) -> dict[str, float | None]:
    """The standard error of each estimator; None where there is none, as with a single unit or an infinite value.

    All values that need resampling share the resamples, which cost more than the values.
    """
    errors: dict[str, float | None] = {}
    resampled: dict[str, list[float]] = {}
    for name, estimator in estimators.items():
        with np.errstate(over="ignore", invalid="ignore"):
            influence = estimator.influence()
            error = None if influence is None else linear_standard_error(influence, clusters)
        errors[name] = error if error is not None and math.isfinite(error) else None
        if estimator.kind == "bootstrap" and unit_count(estimator.sizes(), clusters) >= 2:
            resampled[name] = []
    if resampled:
        samples = next(iter(estimators[name].sizes() for name in resampled))
        for weights in bootstrap.weights(samples, clusters):
            for name, values in resampled.items():
                values.extend(estimators[name].resampled(weights))
    errors.update((name, spread(np.array(values, dtype=np.float64))) for name, values in resampled.items())
    return errors


def spread(values: FloatArray) -> float | None:
    """Sample standard deviation (n-1) of the finite values; None with fewer than two."""
    values = values[np.isfinite(values)]
    if values.size < 2:
        return None
    return _norm(values - exact_mean(values)) / math.sqrt(values.size - 1)


def _norm(values: FloatArray) -> float:
    """Euclidean length. Scaled by the largest value, so that squares of a perplexity near overflow stay finite."""
    largest = float(np.abs(values).max())
    if not largest or not math.isfinite(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(exact_sum(scaled * scaled))


def unit_count(samples: int, clusters: IntArray | None) -> int:
    """How many independent units there are: clusters, or samples."""
    if clusters is None or not clusters.size:
        return samples
    return int(clusters.max()) + 1
