"""docs/metrics.md names every metric, setting, flag and check that the code has."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from mindeval.service.metrics import create, metric_names
from mindeval.service.metrics.catalog import FAMILY_METRICS
from mindeval.service.metrics.registry import state_type
from mindeval.service.metrics.replays import CHECKS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
NAMES = set(re.findall(r"`([^`\n]+)`", TEXT))


@pytest.mark.parametrize("family", FAMILY_METRICS)
def test_every_family_metric_and_setting_is_documented(family: str) -> None:
    suffixed = {name for name in metric_names(family) if name.rpartition("_")[2] in ("micro", "macro", "weighted")}
    wanted = {
        family,
        *metric_names(family),
        *(field.name for field in dataclasses.fields(state_type(family).settings_type)),
    }
    assert wanted - (suffixed if family == "multilabel_classification" else set()) <= NAMES


def test_every_check_and_flag_is_documented() -> None:
    assert {check.name for check in CHECKS} <= NAMES
    package = Path(state_type("generation").__module__.replace(".", "/")).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "service" / package).glob("*.py"))
    flags = set(re.findall(r'flags=\(\*?(?:flags, )?"([a-z0-9_]+)"', sources))
    assert len(flags) >= 8
    assert flags <= NAMES


def test_the_first_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
    exec(compile(code, "docs/metrics.md", "exec"), {})
    assert create("classification").default_names()
