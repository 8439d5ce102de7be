"""Blobs in a bucket of S3, or of what speaks its protocol (OBS, MinIO), by way of fsspec.

Credentials come from the usual places: AWS_ACCESS_KEY_ID and its like, ~/.aws, the role of the machine.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typing_extensions import override

from mindeval.service.storage.blobs import BLOBS, PACKS, BlobStore, ObjectGoneError, StoredObject
from mindeval.service.storage.cache import ObjectCache

_ADDRESS = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[A-Za-z0-9._-]+)*)/?\Z")
_CONNECTIONS = 16
# On top of this, s3fs tries five times by itself.
_ATTEMPTS = 2
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60


def parse_address(address: str) -> tuple[str, str]:
    """Bucket and prefix of "s3://bucket/prefix"; the prefix may be empty.

    Raises:
        ValueError: With the rule that is broken.
    """
    match = _ADDRESS.match(address)
    if match is None or ".." in address:
        raise ValueError(f"{address!r} is not s3://BUCKET/PREFIX (the prefix of letters, digits, '.', '_', '-', '/')")
    return match["bucket"], match["prefix"].strip("/")


class S3Store(BlobStore):
    """An object is one in the bucket, with the key below the prefix; files for those who need them are in a cache."""

    def __init__(self, address: str, endpoint_url: str, cache: ObjectCache) -> None:
        """Prepares the connection.

        Args:
            address: "s3://bucket/prefix"; the bucket exists.
            endpoint_url: Of the service; "" for Amazon's.
            cache: Where local copies go.

        Raises:
            ImportError: When s3fs is not installed (`pip install mindeval[s3]`).
            OSError: When the bucket cannot be reached.
        """
        import s3fs

        bucket, prefix = parse_address(address)
        self._root = f"{bucket}/{prefix}" if prefix else bucket
        self._cache = cache
        # The checksums that newer clients add by themselves are refused by some services that speak the protocol.
        config = {
            "max_pool_connections": _CONNECTIONS,
            "retries": {"max_attempts": _ATTEMPTS, "mode": "standard"},
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": _READ_TIMEOUT_S,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        self._files: Any = s3fs.S3FileSystem(
            endpoint_url=endpoint_url or None,
            config_kwargs=config,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._files.call_s3("head_bucket", Bucket=bucket)

    @override
    def put(self, item: StoredObject, source: Path) -> None:
        self._files.put_file(str(source), self._path(item.key))
        if self._size(item.key) != item.size_bytes:
            raise OSError(f"the object store did not take all of {item.key}")
        self._cache.discard(item.key)
        source.unlink()

    @override
    def hold(self, item: StoredObject) -> Path:
        def fetch(target: Path) -> None:
            try:
                self._files.get_file(self._path(item.key), str(target))
            except FileNotFoundError:
                raise ObjectGoneError(item.key) from None

        return self._cache.hold(item, fetch)

    @override
    def release(self, key: str) -> None:
        self._cache.release(key)

    @override
    def is_intact(self, item: StoredObject) -> bool:
        # A copy says nothing about the object, and may be what is damaged.
        self._cache.discard(item.key)
        if self._size(item.key) != item.size_bytes:
            return False
        try:
            self.hold(item)
        except ObjectGoneError:
            return False
        self.release(item.key)
        return True

    @override
    def remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))
        self._cache.discard(key)

    @override
    def projects(self) -> list[str]:
        found: set[str] = set()
        for top in (BLOBS, PACKS):
            with contextlib.suppress(FileNotFoundError):
                found.update(str(path).rpartition("/")[2] for path in self._files.ls(self._path(top), detail=False))
        return sorted(found)

    @override
    def objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        found = self._files.find(self._path(prefix.rstrip("/")), detail=True)
        for path, info in found.items():
            yield path[len(self._root) + 1 :], int(info["size"])

    def _size(self, key: str) -> int | None:
        try:
            return int(self._files.info(self._path(key))["size"])
        except FileNotFoundError:
            return None

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"
