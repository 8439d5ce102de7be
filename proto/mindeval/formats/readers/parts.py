"""A full tensor as parts that lie in several files."""

from __future__ import annotations

from dataclasses import dataclass

from mindeval.formats.readers.records import TensorRecord
from mindeval.formats.safetensors import tensor_size_bytes


@dataclass(frozen=True)
class SlicePart:
    """A block of a full tensor.

    Attributes:
        rank: The rank that saved it.
        record: Where its bytes lie (row-major); its shape is `sizes`.
        offsets: Where the block begins, in elements along each axis.
        sizes: How long it is, in elements along each axis.
    """

    rank: int
    record: TensorRecord
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class AssembledTensor:
    """A full tensor, as blocks that tile it.

    Attributes:
        name: Its name.
        dtype: Name of its dtype as in safetensors.
        shape: Its full shape.
        parts: One holder of each block.
        replicas: The other holders; each has the offsets of a part, and should have its bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[SlicePart, ...]
    replicas: tuple[SlicePart, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Length of the full tensor's bytes."""
        return tensor_size_bytes(self.dtype, self.shape)
