"""The data directory: its layout, and the lock that keeps it to one service."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import IO


class DataDirectoryError(Exception):
    """The directory cannot be used; the message is one line for the user."""


class DataDirectory:
    """Owns the directory of one service.

    Attributes:
        root: The directory.
        database: File of the database.
        blobs: Folder of the visible blobs.
        uploads: Folder of the bytes on their way.
        imports: Folder of what is fetched from object stores, emptied at every start.
        cache: Folder of local copies of blobs that lie in an object store.
        runners: Folder with one working directory a device.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.database = self.root / "mindeval.db"
        self.blobs = self.root / "blobs"
        self.uploads = self.root / "uploads"
        self.imports = self.root / "imports"
        self.cache = self.root / "cache"
        self.runners = self.root / "runners"
        self._endpoint = self.root / "endpoint"
        self._lock: IO[str] | None = None

    def acquire(self) -> None:
        """Makes the folders and takes the lock, which the kernel releases when this process ends, however it ends.

        Raises:
            DataDirectoryError: When another service holds it, or it cannot be written.
        """
        try:
            for folder in (self.root, self.blobs, self.uploads, self.imports, self.runners):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = open(self.root / "lock", "a+")  # noqa: SIM115 - held until release()
        except OSError as error:
            raise DataDirectoryError(f"cannot use the data directory {self.root}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read(32).strip()
            lock.close()
            raise DataDirectoryError(
                f"another service uses the data directory {self.root} (process {holder or 'unknown'})"
            ) from None
        for leftover in self.imports.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def publish_endpoint(self, endpoint: str) -> None:
        """Writes the address under which the service can be reached, whole or not at all."""
        temporary = self.root / "endpoint.new"
        temporary.write_text(endpoint + "\n", "utf-8")
        os.replace(temporary, self._endpoint)

    def release(self) -> None:
        """Removes the address and gives the lock back."""
        if self._lock is not None:
            with contextlib.suppress(FileNotFoundError):
                self._endpoint.unlink()
            self._lock.close()
            self._lock = None
