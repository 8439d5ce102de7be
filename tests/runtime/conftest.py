from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.runner_driver import Runner


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def runner(work: Path) -> Iterator[Runner]:
    """One real runner process for all tests of a module."""
    with Runner(work / "runner") as runner:
        yield runner
