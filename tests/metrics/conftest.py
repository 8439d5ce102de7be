"""Fixtures of the metric tests: the folder with real data, and checks of exactness."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindeval.service.metrics import create
from mindeval.service.metrics.checking import check_metric


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with real data sets and published values; tests that need it are skipped without it."""
    shared = Path(os.environ.get("MINDEVAL_SHARED", Path(__file__).parents[3] / "shared"))
    if not (shared / "data").is_dir():
        pytest.skip(f"no data in {shared}; set MINDEVAL_SHARED")
    return shared / "data"


@pytest.fixture(scope="session")
def assert_exact() -> Callable[..., None]:
    """A function that replays a batch in random ways and fails unless every result has the same bits."""

    def check(family: str, settings: dict[str, Any], batch: dict[str, Any], **options: Any) -> None:
        report = check_metric(lambda: create(family, settings), batch, **options)
        assert report.passed, report.failures

    return check
