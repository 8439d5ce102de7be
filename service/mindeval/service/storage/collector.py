"""What stays and what goes: a byte budget a project, least recently used first, never what is needed.

Which blobs are needed is decided by the database, in the transaction that makes the others invisible
(`BlobIndex.collect`); their bytes are removed afterwards.
"""

from __future__ import annotations

import asyncio
import logging

from mindeval.service.background import Background
from mindeval.service.errors import ServiceError
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import BLOBS, PACKS, blob_key, pack_key
from mindeval.service.storage.compaction import compact
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import now_us
from mindeval.service.storage.spool import Spool

_log = logging.getLogger(__name__)

# Keeps each transaction short.
_LOOK_AT = 500
_BEGIN = (0, "")


class Collector:
    """Keeps projects within their budget."""

    def __init__(
        self,
        access: StoreAccess,
        library: BlobLibrary,
        spool: Spool,
        background: Background,
        budget_bytes: int,
        upload_ttl_s: float,
        grace_s: float,
    ) -> None:
        """Puts the parts together.

        Args:
            access: The database.
            library: The blobs.
            spool: Where packs are written.
            background: Keeps a collection alive that nobody waits for.
            budget_bytes: Bytes that the blobs of a project may take; 0 for no limit.
            upload_ttl_s: Seconds after which an upload expires that nobody touches.
            grace_s: Seconds for which a blob that was asked for stays.
        """
        self._access = access
        self._index = access.store.blobs
        self._library = library
        self._spool = spool
        self._background = background
        self._budget_bytes = budget_bytes
        self._open_us = round((upload_ttl_s - min(grace_s, upload_ttl_s)) * 1_000_000)
        # One collection a project at a time; the others find its work done.
        self._locks: dict[str, asyncio.Lock] = {}

    async def make_room(self, project: str, size_bytes: int, upload_id: str = "") -> None:
        """Sees to it that so many more bytes are within the budget, besides uploads in progress.

        Args:
            project: Id of the project.
            size_bytes: Bytes that are about to be stored.
            upload_id: The upload that they are for, which does not count twice.

        Raises:
            ServiceError: QUOTA_EXCEEDED when what is needed, or was used a short while ago, leaves too little.
        """
        if not self._budget_bytes:
            return
        excess = await self._excess(project, size_bytes, upload_id)
        if excess > 0:
            # To the end, because what is invisible already must be removed as well.
            await self._background.to_the_end(self.collect(project, size_bytes, upload_id))
            excess = await self._excess(project, size_bytes, upload_id)
        if excess > 0:
            raise ServiceError(
                "QUOTA_EXCEEDED",
                f"project {project!r} may store {self._budget_bytes} bytes, and these would be {excess} too many; "
                "unpin or delete checkpoints, or wait until evaluations have ended",
                {"budget_bytes": str(self._budget_bytes), "excess_bytes": str(excess)},
            )

    def nudge(self, project: str) -> None:
        """Collects in the background if the project is over its budget."""
        if self._budget_bytes and not self._lock(project).locked():
            self._background.begin(self.collect(project, 0))

    async def collect(self, project: str, size_bytes: int, upload_id: str = "") -> int:
        """Frees what can be freed until so many more bytes are within the budget; tells how many bytes that were."""
        async with self._lock(project):
            return await self._collect(project, size_bytes, upload_id)

    async def run(self) -> None:
        """One round over all projects: the budget, then packs that are mostly empty."""
        for project in await self._access.read(self._index.projects):
            if self._budget_bytes:
                await self.collect(project, 0)
            await compact(self._access, self._library, self._spool, project)

    async def check(self) -> None:
        """Looks whether database and blob store agree: lost blobs are forgotten, leftovers removed.

        Only presence and size are looked at. Who reads a blob verifies its digest.
        """
        projects = set(await self._access.read(self._index.projects))
        projects.update(await asyncio.to_thread(self._library.store.projects))
        for project in sorted(projects):
            await self._check_packs(project)
            for number in range(256):
                await self._check_blobs(project, f"{number:02x}")

    def _lock(self, project: str) -> asyncio.Lock:
        return self._locks.setdefault(project, asyncio.Lock())

    async def _excess(self, project: str, size_bytes: int, upload_id: str) -> int:
        usage = await self._access.read(self._index.usage, project)
        # Uploads that nobody has touched for a while do not stand in the way of others.
        since_us = now_us() + self._open_us
        declared = await self._access.read(self._index.declared_bytes, project, since_us, upload_id)
        return usage + declared + size_bytes - self._budget_bytes

    async def _collect(self, project: str, size_bytes: int, upload_id: str) -> int:
        freed, after = 0, _BEGIN
        before_us = self._library.idle_before_us
        while True:
            excess = await self._excess(project, size_bytes, upload_id)
            if excess <= 0:
                break
            collected = await self._access.write(self._index.collect, project, excess, before_us, after, _LOOK_AT)
            freed += sum(blob.size_bytes for blob in collected.removed)
            alone = [blob_key(project, blob.digest) for blob in collected.removed if not blob.pack]
            await self._library.sweep(project, alone)
            if collected.after is None:
                break
            after = collected.after
        if freed:
            _log.info("collected blobs", extra={"project": project, "freed_bytes": freed})
            await compact(self._access, self._library, self._spool, project)
        return freed

    async def _check_packs(self, project: str) -> None:
        stored = await asyncio.to_thread(lambda: dict(self._library.store.objects(f"{PACKS}/{project}/")))
        packs = {pack_key(project, pack.id): pack for pack in await self._access.read(self._index.packs, project)}
        await self._library.sweep(project, stored.keys() - packs.keys())
        for key, pack in packs.items():
            if stored.get(key) != pack.size_bytes:
                blobs = await self._access.read(self._index.packed, project, pack.id)
                await self._library.drop_damaged(project, [blob.digest for blob in blobs])

    async def _check_blobs(self, project: str, digits: str) -> None:
        stored = await asyncio.to_thread(lambda: dict(self._library.store.objects(f"{BLOBS}/{project}/{digits}/")))
        blobs = await self._access.read(self._index.below, project, f"blake3:{digits}")
        alone = {blob_key(project, blob.digest): blob for blob in blobs if not blob.pack}
        await self._library.sweep(project, stored.keys() - alone.keys())
        wrong = [blob.digest for key, blob in alone.items() if stored.get(key) != blob.size_bytes]
        await self._library.drop_damaged(project, wrong)
