from __future__ import annotations

import pytest

from mindeval.formats.errors import FormatError
from mindeval.service.runtime.errors import RunnerError, describe, shown


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "OUT_OF_MEMORY"),
        (RuntimeError("Allocate memory failed: device 0, 12 GB"), "OUT_OF_MEMORY"),
        (RuntimeError("Out of Memory!!! Request memory size: 1"), "OUT_OF_MEMORY"),
        (ZeroDivisionError("division by zero\nsecond line"), "RUNNER_ERROR"),
        (KeyError(), "RUNNER_ERROR"),
        (RunnerError("TENSOR_MISSING", "no", {"tensor": "w"}), "TENSOR_MISSING"),
        (FormatError("INVALID_FIELD", "no"), "INVALID_FIELD"),
    ],
)
def test_every_error_has_a_reason(error: Exception, reason: str) -> None:
    described = describe(error)
    assert described["reason"] == reason
    assert described["message"]
    assert all(isinstance(value, str) for value in described["metadata"].values())


def test_an_unforeseen_error_shows_its_type_and_first_line_only() -> None:
    message = describe(ZeroDivisionError("division by zero\nsecond line"))["message"]
    assert "ZeroDivisionError: division by zero;" in message
    assert "second" not in message


def test_long_lists_of_names_are_cut() -> None:
    assert shown(["a", "b"]) == "a, b"
    assert shown(str(i) for i in range(25)).endswith("18, 19 and 5 more")
