"""Bytes that are to be sent: pieces of local files or of memory, how they are read, and their digests.

Files are read with pread, never through a memory map: a file that is cut short while it is mapped ends the process with
SIGBUS, and a training job's output folder is just where that happens.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from mindeval.client._errors import CheckpointChanged
from mindeval.formats import digest as digests
from mindeval.formats.errors import FormatError

# Small enough to stay in a core's cache between reading and hashing.
_READ_BYTES = 1 << 20

PathLike = Union[str, "os.PathLike[str]"]
Stamp = tuple[int, int, int]
"""Size, modification time and inode: what tells one state of a file from another."""


@dataclass(frozen=True)
class Span:
    """Bytes [begin, end) of a local file."""

    path: str
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Length in bytes."""
        return self.end - self.begin


@dataclass(frozen=True)
class Inline:
    """Bytes in memory, such as a manifest."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """Length in bytes."""
        return len(self.data)


Content = Union[Span, Inline]


class SpanReader:
    """Reads pieces of local files, keeping few of them open. For one thread."""

    def __init__(self) -> None:
        self._path = ""
        self._descriptor = -1

    def __enter__(self) -> SpanReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file at hand."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path = ""

    def read(self, content: Content, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset` of the content.

        Raises:
            CheckpointChanged: When the file is shorter by now.
            FormatError: CHECKPOINT_UNREADABLE when it cannot be read.
        """
        if isinstance(content, Inline):
            return content.data[offset : offset + size]
        pieces = []
        position, left = content.begin + offset, size
        try:
            descriptor = self._open(content.path)
            while left > 0:
                piece = os.pread(descriptor, left, position)
                if not piece:
                    raise CheckpointChanged(content.path)
                pieces.append(piece)
                position += len(piece)
                left -= len(piece)
        except OSError as error:
            raise os_error(content.path, error) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _open(self, path: str) -> int:
        if path != self._path:
            self.close()
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self._path = path
        return self._descriptor


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
        contents[name] = Span(str(local), 0, status.st_size)
    return contents


def hash_contents(contents: list[Content], threads: int | None = None) -> list[str]:
    """Digest of each content, in order.

    Raises:
        CheckpointChanged: When a file is shorter by now.
        FormatError: CHECKPOINT_UNREADABLE.
    """
    count = max(1, min(threads or min(4, os.cpu_count() or 1), len(contents)))
    results = [""] * len(contents)
    # Largest first, so that no thread is left with a large one at the end.
    order = iter(sorted(range(len(contents)), key=lambda index: -contents[index].size_bytes))
    lock = threading.Lock()

    def work() -> None:
        with SpanReader() as reader:
            while True:
                with lock:
                    index = next(order, None)
                if index is None:
                    return
                results[index] = _digest(contents[index], reader)

    if count == 1:
        work()
        return results
    with ThreadPoolExecutor(count, thread_name_prefix="mindeval-digest") as pool:
        futures = [pool.submit(work) for _ in range(count)]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            with lock:
                order = iter(())
        for future in futures:
            future.result()
    return results


def _digest(content: Content, reader: SpanReader) -> str:
    hasher = digests.Hasher()
    for offset in range(0, content.size_bytes, _READ_BYTES):
        hasher.update(reader.read(content, offset, min(_READ_BYTES, content.size_bytes - offset)))
    return hasher.digest()


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
