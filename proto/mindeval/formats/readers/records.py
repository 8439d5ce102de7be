"""What the readers return: tensors, and the bytes of files that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from mindeval.formats.safetensors import ITEM_SIZE

Stamp = tuple[int, int, int]
"""(size in bytes, modification time in ns, inode): a file with another stamp is another file."""

Appended = Union[str, int, float, bool]
"""A value that was saved beside the tensors, such as epoch_num."""


@dataclass(frozen=True)
class ByteSpan:
    """Bytes [begin, end) of a local file."""

    path: str
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Length in bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class TensorRecord:
    """A dense tensor whose bytes (row-major, little-endian) are the spans, one after another.

    Attributes:
        name: Its name.
        dtype: Name of its dtype as in safetensors, such as "BF16".
        shape: Its shape; () for a scalar.
        spans: Where its bytes are; none for a tensor without elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    spans: tuple[ByteSpan, ...]

    @property
    def size_bytes(self) -> int:
        """Length of its bytes."""
        return sum(span.size_bytes for span in self.spans)

    @property
    def item_size(self) -> int:
        """Bytes of one element."""
        return ITEM_SIZE[self.dtype]

    @property
    def path(self) -> str:
        """The file that holds it; "" for a tensor without elements."""
        return self.spans[0].path if self.spans else ""


@dataclass(frozen=True)
class CheckpointFile:
    """One file that was walked through; no tensor was read.

    Attributes:
        path: The file.
        tensors: Its tensors, in the order of the file.
        extras: What is no tensor (text), and the numbers that a trainer appends under well-known names, such as
            epoch_num. The numbers are in `tensors` as well: they are stored as tensors of one element.
        stamp: Size in bytes, modification time in ns and inode of the file while it was read.
        payload_end: Where the tensors end and a checksum may follow (.ckpt); the size of the file otherwise.
        crc: The CRC-32 that the writer left behind the tensors, if it did.
        is_deduplicated: Whether the writer left out what another rank saves (remove_redundancy).
    """

    path: str
    tensors: tuple[TensorRecord, ...]
    extras: Mapping[str, Appended]
    stamp: Stamp
    payload_end: int
    crc: int | None = None
    is_deduplicated: bool = False
    _by_name: dict[str, TensorRecord] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._by_name.update((tensor.name, tensor) for tensor in self.tensors)

    def find(self, name: str) -> TensorRecord | None:
        """The tensor of that name, if there is one."""
        return self._by_name.get(name)
