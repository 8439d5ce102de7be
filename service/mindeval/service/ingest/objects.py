"""Checkpoints in an object store (S3, and what speaks its protocol, such as OBS): fetched into a spool and read there.

The readers jump about in files, so objects are fetched whole. Only those that the checkpoint consists of are: a
skeleton of the folder, with files of the right names and sizes but without content, shows which ones they are.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mindeval.formats.errors import FormatError, MindEvalError
from mindeval.formats.model import DESCRIPTION_FILE
from mindeval.formats.readers.layouts import INDEX_FILE, MONITOR_FOLDERS
from mindeval.formats.ride_along import ride_along_files
from mindeval.formats.selection import find_checkpoint
from mindeval.service.errors import ServiceError
from mindeval.service.ingest.local import changed
from mindeval.service.ingest.uris import Place, outside, unreadable
from mindeval.service.storage.blobs import full_disk_is_storage_full, storage_full

MAX_OBJECTS = 10_000
_DEPTH = 3
_CHUNK_BYTES = 4 << 20
_MAX_DESCRIPTION_BYTES = 64 << 20
_CONNECT_TIMEOUT_S = 10
_READ_TIMEOUT_S = 60
_RANK_FOLDER = re.compile(r"rank_\d{1,7}\Z")


@dataclass(frozen=True)
class RemoteObject:
    """One object.

    Attributes:
        key: Its key.
        size_bytes: Its size.
        etag: Changes with its content.
    """

    key: str
    size_bytes: int
    etag: str


@dataclass(frozen=True)
class RemoteCheckpoint:
    """A checkpoint in a bucket: what it consists of, nothing fetched yet but descriptions.

    Attributes:
        place: What was named.
        named: The same, as a path in the spool.
        base: The prefix that the spool stands for.
        objects: What it consists of, by path relative to the spool.
        state: What tells this state of the objects from another, as text.
    """

    place: Place
    named: str
    base: Place
    objects: dict[str, RemoteObject]
    state: str

    @property
    def size_bytes(self) -> int:
        """Of all its objects."""
        return sum(item.size_bytes for item in self.objects.values())


class ObjectReader:
    """Reads buckets. Methods block."""

    def __init__(self, endpoint_url: str, min_free_bytes: int) -> None:
        """Takes the address of the object store ("" for Amazon's) and how much of the disk must stay free.

        Keys come from where boto3 takes them: AWS_ACCESS_KEY_ID and the like, or the machine's role.
        """
        self._endpoint_url = endpoint_url
        self._min_free_bytes = min_free_bytes

    def look(self, project: str, place: Place, roots: list[Place], spool: Path) -> RemoteCheckpoint:
        """Finds what a checkpoint consists of.

        Args:
            project: Id of the project, for messages.
            place: What was named.
            roots: The roots of the project in this bucket.
            spool: An empty folder, which gets the skeleton.

        Raises:
            MindEvalError: URI_FORBIDDEN, URI_UNREADABLE, CHECKPOINT_UNREADABLE, MODEL_UNSUPPORTED or MODEL_INVALID.
        """
        root = next((root for root in roots if place.is_below(root)), None)
        if root is None:
            raise outside(project, str(place))
        with _translated(place):
            files = self._files
            base = _base(place, root, _is_object(files, place))
            listed = {
                relative: item
                for relative, item in _listing(files, base).items()
                if Place(place.scheme, place.bucket, tuple(item.key.split("/"))).is_below(root)
            }
            if not listed:
                raise unreadable(str(place), "there is no such object, and none below it")
            for relative, item in listed.items():
                path = spool / relative
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if path.name in (INDEX_FILE, DESCRIPTION_FILE) and item.size_bytes <= _MAX_DESCRIPTION_BYTES:
                    self._fetch(files, place, item, path, _go_on)
                else:
                    with open(path, "wb") as file:
                        file.truncate(item.size_bytes)
            named = spool.joinpath(*place.parts[len(base.parts) :])
            with renamed(spool, base):
                candidate = find_checkpoint(named, within=spool)
                riding = ride_along_files(candidate, named, within=spool)
            paths = [file.path for file in candidate.files] + list(candidate.strategy_files) + list(riding.values())
            names = dict.fromkeys(os.path.relpath(path, spool) for path in paths)
            objects = {name: listed[name] for name in names}
        state = ";".join(f"{item.key}:{item.size_bytes}:{item.etag}" for item in objects.values())
        return RemoteCheckpoint(place, str(named.relative_to(spool)), base, objects, state)

    def fetch(self, checkpoint: RemoteCheckpoint, spool: Path, check_running: Callable[[], None]) -> None:
        """Fetches what a checkpoint consists of into an empty folder; `check_running` raises to end it.

        Raises:
            ServiceError: CHECKPOINT_CHANGED, URI_UNREADABLE, STORAGE_FULL or SERVICE_DRAINING.
        """
        if checkpoint.size_bytes + self._min_free_bytes > shutil.disk_usage(spool).free:
            raise storage_full()
        with _translated(checkpoint.place):
            files = self._files
            for relative, item in checkpoint.objects.items():
                path = spool / relative
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fetch(files, checkpoint.place, item, path, check_running)

    def check_unchanged(self, checkpoint: RemoteCheckpoint) -> None:
        """Looks at the objects again.

        Raises:
            ServiceError: CHECKPOINT_CHANGED when one is not what it was; URI_UNREADABLE.
        """
        with _translated(checkpoint.place):
            files = self._files
            for item in checkpoint.objects.values():
                try:
                    now = _object(item.key, files.info(f"{checkpoint.place.bucket}/{item.key}"))
                except FileNotFoundError:
                    now = None
                if now != item:
                    raise changed(_uri(checkpoint.place, item.key))

    def _fetch(
        self, files: Any, place: Place, item: RemoteObject, path: Path, check_running: Callable[[], None]
    ) -> None:
        name = f"{place.bucket}/{item.key}"
        if _object(item.key, files.info(name)) != item:
            raise changed(_uri(place, item.key))
        try:
            with full_disk_is_storage_full(), files.open(name, "rb", cache_type="none") as source:
                got = _copy(source, path, item.size_bytes, check_running)
        except OSError as error:
            # How s3fs says that the object has another ETag than when it was opened.
            if error.errno != errno.EBUSY:
                raise
            got = -1
        if got != item.size_bytes:
            raise changed(_uri(place, item.key))

    @cached_property
    def _files(self) -> Any:
        try:
            import fsspec  # An optional part of the installation.
        except ImportError:
            raise ServiceError(
                "URI_UNREADABLE", "this service reads no s3:// URIs: install mindeval[s3] beside it"
            ) from None
        config = {
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "read_timeout": _READ_TIMEOUT_S,
            # Some services that speak the protocol do not know the checksums that newer clients expect.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        return fsspec.filesystem(
            "s3",
            endpoint_url=self._endpoint_url or None,
            config_kwargs=config,
            # Listings must be of now, not of an earlier call.
            use_listings_cache=False,
            skip_instance_cache=True,
        )


@contextmanager
def renamed(spool: Path, base: Place) -> Iterator[None]:
    """Puts URIs for paths of the spool into errors about files in it."""
    try:
        yield
    except MindEvalError as error:
        old, new = f"{spool}/", f"{str(base).rstrip('/')}/"
        if not any(old in text for text in (error.message, *error.metadata.values())):
            raise
        metadata = {key: value.replace(old, new) for key, value in error.metadata.items()}
        raise ServiceError(error.reason, error.message.replace(old, new), metadata) from None


def _base(place: Place, root: Place, is_object: bool) -> Place:
    """The prefix to list: the place and as much around it as `open_local` looks at, not beyond the root."""
    parts = place.parts
    if is_object:
        parts = parts[:-1]
        if parts and _RANK_FOLDER.match(parts[-1]):
            parts = parts[:-1]
    if parts and parts[-1] in MONITOR_FOLDERS:
        parts = parts[:-1]
    if len(parts) < len(root.parts):
        parts = place.parts[:-1] if root == place and is_object else root.parts
    return Place(place.scheme, place.bucket, parts)


def _is_object(files: Any, place: Place) -> bool:
    if not place.parts:
        return False
    try:
        return bool(files.info(f"{place.bucket}/{place.path}")["type"] == "file")
    except FileNotFoundError:
        raise unreadable(str(place), "there is no such object, and none below it") from None


def _listing(files: Any, base: Place) -> dict[str, RemoteObject]:
    """The objects below a prefix by relative path; those with names that no file can have are left out."""
    prefix = f"{base.path}/" if base.parts else ""
    found = files.find(f"{base.bucket}/{prefix}", maxdepth=_DEPTH, detail=True)
    if len(found) > MAX_OBJECTS:
        raise unreadable(str(base), f"there are more than {MAX_OBJECTS} objects below it; name the checkpoint itself")
    listed: dict[str, RemoteObject] = {}
    for name, info in found.items():
        key = name.partition("/")[2]
        relative = key[len(prefix) :]
        parts = relative.split("/")
        if info["type"] == "file" and not any(part in ("", ".", "..") or "\0" in part for part in parts):
            listed[relative] = _object(key, info)
    return listed


def _object(key: str, info: dict[str, Any]) -> RemoteObject:
    return RemoteObject(key, int(info["size"]), str(info.get("ETag") or info.get("LastModified", "")))


def _copy(source: Any, path: Path, limit_bytes: int, check_running: Callable[[], None]) -> int:
    """Writes a file from a stream, and tells how many bytes were there; stops soon after the limit."""
    got = 0
    with open(path, "wb") as file:
        while got <= limit_bytes and (data := source.read(_CHUNK_BYTES)):
            check_running()
            got += len(data)
            file.write(data)
    return got


def _go_on() -> None:
    """Descriptions are small; nothing needs to end their transfer."""


def _uri(place: Place, key: str) -> str:
    return f"{place.scheme}://{place.bucket}/{key}"


@contextmanager
def _translated(place: Place) -> Iterator[None]:
    """What the object store says, as errors of ours."""
    try:
        yield
    except (FormatError, ServiceError):
        raise
    except PermissionError:
        raise unreadable(str(place), "permission denied; check the service's keys for the object store") from None
    except FileNotFoundError:
        raise unreadable(str(place), "it is gone, or the bucket is not there") from None
    except Exception as error:
        # The client library lets all of its errors, and those of the network, out as they are.
        raise unreadable(str(place), f"the object store cannot be read ({type(error).__name__}: {error})") from error
