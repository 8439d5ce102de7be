"""Standard errors against closed forms, and the resampling behind those that have none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindeval.service.metrics.estimators import Mean, Ratio, Statistic
from mindeval.service.metrics.exact import exact_sum
from mindeval.service.metrics.uncertainty import Bootstrap, linear_standard_error, standard_errors


def error_of(estimator: Mean | Ratio | Statistic, clusters: np.ndarray | None = None, replicates: int = 4000) -> float:
    error = standard_errors({"x": estimator}, clusters, Bootstrap(replicates))["x"]
    assert error is not None
    return error


def test_a_mean_has_the_textbook_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=50)
    assert error_of(Mean(50, values)) == pytest.approx(values.std(ddof=1) / math.sqrt(50), rel=1e-12)
    assert error_of(Mean(50, values, scale=100.0)) == pytest.approx(values.std(ddof=1) * 100 / math.sqrt(50), rel=1e-12)


def test_the_bootstrap_agrees_with_the_closed_form_of_a_mean() -> None:
    values = np.random.default_rng(1).integers(0, 100, 200)
    columns = np.stack([values, np.ones(200, dtype=int)], axis=1).astype(np.float64)
    bootstrap = error_of(Statistic(200, columns, lambda totals: float(totals[0] / totals[1])))
    # The bootstrap divides by n where the closed form has n-1.
    assert bootstrap == pytest.approx(values.std(ddof=0) / math.sqrt(200), rel=0.05)


def test_clusters_are_resampled_whole() -> None:
    values = np.repeat(np.random.default_rng(2).integers(0, 2, 40), 5)
    clusters = np.repeat(np.arange(40), 5)
    columns = np.stack([values, np.ones(200, dtype=int)], axis=1).astype(np.float64)
    statistic = Statistic(200, columns, lambda totals: float(totals[0] / totals[1]))
    assert error_of(statistic, clusters) == pytest.approx(error_of(Mean(200, values), clusters), rel=0.08)
    assert error_of(statistic, clusters) > 2 * error_of(statistic)


def test_clusters_of_one_are_no_clusters() -> None:
    values = np.random.default_rng(3).normal(size=30)
    assert error_of(Mean(30, values), np.arange(30)) == pytest.approx(error_of(Mean(30, values)), rel=1e-12)


@pytest.mark.parametrize("samples", [2, 100, 30_000])
def test_replicates_are_whole_draws_and_repeatable(samples: int) -> None:
    blocks = list(Bootstrap(70, seed=5).weights(samples, None))
    assert sum(len(block) for block in blocks) == 70
    for block in blocks:
        assert (block.sum(axis=1) == samples).all()
    again = list(Bootstrap(70, seed=5).weights(samples, None))
    assert all((a == b).all() for a, b in zip(blocks, again))
    assert not (next(iter(Bootstrap(70, seed=6).weights(samples, None))) == blocks[0]).all()


def test_one_unit_has_no_standard_error() -> None:
    one = {
        "mean": Mean(1, np.array([2.0])),
        "statistic": Statistic(1, np.ones((1, 1)), lambda totals: float(totals[0])),
    }
    assert standard_errors(one, None, Bootstrap(10)) == {"mean": None, "statistic": None}
    assert linear_standard_error(np.ones(4), np.zeros(4, dtype=np.int64)) is None


def test_huge_effects_do_not_overflow() -> None:
    assert linear_standard_error(np.array([1e300, -1e300]), None) == pytest.approx(2e300)


def test_a_finite_sum_of_huge_numbers_is_finite_in_any_order() -> None:
    for order in ([1e308, 1e308, -1e308], [1e308, -1e308, 1e308]):
        assert exact_sum(np.array(order)) == 1e308
    assert exact_sum(np.array([1e308, 1e308])) == math.inf


@given(st.lists(st.floats(allow_nan=False, width=64), max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_sums_do_not_depend_on_order(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = exact_sum(np.array(values)), exact_sum(np.array(shuffled))
    assert first == second or (math.isnan(first) and math.isnan(second))
