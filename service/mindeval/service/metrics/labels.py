"""Class labels: from what a dataset or model gives to integer codes, with errors that name the sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError
from mindeval.service.metrics.exact import FloatArray, IntArray

Label = str | int
_INTEGERS_END = 1 << 63


def check_label_set(labels: object, field: str) -> None:
    """Raise MetricSettingsError unless `labels` is None or a tuple of distinct names, or of distinct integers."""
    if labels is None:
        return
    if not isinstance(labels, tuple) or not labels:
        raise MetricSettingsError("must be a non-empty list of labels", field=field)
    kinds = {type(label) for label in labels}
    if kinds not in ({str}, {int}):
        raise MetricSettingsError("must be all names, or all integers", field=field)
    if len(set(labels)) != len(labels):
        raise MetricSettingsError("a label is repeated", field=field)


def label_codes(
    values: Sequence[Any] | npt.NDArray[Any],
    declared: tuple[Label, ...] | None,
    ids: Sequence[str],
    *,
    name: str,
    allow_none: bool,
) -> IntArray:
    """Codes of labels.

    Args:
        values: n labels: names or integers of the declared set; positions, when the declared labels are names; any
            integer of at least 0, when no set is declared.
        declared: The declared label set.
        ids: n sample ids, for messages.
        name: What the values are, for messages.
        allow_none: Whether None or -1 may stand for "no prediction"; its code is -1.

    Returns:
        Shape (n,), int64: positions in the declared set, or the integers themselves without one. It may share
        memory with `values`.

    Raises:
        MetricInputError: A value is outside the declared set or of a wrong type (`unknown_label`).
    """
    array = np.asarray(values) if isinstance(values, np.ndarray) else None
    if array is None and all(type(value) is int and abs(value) < _INTEGERS_END for value in values):
        array = np.asarray(values, dtype=np.int64)
    elif array is not None and array.dtype.kind == "u" and array.size and int(array.max()) >= _INTEGERS_END:
        array = None  # would wrap around to negative labels
    if array is not None and array.dtype.kind in "iub" and array.ndim == 1:
        codes = array.astype(np.int64, copy=False)
        if declared is not None and isinstance(declared[0], int) and declared != tuple(range(len(declared))):
            codes = _positions(codes, declared)
        low, high = (-1 if allow_none else 0), (None if declared is None else len(declared))
        # Two plain reductions decide for almost every batch; which entry is at fault is looked for only then.
        if codes.size and (int(codes.min()) < low or (high is not None and int(codes.max()) >= high)):
            bad = (codes < low) if high is None else (codes < low) | (codes >= high)
            _refuse(array[int(np.argmax(bad))].item(), name, ids[int(np.argmax(bad))])
        return codes
    positions = {label: code for code, label in enumerate(declared or ())}
    # Integers that are codes by themselves: all without a declared set, positions when names are declared.
    free_integers = _INTEGERS_END if declared is None else len(declared) if isinstance(declared[0], str) else 0
    result = np.empty(len(values), dtype=np.int64)
    for k, value in enumerate(values):
        value = value.item() if isinstance(value, np.generic) else value
        # A declared -1 is a label, as in an array of integers: what a sample means must not depend on its neighbours.
        if type(value) in (str, int) and value in positions:
            result[k] = positions[value]
        elif allow_none and (value is None or (type(value) is int and value == -1)):
            result[k] = -1
        elif type(value) is int and 0 <= value < free_integers:
            result[k] = value
        else:
            _refuse(value, name, ids[k])
    return result


def _positions(values: IntArray, declared: tuple[Label, ...]) -> IntArray:
    """Positions in the declared integers; -1 stays -1 and other strangers become -2."""
    known = np.array(declared, dtype=np.int64)
    order = np.argsort(known)
    place = np.clip(np.searchsorted(known, values, sorter=order), 0, known.size - 1)
    found = known[order[place]] == values
    return np.where(found, order[place], np.where(values == -1, -1, -2)).astype(np.int64)


def _refuse(value: object, name: str, sample_id: str) -> None:
    raise MetricInputError(f"{name} {value!r} is not a known label", reason="unknown_label", sample_id=sample_id)


def probability_rows(
    scores: Sequence[Any] | npt.NDArray[Any], ids: Sequence[str], *, sums_to_one: bool, classes: int | None
) -> FloatArray:
    """Check class probabilities.

    Args:
        scores: Shape (n, k), or (n,) with the probability of the second of two classes.
        ids: n sample ids, for messages.
        sums_to_one: Whether each row must sum to 1 (within 1e-3, for half-precision softmax).
        classes: The expected k, if known.

    Returns:
        Shape (n, k), float64. Non-finite entries are kept, for the caller to count.

    Raises:
        MetricInputError: The shape is wrong (`length_mismatch`), or an entry is outside [0, 1] or a row does not sum
            to 1 (`invalid_value`).
    """
    try:
        rows = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise MetricInputError("scores are not a matrix of numbers", reason="invalid_value") from None
    if rows.size == 0 and rows.shape[:1] == (0,):
        rows = rows.reshape(0, classes or (rows.shape[1] if rows.ndim == 2 else 2))
    if rows.ndim == 1:
        rows = np.stack([1.0 - rows, rows], axis=1)
    if rows.ndim != 2 or rows.shape[0] != len(ids) or (classes is not None and rows.shape[1] != classes):
        raise MetricInputError(
            f"scores have shape {rows.shape} for {len(ids)} samples and {classes or 'any number of'} classes",
            reason="length_mismatch",
        )
    with np.errstate(invalid="ignore"):
        bad = ((rows < 0) | (rows > 1)).any(axis=1)
        if sums_to_one:
            bad |= np.abs(rows.sum(axis=1) - 1.0) > 1e-3
        bad &= np.isfinite(rows).all(axis=1)
    if bad.any():
        k = int(np.argmax(bad))
        raise MetricInputError("scores are not probabilities", reason="invalid_value", sample_id=ids[k])
    return rows
