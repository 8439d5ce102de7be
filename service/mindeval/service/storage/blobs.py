"""The folder of blobs: blobs/{project}/{2 hex}/{hex}, and uploads/{upload} for bytes on their way.

The order is reserve (the database) → write → fsync → verify → rename → fsync of the directory → visible (the database).
Methods block, and are called on threads of their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindeval.formats.digest import digest_file, digest_hex
from mindeval.service.data_directory import DataDirectory
from mindeval.service.errors import ServiceError
from mindeval.service.storage.records import UploadRecord

# Larger writes are many times slower on some file systems.
_SLICE_BYTES = 256 << 10


@contextmanager
def full_disk_is_storage_full() -> Iterator[None]:
    """Turns the operating system's "no space left" into STORAGE_FULL."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full() from error
        raise


def storage_full() -> ServiceError:
    """The error for bytes that do not fit."""
    return ServiceError("STORAGE_FULL", "the service has no room for these bytes; free some space, or try again later")


class UploadFile:
    """The file of one upload, open for appending.

    Attributes:
        position: Bytes written so far.
        synced: Bytes of them that are on the disk for good.
    """

    def __init__(self, path: Path, offset: int) -> None:
        """Opens the file, made when it is missing, and cuts off what lies beyond the offset."""
        with full_disk_is_storage_full():
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(self._fd, offset)
                os.lseek(self._fd, offset, os.SEEK_SET)
                if offset == 0:
                    _sync_directory(path.parent)
            except OSError:
                os.close(self._fd)
                raise
        self.position = offset
        self.synced = offset

    def append(self, data: bytes) -> None:
        """Writes bytes at the position.

        Raises:
            ServiceError: STORAGE_FULL; the position stays, and what was written beyond it is cut off later.
        """
        view = memoryview(data)
        with full_disk_is_storage_full():
            while view:
                view = view[os.write(self._fd, view[:_SLICE_BYTES]) :]
        self.position += len(data)

    def sync(self) -> int:
        """Puts everything that was written on the disk for good, and tells how many bytes that are."""
        position = self.position
        with full_disk_is_storage_full():
            os.fsync(self._fd)
        self.synced = position
        return position

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


class BlobFolder:
    """Files of blobs and uploads."""

    def __init__(self, directory: DataDirectory) -> None:
        self._blobs = directory.blobs
        self._uploads = directory.uploads

    def path(self, project: str, digest: str) -> Path:
        """Where a visible blob lies."""
        digits = digest_hex(digest)
        return self._blobs / project / digits[:2] / digits

    def open_upload(self, upload: UploadRecord) -> UploadFile:
        """Opens an upload's file at its committed offset."""
        return UploadFile(self._upload_path(upload.id), upload.committed_offset)

    def upload_size(self, upload_id: str) -> int | None:
        """Size in bytes of an upload's file; None when there is none."""
        try:
            return self._upload_path(upload_id).stat().st_size
        except FileNotFoundError:
            return None

    def publish(self, upload: UploadRecord) -> bool:
        """Verifies a whole upload and moves it to its place; False, and nothing moved, when its digest is wrong."""
        source = self._upload_path(upload.id)
        target = self.path(upload.project, upload.digest)
        with full_disk_is_storage_full():
            if upload.size_bytes == 0:
                source.touch(mode=0o600)
            if source.stat().st_size != upload.size_bytes or digest_file(source) != upload.digest:
                return False
            for folder in (target.parent.parent, target.parent):
                if not folder.is_dir():
                    folder.mkdir(mode=0o700, exist_ok=True)
                    _sync_directory(folder.parent)
            os.replace(source, target)
            _sync_directory(target.parent)
            _sync_directory(source.parent)
        return True

    def is_intact(self, project: str, digest: str, size_bytes: int) -> bool:
        """Whether a blob's file is there and has the right bytes."""
        path = self.path(project, digest)
        try:
            return path.stat().st_size == size_bytes and digest_file(path) == digest
        except OSError:
            return False

    def remove_blob(self, project: str, digest: str) -> None:
        """Removes a blob's file; harmless when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self.path(project, digest).unlink()

    def remove_upload(self, upload_id: str) -> None:
        """Removes an upload's file; harmless when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            self._upload_path(upload_id).unlink()

    def upload_ids(self) -> list[str]:
        """Uploads that have a file."""
        return sorted(path.name for path in self._uploads.iterdir())

    def free_bytes(self) -> int:
        """Free space of the disk."""
        return shutil.disk_usage(self._uploads).free

    def _upload_path(self, upload_id: str) -> Path:
        return self._uploads / upload_id


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
