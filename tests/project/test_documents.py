"""The documents say what the code says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from mindeval.service.metrics import metric_names
from mindeval.service.runtime.task_settings import LanguageModelingSettings
from mindeval.service.settings import Settings

ROOT = Path(__file__).parents[2]


def first_cells(document: str) -> set[str]:
    """Back-quoted names in the first cell of each table row."""
    rows = [line for line in (ROOT / document).read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_setting_of_the_service_is_documented() -> None:
    assert first_cells("docs/operating.md") == {field.name for field in dataclasses.fields(Settings)}


def test_every_setting_and_metric_of_a_task_is_documented() -> None:
    expected = {field.name for field in dataclasses.fields(LanguageModelingSettings)}
    expected |= set(metric_names("language_modeling")) | {"text", "text_lines", "jsonl", "tokens_npy"}
    assert first_cells("docs/suites.md") == expected


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
