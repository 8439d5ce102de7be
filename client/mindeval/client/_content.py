"""Bytes that are to be sent: parts of local files, tensors put together from slices, or memory; and how they are read.

Files are read with pread, never through a memory map: a file that is cut short while it is mapped ends the process with
SIGBUS, and a training job's output folder is just where that happens.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from mindeval.client._errors import CheckpointChanged
from mindeval.formats.checkpoints import TensorContent
from mindeval.formats.errors import FormatError
from mindeval.formats.readers import AssembledTensor, ByteSpan, FilePool

PathLike = Union[str, "os.PathLike[str]"]
Stamp = tuple[int, int, int]
"""Size, modification time and inode: what tells one state of a file from another."""

# A slice of a distributed tensor is read in runs of this length.
_ASSEMBLY_BYTES = 1 << 20


@dataclass(frozen=True)
class Inline:
    """Bytes in memory, such as a manifest."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """Length in bytes."""
        return len(self.data)

    @property
    def path(self) -> str:
        """The file that they are from; "" for none."""
        return ""


Content = Union[TensorContent, ByteSpan, Inline]
"""A tensor (in one file, or in slices of several), a range of a file, or memory."""


@dataclass(frozen=True)
class Blob:
    """What one blob holds: bytes [begin, begin + size_bytes) of a content."""

    digest: str
    content: Content
    begin: int
    size_bytes: int


class ContentReader:
    """Reads pieces of contents, keeping few files open. For one thread."""

    def __init__(self) -> None:
        self._files = FilePool(max_open=16)
        # A tensor in slices is put together in order; reading goes on where it was.
        self._assembly: Iterator[bytes] = iter(())
        self._assembled: TensorContent | None = None
        self._position = 0
        self._left = memoryview(b"")

    def __enter__(self) -> ContentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files at hand."""
        self._assembled = None
        self._assembly = iter(())
        self._files.close()

    def read_into(self, content: Content, offset: int, target: memoryview) -> None:
        """Fills `target` with the content's bytes from `offset`.

        Raises:
            CheckpointChanged: When a file is shorter by now.
            FormatError: CHECKPOINT_UNREADABLE when it cannot be read.
        """
        if isinstance(content, Inline):
            target[:] = content.data[offset : offset + len(target)]
            return
        if not target:
            return
        try:
            spans = (content,) if isinstance(content, ByteSpan) else content.spans(offset, offset + len(target))
            if spans is None:
                assert isinstance(content, TensorContent)
                self._read_assembled(content, offset, target)
                return
            base = offset if isinstance(content, ByteSpan) else 0
            done = 0
            for span in spans:
                count = min(span.size_bytes - base, len(target) - done)
                self._files.read_into(span.path, span.begin + base, target[done : done + count])
                done += count
        except FormatError as error:
            if error.reason == "CHECKPOINT_TRUNCATED":  # it was long enough when it was opened
                raise CheckpointChanged(error.metadata.get("file", content_path(content))) from None
            raise

    def read(self, content: Content, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset` of the content.

        Raises:
            CheckpointChanged: As `read_into`.
            FormatError: As `read_into`.
        """
        if isinstance(content, Inline):
            return content.data[offset : offset + size]
        data = bytearray(size)
        self.read_into(content, offset, memoryview(data))
        return bytes(data)

    def _read_assembled(self, tensor: TensorContent, offset: int, target: memoryview) -> None:
        if tensor is not self._assembled or offset != self._position:
            self._assembled, self._position, self._left = tensor, offset, memoryview(b"")
            self._assembly = tensor.iter_bytes(offset, None, _ASSEMBLY_BYTES, self._files)
        done = 0
        while done < len(target):
            if not self._left:
                self._left = memoryview(next(self._assembly))
            count = min(len(self._left), len(target) - done)
            target[done : done + count] = self._left[:count]
            self._left = self._left[count:]
            done += count
        self._position += done


def content_path(content: Content) -> str:
    """A file that the content is from, for messages; "" for none."""
    if isinstance(content, TensorContent):
        source = content.source
        if isinstance(source, AssembledTensor):
            return source.parts[0].record.path if source.parts else ""
        return source.path
    return content.path


def file_contents(files: Mapping[str, Path], stamps: dict[str, Stamp]) -> dict[str, Content]:
    """Whole local files as contents; their stamps are added to `stamps`.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE.
    """
    contents: dict[str, Content] = {}
    for name, local in files.items():
        status = stat_of(local)
        if not stat.S_ISREG(status.st_mode):
            raise unreadable(local, "not a regular file")
        stamps[str(local)] = stamp_of(status)
        contents[name] = ByteSpan(str(local), 0, status.st_size)
    return contents


def check_unchanged(stamps: Mapping[str, Stamp]) -> None:
    """Compares local files with what they were when their stamps were taken.

    Raises:
        CheckpointChanged: For the first one that differs.
    """
    for path, stamp in stamps.items():
        try:
            if stamp_of(os.stat(path)) == stamp:
                continue
        except OSError:
            pass
        raise CheckpointChanged(path)


def stat_of(path: Path) -> os.stat_result:
    """Status of a file.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE.
    """
    try:
        return os.stat(path)
    except OSError as error:
        raise os_error(path, error) from None


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells one state of a file from another."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def os_error(path: Any, error: OSError) -> FormatError:
    """The error for a file that the system does not let us read."""
    return unreadable(path, (error.strerror or str(error)).lower())


def unreadable(path: Any, what: str) -> FormatError:
    """The error for a file that is not what it should be."""
    return FormatError("CHECKPOINT_UNREADABLE", f"{path}: {what}", {"file": str(path)})
