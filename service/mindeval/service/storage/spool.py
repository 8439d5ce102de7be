"""Local files of bytes that are not visible yet: one for each open upload, and packs that are being written.

What a file is written with is hashed on the way. A file that was written from its beginning without interruption
need not be read again to verify it: its digest is of the very bytes that were given to write(2), nobody else may
write it meanwhile, and fsync has said that they are on the disk. Reading it again would be served from the page
cache, and tell nothing more about the disk; what the disk loses later is found by those who read (they verify).
A file that was opened again, after a cut or a restart, is read from the beginning.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from mindeval.formats.digest import Hasher, digest_file
from mindeval.service.storage.blobs import full_disk_is_storage_full
from mindeval.service.storage.folder_store import sync_directory

# Larger writes are many times slower on some file systems.
_SLICE_BYTES = 256 << 10


class SpoolFile:
    """A file that is open for appending.

    Attributes:
        position: Bytes written so far.
        synced: Bytes of them that are on the disk for good.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Opens the file, made when it is missing, and cuts off what lies beyond the offset.

        Raises:
            ServiceError: STORAGE_FULL.
        """
        with full_disk_is_storage_full():
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(self._fd, offset)
                os.lseek(self._fd, offset, os.SEEK_SET)
                if offset == 0:
                    sync_directory(path.parent)
            except OSError:
                os.close(self._fd)
                raise
        self.position = offset
        self.synced = offset
        self._hasher = Hasher() if offset == 0 else None

    @property
    def digest(self) -> str:
        """Digest of everything that was written; "" when the file must be read to know it."""
        return "" if self._hasher is None else self._hasher.digest()

    def append(self, data: bytes | memoryview) -> None:
        """Writes bytes at the position.

        Raises:
            ServiceError: STORAGE_FULL; the position stays, and what was written beyond it is cut off.
        """
        view = memoryview(data)
        try:
            with full_disk_is_storage_full():
                while view:
                    view = view[os.write(self._fd, view[:_SLICE_BYTES]) :]
        except BaseException:
            os.ftruncate(self._fd, self.position)
            os.lseek(self._fd, self.position, os.SEEK_SET)
            raise
        if self._hasher is not None:
            self._hasher.update(data)
        self.position += len(data)

    def sync(self) -> int:
        """Puts everything that was written on the disk for good, and tells how many bytes that are."""
        position = self.position
        if position > self.synced:
            with full_disk_is_storage_full():
                os.fsync(self._fd)
            self.synced = position
        return position

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


class Spool:
    """The folder of these files, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Where a file lies."""
        return self._folder / name

    def open(self, name: str, offset: int = 0) -> SpoolFile:
        """Opens a file for appending at an offset."""
        return SpoolFile(self.path(name), offset)

    def size(self, name: str) -> int | None:
        """Size in bytes of a file; None when there is none."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return None

    def digest(self, name: str) -> str:
        """Digest of a file, read from the beginning."""
        return digest_file(self.path(name))

    def touch(self, name: str) -> None:
        """Makes an empty file unless there is one."""
        with full_disk_is_storage_full():
            self.path(name).touch(mode=0o600)

    def remove(self, name: str) -> None:
        """Removes a file; harmless when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self.path(name).unlink()

    def names(self) -> list[str]:
        """Names of all files."""
        return sorted(path.name for path in self._folder.iterdir())

    def free_bytes(self) -> int:
        """Free space of the disk."""
        return shutil.disk_usage(self._folder).free
