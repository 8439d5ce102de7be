"""Sums whose bits do not depend on order or grouping, and digests of what was scored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def exact_sum(values: npt.NDArray[Any]) -> float:
    """The exactly rounded float64 sum of a one-dimensional array.

    The result is the real-number sum, rounded once (Shewchuk 1997, as in `math.fsum`), so any order gives the same
    bits. Integer arrays are summed in int64 first. A nan makes the sum nan, as do both infinities together.

    Args:
        values: Shape (n,), any integer or float dtype.
    """
    if values.dtype.kind in "iub":
        return float(int(values.sum(dtype=np.int64)))
    try:
        return math.fsum(values.tolist())
    except OverflowError:
        return math.inf if float(np.sum(values / values.size)) > 0 else -math.inf
    except ValueError:  # -inf and inf together
        return math.nan


def exact_mean(values: npt.NDArray[Any]) -> float:
    """`exact_sum` divided by the number of values; nan for an empty array."""
    return exact_sum(values) / values.size if values.size else math.nan


def content_digest(parts: Iterable[bytes]) -> int:
    """A 64-bit BLAKE2b digest of byte strings, each bound to its length.

    It tells a harmless repeat of a sample from a contradictory one; two contents collide with chance 2**-64.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def text_bytes(text: str) -> bytes:
    """UTF-8 bytes of any Python text; a lone surrogate is kept as its three-byte form instead of raising."""
    return text.encode("utf-8", "surrogatepass")
