"""Reading pieces of files that may be anything and may change: regular files only, pread only, exact lengths.

A memory map of a file that is cut short ends the process with SIGBUS, so nothing is mapped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Union

from mindeval.formats.errors import FormatError
from mindeval.formats.readers.records import Stamp

PathLike = Union[str, "os.PathLike[str]"]
# Linux moves at most 0x7ffff000 bytes in one call.
_MAX_READ_BYTES = 1 << 30


def unreadable(path: PathLike, what: str, tensor: str = "") -> FormatError:
    """The error for a file that is not what it should be."""
    return _error("CHECKPOINT_UNREADABLE", path, what, tensor)


def truncated(path: PathLike, what: str, tensor: str = "") -> FormatError:
    """The error for a file that ends too early."""
    return _error("CHECKPOINT_TRUNCATED", path, f"{what}; copy or save it again", tensor)


def corrupt(path: PathLike, what: str, tensor: str = "") -> FormatError:
    """The error for bytes that contradict a checksum or another copy."""
    return _error("CHECKPOINT_CORRUPT", path, what, tensor)


def os_error(path: PathLike, error: OSError) -> FormatError:
    """The error for a file that the system does not let us read; metadata hold the name of the errno."""
    found = unreadable(path, (error.strerror or str(error)).lower())
    found.metadata["errno"] = errno.errorcode.get(error.errno or 0, "")
    return found


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells one state of a file from another."""
    return status.st_size, status.st_mtime_ns, status.st_ino


@contextmanager
def open_regular(path: PathLike) -> Iterator[tuple[int, os.stat_result]]:
    """Opens a regular file for reading.

    Yields:
        Its descriptor and status.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when it cannot be opened or is a folder, device or pipe.
    """
    descriptor = _open(path)
    try:
        yield descriptor, _regular_status(path, descriptor)
    finally:
        os.close(descriptor)


def read_at(descriptor: int, offset: int, size: int, path: PathLike) -> bytes:
    """Up to `size` bytes from `offset`; fewer only at the end of the file.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when the system reports an error.
    """
    try:
        piece = os.pread(descriptor, size, offset)
        if not piece or len(piece) == size:
            return piece
        pieces = [piece]
        got = len(piece)
        while got < size:
            piece = os.pread(descriptor, size - got, offset + got)
            if not piece:
                break
            pieces.append(piece)
            got += len(piece)
    except OSError as error:
        raise os_error(path, error) from None
    return b"".join(pieces)


def read_small_file(path: PathLike, max_bytes: int) -> bytes:
    """A whole file.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when it cannot be read or is larger than `max_bytes`.
    """
    with open_regular(path) as (descriptor, status):
        if status.st_size > max_bytes:
            raise unreadable(path, f"{status.st_size} bytes; at most {max_bytes} are read of such a file")
        return read_at(descriptor, 0, status.st_size, path)


class FilePool:
    """Reads pieces of many files and keeps few of them open. For one thread; close it, or use it in `with`.

    A file is known by its path: one that is replaced while it is open is still read as it was.
    """

    def __init__(self, max_open: int = 32, check: Callable[[str, int], None] | None = None) -> None:
        """Prepares a pool.

        Args:
            max_open: How many files may be open at once.
            check: Called with the path and the descriptor of each file that was opened; raises when it is not the one
                that is meant.
        """
        self._max_open = max_open
        self._check = check
        self._descriptors: OrderedDict[str, int] = OrderedDict()

    def __enter__(self) -> FilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read_into(self, path: str, offset: int, target: memoryview, tensor: str = "") -> None:
        """Fills `target` (bytes, contiguous, writable) with the file's bytes from `offset`.

        Raises:
            FormatError: CHECKPOINT_TRUNCATED when the file is shorter by now, CHECKPOINT_UNREADABLE when it cannot be
                read; metadata name the file and the tensor.
        """
        descriptor = self._descriptor(path)
        got = 0
        try:
            while got < len(target):
                count = os.preadv(descriptor, [target[got : got + _MAX_READ_BYTES]], offset + got)
                if count == 0:
                    raise truncated(path, f"the file ends at byte {offset + got}, within a tensor", tensor)
                got += count
        except OSError as error:
            raise os_error(path, error) from None

    def _descriptor(self, path: str) -> int:
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            self._descriptors.move_to_end(path)
            return descriptor
        if len(self._descriptors) >= self._max_open:
            os.close(self._descriptors.popitem(last=False)[1])
        descriptor = _open(path)
        try:
            _regular_status(path, descriptor)
            if self._check is not None:
                self._check(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors[path] = descriptor
        return descriptor


def check_contained(path: PathLike, root: PathLike) -> None:
    """Checks that a path, with symbolic links followed, is inside a folder.

    The cache of huggingface_hub is let through: its snapshots/<revision>/ holds links to ../../blobs/.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when it leads outside.
    """
    real, real_root = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    if real == real_root or real_root in real.parents:
        return
    if real_root.parent.name == "snapshots" and real.parent == real_root.parent.parent / "blobs":
        return
    raise unreadable(path, f"it is a symbolic link that leads out of {root}; copy the file into the folder")


def _open(path: PathLike) -> int:
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer.
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise os_error(path, error) from None
    except ValueError as error:  # a NUL in the path
        raise unreadable(repr(path), str(error)) from None


def _regular_status(path: PathLike, descriptor: int) -> os.stat_result:
    status = _fstat(path, descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise unreadable(path, "not a regular file")
    return status


def _fstat(path: PathLike, descriptor: int) -> os.stat_result:
    try:
        return os.fstat(descriptor)
    except OSError as error:
        raise os_error(path, error) from None


def _error(reason: str, path: PathLike, what: str, tensor: str) -> FormatError:
    metadata = {"file": str(path)}
    if tensor:
        metadata["tensor"] = tensor
        what = f"tensor {tensor!r}: {what}"
    return FormatError(reason, f"{path}: {what}", metadata)
