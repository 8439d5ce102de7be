"""Sums whose bits do not depend on order or grouping, and digests of what was scored."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
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
        # fsum gives up when a partial sum overflows, even where the whole sum does not; that depends on the order.
        total = ExactSum()
        total.add(values[np.isfinite(values)])
        return total.value() + float(values[~np.isfinite(values)].sum())
    except ValueError:  # -inf and inf together
        return math.nan


def exact_mean(values: npt.NDArray[Any]) -> float:
    """`exact_sum` divided by the number of values; nan for an empty array."""
    return exact_sum(values) / values.size if values.size else math.nan


class ExactSum:
    """A sum of finite float64 numbers kept without any rounding, in 2**-1126 units of one large integer.

    Adding is exact, so it is associative: sums built in any order and merged in any tree are equal. The size is that
    of the integer, about a hundred bytes for numbers of similar magnitude.
    """

    _UNIT_EXPONENT = 1126

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def add(self, values: FloatArray) -> None:
        """Add numbers of shape (n,), all finite."""
        mantissas, exponents = np.frexp(values.astype(np.float64, copy=False))
        whole = (mantissas * 2.0**53).astype(np.int64)
        # Halves, so that int64 sums of up to 2**36 numbers cannot overflow.
        high, low = whole >> 26, whole & ((1 << 26) - 1)
        for exponent in np.unique(exponents).tolist():
            same = exponents == exponent
            part = (int(high[same].sum()) << 26) + int(low[same].sum())
            self.total += part << (exponent - 53 + self._UNIT_EXPONENT)

    def merge(self, other: ExactSum) -> None:
        """Add another sum."""
        self.total += other.total

    def value(self) -> float:
        """The exactly rounded float64 value."""
        try:
            return self.total / (1 << self._UNIT_EXPONENT)
        except OverflowError:
            return math.inf if self.total > 0 else -math.inf

    def to_array(self) -> npt.NDArray[np.uint8]:
        """Little-endian two's complement bytes."""
        size = self.total.bit_length() // 8 + 1
        return np.frombuffer(self.total.to_bytes(size, "little", signed=True), dtype=np.uint8).copy()

    @classmethod
    def from_array(cls, data: npt.NDArray[np.uint8]) -> ExactSum:
        """Read `to_array`'s form."""
        return cls(int.from_bytes(data.tobytes(), "little", signed=True))


def content_digest(parts: Iterable[bytes]) -> int:
    """A 64-bit BLAKE2b digest of byte strings, each bound to its length.

    It tells a harmless repeat of a sample from a contradictory one; two contents collide with chance 2**-64.
    """
    pieces = list(parts)
    lengths = ",".join([str(len(piece)) for piece in pieces]).encode("ascii")
    digest = hashlib.blake2b(b"".join((lengths, b";", *pieces)), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def text_digests(samples: Sequence[Sequence[str]]) -> npt.NDArray[np.uint64]:
    """`content_digest` of the UTF-8 bytes of each sample's texts, shape (n,)."""
    digests = []
    for texts in samples:
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths = ",".join([str(len(part)) for part in parts])
        digests.append(hashlib.blake2b(b"".join((lengths.encode("ascii"), b";", *parts)), digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def text_bytes(text: str) -> bytes:
    """UTF-8 bytes of any Python text; a lone surrogate is kept as its three-byte form instead of raising."""
    return text.encode("utf-8", "surrogatepass")
