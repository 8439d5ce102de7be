"""Local copies of objects that lie elsewhere, for those who need files: least recently used ones go first."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path

from mindeval.formats.digest import digest_file
from mindeval.service.storage.blobs import ObjectGoneError, StoredObject, full_disk_is_storage_full

_PARTIAL = ".partial-"


class ObjectCache:
    """Verified copies in a folder. Nothing in it is the only copy of anything, so it may be emptied at any stop."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Takes over what an earlier life has left in the folder, least recently changed first.

        Args:
            folder: Made when it is missing; nothing else may be in it.
            limit_bytes: Bytes that copies may take. What is held does not go, so that a job may need more than this.
        """
        self._folder = folder
        self._limit_bytes = limit_bytes
        # Guards everything below; nothing slow is done while it is held.
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._total_bytes = 0
        self._held: Counter[str] = Counter()
        self._stale: set[str] = set()
        self._fetching: dict[str, threading.Lock] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = []
        for path in folder.rglob("*"):
            if path.name.startswith(_PARTIAL):
                path.unlink()
            elif path.is_file():
                status = path.stat()
                found.append((status.st_mtime, path.relative_to(folder).as_posix(), status.st_size))
        for _, key, size_bytes in sorted(found):
            self._keep(key, size_bytes)
        self._evict()

    def hold(self, item: StoredObject, fetch: Callable[[Path], None]) -> Path:
        """A copy that stays until `release`; fetched, by one of those who ask, when there is none.

        Raises:
            ObjectGoneError: When what was fetched is not what the digest names; also what `fetch` raises.
            ServiceError: STORAGE_FULL.
        """
        path = self._folder / item.key
        with self._lock:
            self._held[item.key] += 1
            turn = self._fetching.setdefault(item.key, threading.Lock())
        try:
            with turn:
                with self._lock:
                    is_there = self._sizes.get(item.key) == item.size_bytes and item.key not in self._stale
                    if is_there:
                        self._sizes.move_to_end(item.key)
                if not is_there or not path.is_file():
                    self._fetch(item, path, fetch)
                    with self._lock:
                        self._keep(item.key, item.size_bytes)
        except BaseException:
            self.release(item.key)
            raise
        self._evict()
        return path

    def release(self, key: str) -> None:
        """Lets go of a copy."""
        with self._lock:
            self._held[key] -= 1
            if self._held[key] > 0:
                return
            del self._held[key]
            self._fetching.pop(key, None)
            if key in self._stale:
                self._drop(key)
        self._evict()

    def discard(self, key: str) -> None:
        """Does not give out this copy again, and removes it as soon as nobody holds it."""
        with self._lock:
            if key not in self._sizes:
                return
            if self._held[key]:
                self._stale.add(key)
            else:
                del self._held[key]
                self._drop(key)

    def _fetch(self, item: StoredObject, path: Path, fetch: Callable[[Path], None]) -> None:
        partial = path.parent / f"{_PARTIAL}{uuid.uuid4().hex}"
        try:
            with full_disk_is_storage_full():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fetch(partial)
                if partial.stat().st_size != item.size_bytes or digest_file(partial) != item.digest:
                    raise ObjectGoneError(item.key)
                # A copy must not survive a power cut half-written under its final name.
                with open(partial, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    def _keep(self, key: str, size_bytes: int) -> None:
        self._total_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes
        self._sizes.move_to_end(key)
        self._stale.discard(key)

    def _evict(self) -> None:
        with self._lock:
            if self._total_bytes <= self._limit_bytes:
                return
            for key in list(self._sizes):
                if self._total_bytes <= self._limit_bytes:
                    break
                if key not in self._held:
                    self._drop(key)

    def _drop(self, key: str) -> None:
        self._total_bytes -= self._sizes.pop(key)
        self._stale.discard(key)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / key).unlink()
