"""Blobs in a folder of this machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from typing_extensions import override

from mindeval.formats.digest import digest_file
from mindeval.service.storage.blobs import (
    BLOBS,
    PACKS,
    BlobStore,
    ObjectGoneError,
    StoredObject,
    full_disk_is_storage_full,
)


class FolderStore(BlobStore):
    """An object is a file whose path is its key. Uploads must be on the same file system: a put is a rename."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Guards the two below, and the moment in which a file appears or goes.
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._doomed: set[str] = set()

    @override
    def put(self, item: StoredObject, source: Path) -> None:
        target = self._root / item.key
        with full_disk_is_storage_full():
            _make_folder(target.parent, self._root)
            with self._lock:
                os.replace(source, target)
                self._doomed.discard(item.key)
            sync_directory(target.parent)
            sync_directory(source.parent)

    @override
    def hold(self, item: StoredObject) -> Path:
        path = self._root / item.key
        with self._lock:
            if item.key not in self._doomed:
                with contextlib.suppress(OSError):
                    if path.stat().st_size == item.size_bytes:
                        self._held[item.key] += 1
                        return path
        raise ObjectGoneError(item.key)

    @override
    def release(self, key: str) -> None:
        with self._lock:
            self._held[key] -= 1
            if self._held[key] > 0:
                return
            del self._held[key]
            if key in self._doomed:
                self._doomed.discard(key)
                self._unlink(key)

    @override
    def is_intact(self, item: StoredObject) -> bool:
        path = self._root / item.key
        try:
            return path.stat().st_size == item.size_bytes and digest_file(path) == item.digest
        except OSError:
            return False

    @override
    def remove(self, key: str) -> None:
        with self._lock:
            if self._held[key]:
                self._doomed.add(key)
            else:
                del self._held[key]
                self._unlink(key)

    @override
    def projects(self) -> list[str]:
        return sorted({entry.name for top in (BLOBS, PACKS) for entry in _entries(self._root / top)})

    @override
    def objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        for entry in _entries(self._root / prefix):
            key = f"{prefix.rstrip('/')}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from self.objects(key)
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield key, entry.stat(follow_symlinks=False).st_size

    def _unlink(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._root / key).unlink()


def sync_directory(path: Path) -> None:
    """Makes durable which files a directory has."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_folder(folder: Path, root: Path) -> None:
    if folder == root or folder.is_dir():
        return
    _make_folder(folder.parent, root)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_directory(folder.parent)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
