"""Where snapshots and exported graphs lie while the agent reads them.

Each job makes folders of its own and locks them for as long as it lives. A folder whose lock can be taken belongs to a
job that was killed; it is removed by the next one. A lock tells this reliably where a process id does not: containers
that share /dev/shm have ids of their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "mindeval-hook-"
_LOCK = "lock"


class StagingFolder:
    """A folder that is gone when the process ends, normally or not.

    Args:
        parent: Folder to make it in.

    Raises:
        OSError: When it cannot be made.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Locked before it has its name: at no moment does another job see a lock that it could take.
        unnamed = self.path / f"{_LOCK}.new"
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path / _LOCK)
        # Forked dataset workers run exit handlers too; only the owner may remove the folder.
        self._close = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())

    def close(self) -> None:
        """Removes the folder and what is in it."""
        self._close()


def snapshot_parents(size_bytes: int, staging_dir: Path | None) -> Iterator[Path]:
    """Folders to try for two snapshots, the best first.

    Memory (/dev/shm) comes first when it has room for two snapshots and as much again: disk pages are written back
    behind the copy's back and fault again at the next one.

    Args:
        size_bytes: Size of one snapshot.
        staging_dir: The user's choice; None for the system's temporary folder.
    """
    try:
        room = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        room = 0
    if room >= 4 * size_bytes:
        yield SHARED_MEMORY
    if staging_dir is not None:
        yield staging_dir
    yield Path(tempfile.gettempdir())


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or just being made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)
