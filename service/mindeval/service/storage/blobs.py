"""The interface of blob stores: immutable objects by key, durable once they are put.

An object is a blob of its own, `blobs/{project}/{2 hex}/{hex}`, or a pack of many small blobs, `packs/{project}/{id}`.
What an object holds is known by its digest, so whoever reads one can tell whether it is what was put. Methods block,
may be called from any thread, and are called on threads of their own. Implementations are held to one contract suite
(tests/service/test_blob_stores.py).
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mindeval.formats.digest import digest_hex
from mindeval.service.errors import ServiceError

BLOBS, PACKS = "blobs", "packs"


@dataclass(frozen=True)
class StoredObject:
    """What a store keeps under one key."""

    key: str
    digest: str
    size_bytes: int


class ObjectGoneError(Exception):
    """The store does not have an object, or not with the bytes that its digest names.

    Attributes:
        key: Of the object.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"the blob store has lost {key}")
        self.key = key


class BlobStore(ABC):
    """Where the bytes of visible blobs lie."""

    @abstractmethod
    def put(self, item: StoredObject, source: Path) -> None:
        """Takes a file into the store; the object is durable, and the file gone, when this returns.

        An object of the same key is replaced: it has the same bytes, or was damaged.

        Args:
            item: What to put; nothing is verified here.
            source: A file that is durable and changes no more, in the folder of uploads.

        Raises:
            ServiceError: STORAGE_FULL; the file is still there.
        """

    @abstractmethod
    def hold(self, item: StoredObject) -> Path:
        """A local file with the object's bytes, which stays there until `release` was called as often as this.

        Raises:
            ObjectGoneError: When the object is not there, or has another size.
            ServiceError: STORAGE_FULL when there is no room for a local copy.
        """

    @abstractmethod
    def release(self, key: str) -> None:
        """Lets go of what `hold` gave."""

    @abstractmethod
    def is_intact(self, item: StoredObject) -> bool:
        """Whether the object is there with just the bytes that its digest names; reads all of it."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Removes an object, its local file as soon as nobody holds it; harmless when it is not there."""

    @abstractmethod
    def projects(self) -> list[str]:
        """Projects that have objects."""

    @abstractmethod
    def objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Key and size in bytes of every object below a prefix, such as "packs/p/" or "blobs/p/0a/"."""


def blob_key(project: str, digest: str) -> str:
    """Key of a blob that is an object of its own."""
    digits = digest_hex(digest)
    return f"{BLOBS}/{project}/{digits[:2]}/{digits}"


def pack_key(project: str, pack: str) -> str:
    """Key of a pack."""
    return f"{PACKS}/{project}/{pack}"


@contextmanager
def full_disk_is_storage_full() -> Iterator[None]:
    """Turns the operating system's "no space left" into STORAGE_FULL."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise storage_full() from error
        raise


def storage_full() -> ServiceError:
    """The error for bytes that do not fit."""
    return ServiceError("STORAGE_FULL", "the service has no room for these bytes; free some space, or try again later")
