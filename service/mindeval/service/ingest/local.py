"""Checkpoints on a file system that the service shares: opened, and bound to what was found when they were opened.

A name says little about where a file lies: any folder on the way may be a symbolic link, and may become one between a
check and its use. So what counts is the descriptor: every file that is read was opened below the root (the kernel says
where a descriptor leads), and its device, inode, size and time are those of the file that was checked.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from mindeval.formats.checkpoints import OpenCheckpoint, open_local
from mindeval.formats.errors import FormatError
from mindeval.formats.readers import FilePool
from mindeval.formats.readers.files import stamp_of
from mindeval.formats.readers.records import Stamp
from mindeval.service.errors import ServiceError
from mindeval.service.ingest.uris import Place, forbidden, outside, unreadable

# What the operating system says of files that are there for others, or not there at all.
_NOT_READABLE = {"EACCES", "EPERM", "ENOENT", "ENOTDIR", "ELOOP", "ENAMETOOLONG", "ESTALE", "EIO"}

_Identity = tuple[int, Stamp]


@dataclass(frozen=True)
class LocalCheckpoint:
    """A checkpoint on a file system, its files approved.

    Attributes:
        opened: Its tensors and files.
        uri: What the user called it.
        state: What tells this state of the files from another, as text.
    """

    opened: OpenCheckpoint
    uri: str
    state: str
    _approved: dict[str, _Identity]

    @classmethod
    def of_spool(cls, opened: OpenCheckpoint, uri: str) -> LocalCheckpoint:
        """One in a folder that only the service writes."""
        approved = {path: (os.stat(path).st_dev, stamp) for path, stamp in opened.stamps.items()}
        return cls(opened, uri, "", approved)

    def reader(self) -> FilePool:
        """A pool that reads only approved files, in the state that was approved."""
        return FilePool(check=self._check)

    def check_unchanged(self) -> None:
        """Looks at the files again.

        Raises:
            ServiceError: CHECKPOINT_CHANGED when one is not what it was.
        """
        for path, (device, stamp) in self._approved.items():
            try:
                status = os.stat(path)
            except OSError:
                raise changed(path) from None
            if (status.st_dev, stamp_of(status)) != (device, stamp):
                raise changed(path)

    def _check(self, path: str, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if self._approved.get(path) != (status.st_dev, stamp_of(status)):
            raise changed(path)


def open_place(project: str, place: Place, roots: list[Place]) -> LocalCheckpoint:
    """Opens a checkpoint on a file system. Reads headers only; blocks.

    Args:
        project: Id of the project, for messages.
        place: What was named.
        roots: The roots of the project on file systems.

    Raises:
        MindEvalError: URI_FORBIDDEN, URI_UNREADABLE, CHECKPOINT_UNREADABLE, CHECKPOINT_TRUNCATED, CHECKPOINT_CHANGED,
            MODEL_UNSUPPORTED or MODEL_INVALID.
    """
    uri = str(place)
    where = os.path.realpath(place.path)
    real_roots = [os.path.realpath(root.path) for root in roots]
    root = next((root for root in real_roots if _is_below(where, root)), None)
    if root is None:
        raise outside(project, uri)
    _check_opens(where, root, uri)
    opened = open_trusted(where, root, uri)
    approved = {path: _approve(path, root, stamp, uri) for path, stamp in opened.stamps.items()}
    state = ";".join(
        f"{os.path.relpath(path, where)}:{device}:{':'.join(map(str, stamp))}"
        for path, (device, stamp) in sorted(approved.items())
    )
    return LocalCheckpoint(opened, uri, state, approved)


def open_trusted(where: str, root: str, uri: str) -> OpenCheckpoint:
    """Opens a checkpoint in a folder that is checked otherwise.

    Raises:
        MindEvalError: As `open_place`.
    """
    try:
        return open_local(where, within=root)
    except FormatError as error:
        if error.metadata.get("errno") in _NOT_READABLE:
            raise unreadable(uri, error.message, error.metadata.get("file", "")) from None
        error.metadata["uri"] = uri
        raise


def changed(path: str) -> ServiceError:
    """The error for a file that is not what it was."""
    return ServiceError(
        "CHECKPOINT_CHANGED",
        f"{path} changed while it was read; name it again once it is written completely",
        {"file": path},
    )


def _check_opens(where: str, root: str, uri: str) -> None:
    """Opens the place itself, so that what cannot be read is told apart from what is no checkpoint."""
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(uri, (error.strerror or errno.errorcode.get(error.errno or 0, "error")).lower()) from None
    try:
        _check_descriptor(descriptor, root, uri)
    finally:
        os.close(descriptor)


def _approve(path: str, root: str, stamp: Stamp, uri: str) -> _Identity:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise changed(path) from None
    try:
        _check_descriptor(descriptor, root, uri)
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if stamp_of(status) != stamp:
        raise changed(path)
    return status.st_dev, stamp


def _check_descriptor(descriptor: int, root: str, uri: str) -> None:
    if not _is_below(os.readlink(f"/proc/self/fd/{descriptor}"), root):
        raise forbidden(uri, "a symbolic link in it leads out of the storage root")


def _is_below(real: str, real_root: str) -> bool:
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")
