"""The checks for custom metrics: honest metrics pass, each kind of broken one is caught; installed plug-ins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from mindeval.service.metrics import (
    MetricSettingsError,
    MetricStateError,
    create,
    custom,
    metric_names,
    state_from_bytes,
)
from mindeval.service.metrics.checking import check_family, check_metric
from mindeval.service.metrics.custom import Column, Estimator, Given, Mean, Rows, Settings, TableState, id_list
from mindeval.service.metrics.examples import EXAMPLES

BATCH = {
    "sample_ids": [f"s{k}" for k in range(9)],
    "values": [0.1, 1e16, -1e16, 0.3, 2.0, 3.3, 1e-9, 5.5, 7.1],
}


class MeanState(TableState):
    """An honest metric."""

    family = "test_mean"
    settings_type = Settings
    metrics: ClassVar[dict[str, bool | None]] = {"mean": True}

    def _columns(self) -> Sequence[Column]:
        return (Column("value", "float64"),)

    def update(self, *, sample_ids: Sequence[str], values: Sequence[float]) -> None:
        ids = id_list(sample_ids)
        custom.check_lengths(len(ids), values=values)
        self._table.add(ids, {"value": np.asarray(values, dtype=np.float64)})

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        return {name: Mean(len(rows), rows["value"]) for name in names}


class RunningMeanState(MeanState):
    """Adds as it goes: the rounding depends on the order, and repeats count."""

    family = "test_running"

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.total = 0.0

    def update(self, *, sample_ids: Sequence[str], values: Sequence[float]) -> None:
        super().update(sample_ids=sample_ids, values=values)
        self.total += float(np.sum(values))

    def _merge(self, other: Any) -> None:
        super()._merge(other)
        self.total += other.total

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        return {name: Given(len(rows), self.total / max(len(rows), 1), None) for name in names}


class BatchMeanState(MeanState):
    """Averages the means of batches."""

    family = "test_batch"

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.means: list[float] = []

    def update(self, *, sample_ids: Sequence[str], values: Sequence[float]) -> None:
        super().update(sample_ids=sample_ids, values=values)
        self.means.append(float(np.mean(values)) if len(values) else 0.0)

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        return {name: Given(len(rows), float(np.mean(self.means or [0.0])), None) for name in names}


class CarelessState(MeanState):
    """Does not compare lengths."""

    family = "test_careless"

    def update(self, *, sample_ids: Sequence[str], values: Sequence[float]) -> None:
        size = min(len(sample_ids), len(values))
        self._table.add(list(sample_ids)[:size], {"value": np.asarray(values, dtype=np.float64)[:size]})


def test_an_honest_metric_passes_all_checks() -> None:
    report = check_metric(MeanState, BATCH, trials=5)
    assert report.passed, report.failures
    assert len(report.checks) == 12
    assert report.samples == 9


@pytest.mark.parametrize(
    ("state", "caught_by"),
    [
        (RunningMeanState, {"order", "duplicates", "serialisation", "shards"}),
        (BatchMeanState, {"batches", "shards", "merge_tree", "duplicates"}),
        (CarelessState, {"update_is_atomic"}),
    ],
)
def test_broken_metrics_are_caught(state: type[MeanState], caught_by: set[str]) -> None:
    report = check_metric(state, BATCH, trials=30)
    assert not report.passed
    assert caught_by <= {failure.check for failure in report.failures}


def test_a_metric_that_raises_is_a_finding() -> None:
    class Raising(MeanState):
        family = "test_raising"

        def _merge(self, other: Any) -> None:
            raise RuntimeError("no")

    report = check_metric(Raising, BATCH)
    assert "RuntimeError: no" in {failure.detail for failure in report.failures}


def test_batches_that_cannot_be_replayed_are_errors() -> None:
    with pytest.raises(ValueError, match="no samples"):
        check_metric(MeanState, {"sample_ids": [], "values": []})
    with pytest.raises(ValueError, match="differ in length"):
        check_metric(MeanState, {"sample_ids": ["a"], "values": []})


def documented_example() -> str:
    """The class in docs/metrics.md, as a user would paste it."""
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    return next(code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class NumericState" in code)


def write_package(folder: Path, module: str, code: str, entry_points: str) -> None:
    """A package as pip would lay it out."""
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[mindeval.metrics]\n{entry_points}", encoding="utf-8")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with the documented metric and broken entry points."""
    points = (
        "numeric = numeric_plugin:NumericState\nmissing = numeric_plugin:Nothing\n"
        "other = numeric_plugin:NumericState\nnumber = numeric_plugin:np\n"
    )
    write_package(tmp_path, "numeric_plugin", documented_example(), points)
    monkeypatch.syspath_prepend(str(tmp_path))
    custom.custom_state.cache_clear()
    yield tmp_path
    custom.custom_state.cache_clear()


def test_the_documented_example_is_a_working_plug_in(installed: Path) -> None:
    assert len([line for line in documented_example().splitlines() if line.strip()]) <= 30
    assert "numeric" in custom.installed_families()
    assert metric_names("numeric") == ("mae",)
    state = create("numeric", {"scale": 2.0})
    state.update(sample_ids=["a", "b"], predictions=[1.0, 3.0], targets=[1.5, 3.0])
    mae = state.result()["mae"]
    assert (mae.value, mae.higher_is_better) == (0.5, False)
    assert mae.standard_error == pytest.approx(0.5)
    assert state_from_bytes(state.to_bytes()).result() == state.result()
    report = check_family("numeric", {"scale": 0.1}, trials=5)
    assert report.passed, report.failures
    assert len(report.checks) == 12


@pytest.mark.parametrize("family", EXAMPLES)
def test_every_family_of_this_package_passes_on_its_example(family: str) -> None:
    report = check_family(family, trials=2)
    assert report.passed, report.failures


def test_a_failure_shows_the_updates_that_led_to_it() -> None:
    failure = next(f for f in check_metric(BatchMeanState, BATCH).failures if f.check == "batches")
    assert re.match(r"mean: value \S+ became \S+", failure.detail)
    split, whole = failure.example
    assert sorted(k for update in split for k in update) == list(range(9))
    assert len(split) > 1
    assert whole == (tuple(range(9)),)


@pytest.mark.parametrize("family", ["missing", "other", "number"])
def test_broken_plug_ins_are_named(installed: Path, family: str) -> None:
    with pytest.raises(MetricSettingsError) as caught:
        create(family)
    assert caught.value.reason == "broken_plugin"
    with pytest.raises(MetricStateError):
        check_family(family)


def test_built_in_families_cannot_be_replaced(installed: Path) -> None:
    (installed / "numeric_plugin-1.0.dist-info" / "entry_points.txt").write_text(
        "[mindeval.metrics]\nclassification = numeric_plugin:NumericState\n", encoding="utf-8"
    )
    assert type(create("classification")).__module__ == "mindeval.service.metrics.classification"
