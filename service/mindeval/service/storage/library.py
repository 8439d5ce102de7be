"""Blobs as the rest of the service sees them: what is there, where it lies, and what to do when it is lost.

Whoever adds an object to the blob store, or removes one, holds the lock of its key until the database agrees, and
looks at the database again once the lock is held. So an object is removed only when no visible blob lies in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mindeval.formats.digest import ALGORITHM, digest_bytes
from mindeval.service.errors import BlobsMissingError, ServiceError
from mindeval.service.runtime.messages import BlobLocation
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import BlobStore, ObjectGoneError, StoredObject, blob_key, pack_key
from mindeval.service.storage.records import BlobRecord, PackedBlob, PackRecord, UploadRecord, now_us

_log = logging.getLogger(__name__)

# Local copies that are fetched at the same time when the blob store is not of this machine.
_FETCHES = 4
_TOUCHED_AT_ONCE = 5_000
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class Lease:
    """Blobs that lie still; `BlobLibrary.leased` gives one.

    Attributes:
        locations: Where each of them lies.
    """

    locations: Mapping[str, BlobLocation]


class BlobLibrary:
    """The visible blobs of all projects. Used on the event loop only."""

    def __init__(self, access: StoreAccess, store: BlobStore, grace_s: float) -> None:
        """Puts the parts together.

        Args:
            access: The database.
            store: The bytes.
            grace_s: Seconds for which a blob that was asked for stays, whatever the budget says.
        """
        self.store = store
        self._access = access
        self._index = access.store.blobs
        self._grace_us = round(grace_s * 1_000_000)
        self._locks: dict[str, asyncio.Lock] = {}
        self._lock_users: Counter[str] = Counter()

    @property
    def idle_before_us(self) -> int:
        """What was used since then must stay."""
        # Use is noted once in a quarter of the grace time (see `sizes`), and the promise is of a whole one.
        return now_us() - self._grace_us - self._grace_us // 4

    async def sizes(self, project: str, digests: Sequence[str]) -> dict[str, int]:
        """Size in bytes of those blobs that are there, which stay for the grace time."""
        return {digest: blob.size_bytes for digest, blob in (await self._used(project, digests)).items()}

    @asynccontextmanager
    async def leased(self, project: str, digests: Sequence[str], what: str) -> AsyncIterator[Lease]:
        """Blobs at places where they stay, unchanged, until the block ends.

        Args:
            project: Id of the project.
            digests: Which blobs.
            what: What needs them, for the message.

        Raises:
            BlobsMissingError: When some are not there, or turn out to be lost.
            ServiceError: STORAGE_FULL when there is no room for local copies.
        """
        held: dict[str, Path] = {}
        try:
            locations = await self._locate(project, list(dict.fromkeys(digests)), what, held)
            yield Lease(locations)
        finally:
            for key in held:
                self.store.release(key)

    async def read(self, project: str, digest: str, what: str) -> bytes:
        """All bytes of a blob that is known to be small, verified.

        Raises:
            BlobsMissingError: When it is not there, or is lost.
        """
        async with self.leased(project, [digest], what) as lease:
            data = await asyncio.to_thread(_read, lease.locations[digest])
        if digest_bytes(data) != digest:
            await self.drop_damaged(project, [digest])
            raise BlobsMissingError(what, [digest])
        return data

    async def publish(self, upload: UploadRecord, source: Path) -> UploadRecord:
        """Takes a verified, durable file as the blob of an upload, and makes it visible.

        Raises:
            ServiceError: STORAGE_FULL, then the file is still there; UPLOAD_NOT_FOUND.
        """
        item = StoredObject(blob_key(upload.project, upload.digest), upload.digest, upload.size_bytes)
        async with self._locked(item.key):
            await asyncio.to_thread(self.store.put, item, source)
            return await self._complete(upload)

    async def complete_put(self, upload: UploadRecord) -> bool:
        """As `publish`, for an object that an earlier life of the service has put; False when it is not there."""
        item = StoredObject(blob_key(upload.project, upload.digest), upload.digest, upload.size_bytes)
        async with self._locked(item.key):
            if not await asyncio.to_thread(self.store.is_intact, item):
                return False
            await self._complete(upload)
            return True

    async def publish_pack(
        self, pack: PackRecord, blobs: Sequence[PackedBlob], source: Path, replaced: str = ""
    ) -> int:
        """Takes a verified, durable file as a pack, and makes its blobs visible.

        Args:
            pack: The pack.
            blobs: What is in it.
            source: The file.
            replaced: Id of a pack whose blobs move into this one; it is removed.

        Returns:
            How many blobs were not visible before (or were moved).

        Raises:
            ServiceError: STORAGE_FULL, then the file is still there.
        """
        item = StoredObject(pack_key(pack.project, pack.id), pack.digest, pack.size_bytes)
        async with self._locked(item.key):
            await asyncio.to_thread(self.store.put, item, source)
            if replaced:
                count = await self._access.write(self._index.replace_pack, replaced, pack, blobs)
            else:
                count = await self._access.write(self._index.add_pack, pack, blobs)
        if not count:
            await self.sweep(pack.project, [item.key])
        if replaced:
            await self.sweep(pack.project, [pack_key(pack.project, replaced)])
        return count

    async def drop_damaged(self, project: str, digests: Sequence[str]) -> list[str]:
        """Verifies blobs, and forgets those whose bytes are lost, so that they are asked for again; tells which."""
        blobs = await self._access.read(self._index.find, project, digests)
        items = await self._objects(project, blobs.values())
        by_object: dict[str, list[BlobRecord]] = {}
        for blob in blobs.values():
            by_object.setdefault(blob.pack or blob.digest, []).append(blob)
        dropped: list[str] = []
        for name, suspects in by_object.items():
            item = items[name]
            async with self._locked(item.key):
                # They may have been sent again, or moved, while this waited for the lock.
                now = await self._access.read(self._index.find, project, [blob.digest for blob in suspects])
                suspects = [blob for blob in now.values() if (blob.pack or blob.digest) == name]
                try:
                    lost = await asyncio.to_thread(self._damaged, suspects, item)
                except ObjectGoneError:
                    # With a pack, everything in it is lost.
                    suspects = await self._access.read(self._index.packed, project, name)
                    lost = [blob.digest for blob in suspects]
                if lost:
                    await self._access.write(self._index.remove, project, lost)
            if lost:
                _log.warning("%d blobs are lost", len(lost), extra={"project": project, "object": item.key})
                await self.sweep(project, [item.key])
            dropped += lost
        return dropped

    async def sweep(self, project: str, keys: Iterable[str]) -> int:
        """Removes those of the objects that no visible blob lies in, and tells how many."""
        count = 0
        ordered = sorted(keys)
        for begin in range(0, len(ordered), _KEYS_AT_ONCE):
            part = ordered[begin : begin + _KEYS_AT_ONCE]
            async with AsyncExitStack() as locks:
                # In order, and nobody else waits for a second lock while holding one.
                for key in part:
                    await locks.enter_async_context(self._locked(key))
                used = await self._keys_in_use(project, part)
                unused = [key for key in part if key not in used]
                await asyncio.to_thread(self._remove, unused)
                count += len(unused)
        return count

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.store.remove(key)

    async def _keys_in_use(self, project: str, keys: Sequence[str]) -> set[str]:
        """Keys among these that visible blobs lie in; packs among the others are forgotten."""
        names = [key.rpartition("/")[2] for key in keys]
        packs = [name for key, name in zip(keys, names) if key == pack_key(project, name)]
        used: set[str] = set()
        if packs:
            await self._access.write(self._index.forget_packs, project, packs)
            kept = await self._access.read(self._index.find_packs, project, packs)
            used.update(pack_key(project, name) for name in kept)
        if len(packs) < len(keys):
            digests = [f"{ALGORITHM}:{name}" for name in names]
            found = await self._access.read(self._index.find, project, digests)
            used.update(blob_key(project, blob.digest) for blob in found.values() if not blob.pack)
        return used

    async def _complete(self, upload: UploadRecord) -> UploadRecord:
        record = await self._access.write(self._index.complete, upload.id)
        found = (await self._access.read(self._index.find, upload.project, [upload.digest])).get(upload.digest)
        if found is not None and found.pack:
            # It came in a pack as well, and was visible there first.
            await asyncio.to_thread(self.store.remove, blob_key(upload.project, upload.digest))
        return record

    async def _used(self, project: str, digests: Sequence[str]) -> dict[str, BlobRecord]:
        """Those that are there; their use is noted, unless that was done a short while ago."""
        found = await self._access.read(self._index.find, project, digests)
        stale_us = now_us() - self._grace_us // 4
        stale = [digest for digest, blob in found.items() if blob.use_us < stale_us]
        # In parts, because other writes wait for each.
        for begin in range(0, len(stale), _TOUCHED_AT_ONCE):
            part = stale[begin : begin + _TOUCHED_AT_ONCE]
            still = await self._access.write(self._index.touch, project, part, now_us())
            for digest in part:
                if digest not in still:
                    del found[digest]
        return found

    async def _locate(
        self, project: str, digests: list[str], what: str, held: dict[str, Path]
    ) -> dict[str, BlobLocation]:
        lost: list[str] = []
        for _ in range(3):
            blobs = await self._used(project, digests)
            missing = [digest for digest in digests if digest not in blobs]
            if missing:
                raise BlobsMissingError(what, missing)
            items = await self._objects(project, blobs.values())
            gone = await self._hold([item for item in items.values() if item.key not in held], held)
            if not gone:
                keys = {name: item.key for name, item in items.items()}
                return {
                    digest: BlobLocation(str(held[keys[blob.pack or digest]]), blob.offset, blob.size_bytes)
                    for digest, blob in blobs.items()
                }
            # Lost, or moved to another pack since the database was asked: the next round tells which.
            lost = [digest for digest, blob in blobs.items() if items[blob.pack or digest].key in gone]
            await self.drop_damaged(project, lost)
        raise BlobsMissingError(what, lost)

    async def _hold(self, items: Sequence[StoredObject], held: dict[str, Path]) -> set[str]:
        """Holds objects, and tells the keys of those that are gone."""
        gone: set[str] = set()

        def hold(part: Sequence[StoredObject]) -> None:
            for item in part:
                try:
                    held[item.key] = self.store.hold(item)
                except ObjectGoneError:
                    gone.add(item.key)

        work = asyncio.gather(
            *(asyncio.to_thread(hold, items[begin::_FETCHES]) for begin in range(_FETCHES) if begin < len(items)),
            return_exceptions=True,
        )
        try:
            results = await asyncio.shield(work)
        except asyncio.CancelledError:
            # Threads cannot be stopped, and what they hold is let go of only when they have ended.
            await work
            raise
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return gone

    async def _objects(self, project: str, blobs: Iterable[BlobRecord]) -> dict[str, StoredObject]:
        """The objects that blobs lie in, by id of the pack, or by digest for those without."""
        blobs = list(blobs)
        ids = list({blob.pack for blob in blobs if blob.pack})
        packs = await self._access.read(self._index.find_packs, project, ids) if ids else {}
        objects = {
            blob.digest: StoredObject(blob_key(project, blob.digest), blob.digest, blob.size_bytes)
            for blob in blobs
            if not blob.pack
        }
        for name in ids:
            # A pack that was replaced in between has no row any more; its object is as good as gone.
            pack = packs.get(name, PackRecord(project, name, "", -1))
            objects[name] = StoredObject(pack_key(project, name), pack.digest, pack.size_bytes)
        return objects

    def _damaged(self, blobs: Sequence[BlobRecord], item: StoredObject) -> list[str]:
        """Digests of those blobs of one object whose bytes are not what they should be; blocks.

        Raises:
            ObjectGoneError: When it is a pack, and gone.
        """
        if blobs and not blobs[0].pack:
            return [] if self.store.is_intact(item) else [blobs[0].digest]
        path = self.store.hold(item)
        try:
            locations = [(blob.digest, BlobLocation(str(path), blob.offset, blob.size_bytes)) for blob in blobs]
            return [digest for digest, location in locations if digest_bytes(_read(location)) != digest]
        finally:
            self.store.release(item.key)

    @asynccontextmanager
    async def _locked(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._lock_users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._lock_users[key] -= 1
            if not self._lock_users[key]:
                del self._lock_users[key], self._locks[key]


def no_blob(project: str, digest: str) -> ServiceError:
    """The error for a blob that is asked for by its digest and is not there."""
    return ServiceError("BLOB_NOT_FOUND", f"project {project!r} has no blob {digest}", {"digest": digest})


def _read(location: BlobLocation) -> bytes:
    with open(location.path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), location.size_bytes, location.offset)
