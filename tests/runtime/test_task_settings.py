from __future__ import annotations

import subprocess
import sys

import pytest

from mindeval.formats.errors import FormatError
from mindeval.service.runtime.task_settings import TASK_TYPES, LanguageModelingSettings, check_task


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"max_lenght": 512}, "settings.max_lenght"),
        ({"max_length": 1}, "settings.max_length"),
        ({"max_length": 512.5}, "settings.max_length"),
        ({"max_length": "512"}, "settings.max_length"),
        ({"max_length": True}, "settings.max_length"),
        ({"max_length": float("nan")}, "settings.max_length"),
        ({"batch_tokens": 0}, "settings.batch_tokens"),
        ({"batch_tokens": None}, "settings.batch_tokens"),
        ({"prefix": "bos"}, "settings.prefix"),
        ({"prefix": None}, "settings.prefix"),
        ({"compute_dtype": "float8"}, "settings.compute_dtype"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], field: str) -> None:
    with pytest.raises(FormatError, match=field) as caught:
        check_task("language_modeling", [], settings)
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.metadata["field"] == field


def test_an_unknown_type_says_which_are_known() -> None:
    with pytest.raises(FormatError, match="language_modeling") as caught:
        check_task("language_modelling", [], {})
    assert caught.value.reason == "UNKNOWN_TASK_TYPE"


def test_an_unknown_metric_says_which_are_known() -> None:
    with pytest.raises(FormatError, match="bits_per_byte") as caught:
        check_task("language_modeling", ["loss", "perplexity_per_word"], {})
    assert caught.value.reason == "UNKNOWN_METRIC"
    assert caught.value.metadata["metric"] == "perplexity_per_word"


def test_good_tasks_pass_and_struct_numbers_become_whole() -> None:
    settings = {"max_length": 512.0, "prefix": "none", "batch_tokens": 2048.0}
    check_task("language_modeling", ["loss", "ppl"], settings)
    assert LanguageModelingSettings.parse(settings) == LanguageModelingSettings(512, "none", 2048)
    assert set(TASK_TYPES.values()) == {"language_modeling"}


def test_checking_a_suite_does_not_load_mindspore() -> None:
    code = (
        "import sys, mindeval.service.runtime, mindeval.service.runtime.task_settings as t\n"
        "t.check_task('language_modeling', [], {})\n"
        "sys.exit('mindspore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
