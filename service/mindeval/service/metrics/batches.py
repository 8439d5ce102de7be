"""Checks that all families make on a batch before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from mindeval.service.metrics.errors import MetricInputError
from mindeval.service.metrics.table import check_ids


def id_list(sample_ids: Sequence[str]) -> list[str]:
    """Sample ids as a checked list.

    Raises:
        MetricInputError: The ids are one text, or one of them is not a non-empty text (`invalid_sample_id`).
    """
    if isinstance(sample_ids, (str, bytes, Mapping, Set)):
        # A text is a sequence of texts in Python, and would pass as one id a character; a set has no order.
        kind = "one text" if isinstance(sample_ids, (str, bytes)) else f"a {type(sample_ids).__name__}"
        raise MetricInputError(f"sample_ids must be a list of ids, not {kind}", reason="invalid_sample_id")
    ids = list(sample_ids)
    check_ids(ids)
    return ids


def check_lengths(size: int, **values: Any) -> None:
    """Raise MetricInputError (`length_mismatch`) unless each value is None or has `size` entries."""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, (str, bytes)):
            raise MetricInputError(f"{name} must be a list, not one text", reason="length_mismatch")
        if isinstance(value, (Mapping, Set)):
            # Iterating one gives its keys, or an arbitrary order: samples and values would be paired by accident.
            raise MetricInputError(f"{name} must be a list, not a {type(value).__name__}", reason="length_mismatch")
        try:
            length = len(value)
        except TypeError:
            raise MetricInputError(f"{name} is not a sequence", reason="length_mismatch") from None
        if length != size:
            raise MetricInputError(f"{name} has {length} entries for {size} samples", reason="length_mismatch")


def group_list(groups: Sequence[str] | None) -> list[str] | None:
    """Group names as a checked list, None as the absence of groups.

    Raises:
        MetricInputError: A name is not a text that UTF-8 can hold (`invalid_group`).
    """
    if groups is None:
        return None
    names = list(groups)
    if not all(isinstance(name, str) for name in names):
        raise MetricInputError("group names must be texts", reason="invalid_group")
    try:
        "".join(names).encode("utf-8")
    except UnicodeEncodeError:
        raise MetricInputError("a group name holds a lone surrogate", reason="invalid_group") from None
    return names
