"""How much the values of two tensors differ, in float64, a chunk at a time.

    relative change    = sqrt(sum (other - base)^2) / sqrt(sum base^2)
    largest difference = max |other - base|

Equal infinities do not differ; a NaN on either side makes both results NaN. A change from all zeros is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

_NATIVE = MappingProxyType({"F16": "<f2", "F32": "<f4", "F64": "<f8"})
FLOAT_DTYPES = frozenset({*_NATIVE, "BF16", "F8_E5M2", "F8_E4M3"})
"""dtype names (as in safetensors) of the tensors whose values are compared."""


@dataclass(frozen=True)
class ValueDifference:
    """How much a tensor changed; see the module."""

    relative_change: float
    largest_difference: float


class DifferenceSums:
    """Collects the differences of one tensor."""

    def __init__(self, dtype: str) -> None:
        """Takes one of `FLOAT_DTYPES`."""
        self._dtype = dtype
        self._square_change = 0.0
        self._square_base = 0.0
        self._largest = 0.0

    def add(self, base: bytes, other: bytes) -> None:
        """Adds a chunk: the same elements of both, row-major, little-endian."""
        with np.errstate(all="ignore"):
            before, after = as_float64(base, self._dtype), as_float64(other, self._dtype)
            change = after - before
            # inf - inf is NaN, but nothing changed.
            change[before == after] = 0.0
            self._square_change += float(np.dot(change, change))
            self._square_base += float(np.dot(before, before))
            if change.size:
                self._largest = float(np.maximum(self._largest, np.max(np.abs(change))))

    def add_equal(self, data: bytes) -> None:
        """Adds a chunk that both have."""
        with np.errstate(all="ignore"):
            values = as_float64(data, self._dtype)
            self._square_base += float(np.dot(values, values))

    def result(self) -> ValueDifference:
        """The difference of everything that was added."""
        norm, change = math.sqrt(self._square_base), math.sqrt(self._square_change)
        if norm == 0.0:
            return ValueDifference(math.inf if change else 0.0, self._largest)
        return ValueDifference(change / norm, self._largest)


def difference_of(dtype: str, chunks: Iterable[tuple[bytes, bytes]]) -> ValueDifference:
    """The difference of a tensor that is given in chunks of (base, other)."""
    sums = DifferenceSums(dtype)
    for base, other in chunks:
        sums.add(base, other)
    return sums.result()


def as_float64(data: bytes, dtype: str) -> npt.NDArray[np.float64]:
    """Values [n] of bytes in one of `FLOAT_DTYPES`."""
    if dtype in _NATIVE:
        return np.frombuffer(data, _NATIVE[dtype]).astype(np.float64)
    if dtype == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    codes = np.frombuffer(data, np.uint8)
    if dtype == "F8_E5M2":
        # The upper half of a float16.
        return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    return _e4m3_values()[codes]


def _e4m3_values() -> npt.NDArray[np.float64]:
    """All 256 values of float8 e4m3fn: bias 7, no infinities, NaN where exponent and mantissa are all ones."""
    codes: npt.NDArray[Any] = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values = np.where(codes & 0x7F == 0x7F, np.nan, values)
    return np.where(codes & 0x80, -values, values)
