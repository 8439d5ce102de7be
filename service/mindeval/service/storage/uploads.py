"""Uploads from creation to a visible blob: one writer at a time, and every promise kept across cuts and restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mindeval.service.background import Background
from mindeval.service.errors import ServiceError
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import storage_full
from mindeval.service.storage.collector import Collector
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.packs import SmallBlobBatch
from mindeval.service.storage.records import UploadRecord, now_us
from mindeval.service.storage.spool import Spool, SpoolFile

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UploadLimits:
    """What `Settings` say about uploads; see there."""

    upload_ttl_s: float
    upload_sync_bytes: int
    max_blob_bytes: int
    min_free_bytes: int


class UploadWriter:
    """Appends to one upload; got from `Uploads.writing`."""

    def __init__(self, uploads: Uploads, record: UploadRecord, file: SpoolFile) -> None:
        self._uploads = uploads
        self._record = record
        self._file = file
        self._work: asyncio.Future[None] | None = None

    async def append(self, offset: int, data: bytes | memoryview) -> None:
        """Adds bytes.

        Raises:
            ServiceError: UPLOAD_OFFSET_MISMATCH; UPLOAD_SIZE_MISMATCH when they are more than declared; STORAGE_FULL.
        """
        record, position = self._record, self._file.position
        if offset != position:
            raise ServiceError(
                "UPLOAD_OFFSET_MISMATCH",
                f"{record.name}: bytes were sent for offset {offset}; go on from offset {position}",
                {"upload": record.name, "committed_offset": str(position)},
            )
        if position + len(data) > record.size_bytes:
            raise ServiceError(
                "UPLOAD_SIZE_MISMATCH",
                f"{record.name}: more than the declared {record.size_bytes} bytes were sent",
                {"upload": record.name, "size_bytes": str(record.size_bytes)},
            )
        if data:
            # A cancelled caller leaves the thread running; close() waits for it through this future.
            self._work = asyncio.ensure_future(asyncio.to_thread(self._file.append, data))
            await asyncio.shield(self._work)
        if self._file.position - self._file.synced >= self._uploads.limits.upload_sync_bytes:
            await self.sync()

    async def sync(self) -> int:
        """Makes what was appended durable, and returns the committed offset."""
        if self._file.position > self._file.synced:
            offset = await asyncio.to_thread(self._file.sync)
            await self._uploads.advance(self._record.id, offset)
        return self._file.synced

    async def close(self) -> None:
        """Makes durable what can be, then closes the file."""
        try:
            if self._work is not None:
                await asyncio.wait([self._work])
            await self.sync()
            if self._file.synced == self._record.size_bytes:
                self._uploads.remember_digest(self._record.id, self._file.digest)
        finally:
            await asyncio.to_thread(self._file.close)


class Uploads:
    """All uploads of the service."""

    def __init__(
        self,
        access: StoreAccess,
        library: BlobLibrary,
        spool: Spool,
        background: Background,
        limits: UploadLimits,
        collector: Collector,
    ) -> None:
        """Puts the parts together.

        Args:
            access: The database.
            library: Where finished uploads go.
            spool: Where they wait until then.
            background: Finishes what a cancelled call has begun.
            limits: What may be uploaded.
            collector: Makes room for them.
        """
        self.limits = limits
        self._access = access
        self._index = access.store.blobs
        self.library = library
        self._spool = spool
        self._collector = collector
        # Of uploads that were written from their beginning to their end by one stream, until they are committed.
        self._digests: dict[str, str] = {}
        # Uploads that a stream writes or a commit verifies. Taken and left on the event loop, so no lock is needed.
        self._busy: set[str] = set()
        self._background = background

    async def create(self, project: str, digest: str, size_bytes: int) -> UploadRecord:
        """Opens an upload, or returns the open one; a complete one without an id when the blob is there already.

        Raises:
            ServiceError: INVALID_FIELD; UPLOAD_SIZE_MISMATCH when the blob is there with another size; STORAGE_FULL;
                QUOTA_EXCEEDED.
        """
        known = (await self.library.sizes(project, [digest])).get(digest)
        if known is not None:
            if known != size_bytes:
                raise ServiceError(
                    "UPLOAD_SIZE_MISMATCH",
                    f"{digest} is there and has {known} bytes, not {size_bytes}",
                    {"digest": digest, "size_bytes": str(known)},
                )
            return UploadRecord(project, "", digest, size_bytes, size_bytes, True, 0)
        record = await self._access.write(self._index.open_upload, project, digest, size_bytes, self._expiry())
        if record.committed_offset > 0 or record.id in self._busy:
            return record
        try:
            await self._collector.make_room(project, size_bytes, record.id)
            reserved = await self._access.read(self._index.open_bytes)
            if reserved + self.limits.min_free_bytes > await asyncio.to_thread(self._spool.free_bytes):
                raise storage_full()
        except ServiceError:
            if record.id not in self._busy:
                await self._discard(record)
            raise
        return record

    def small_blobs(self, project: str) -> SmallBlobBatch:
        """Begins to store small blobs together."""
        return SmallBlobBatch(self.library, self._spool, project, self.limits.min_free_bytes, self._collector.make_room)

    async def get(self, project: str, upload_id: str) -> UploadRecord:
        """One upload.

        Raises:
            ServiceError: UPLOAD_NOT_FOUND.
        """
        record = await self._access.read(self._index.upload, project, upload_id)
        if record is not None and record.complete:
            # The blob may have been collected since, or dropped because it was damaged.
            sizes = await self._access.read(self._index.sizes, project, [record.digest])
            record = record if record.digest in sizes else None
        if record is None:
            raise ServiceError(
                "UPLOAD_NOT_FOUND",
                f"there is no projects/{project}/uploads/{upload_id}, or it has expired; create it again",
                {"upload": f"projects/{project}/uploads/{upload_id}"},
            )
        return record

    @asynccontextmanager
    async def writing(self, project: str, upload_id: str) -> AsyncIterator[UploadWriter]:
        """The right to append to an upload; what was appended is durable when the block has ended, however it ends.

        Raises:
            ServiceError: UPLOAD_NOT_FOUND; UPLOAD_BUSY; UPLOAD_SIZE_MISMATCH when it is complete.
        """
        self._claim(project, upload_id)
        try:
            record = await self.get(project, upload_id)
            if record.complete:
                raise ServiceError(
                    "UPLOAD_SIZE_MISMATCH", f"{record.name} is complete; nothing can be added", {"upload": record.name}
                )
        except BaseException:
            self._busy.discard(upload_id)
            raise
        opening = asyncio.ensure_future(self._open(record))
        try:
            writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread that opens the file cannot be stopped: the upload stays claimed until it has ended.
            self._background.begin(self._close_when_open(opening, upload_id))
            raise
        except BaseException:
            self._busy.discard(upload_id)
            raise
        try:
            yield writer
        finally:
            await self._background.to_the_end(self._close(writer, upload_id))

    async def commit(self, project: str, upload_id: str) -> UploadRecord:
        """Verifies an upload and makes its blob visible; repeating it is harmless.

        Raises:
            ServiceError: UPLOAD_NOT_FOUND; UPLOAD_BUSY; UPLOAD_SIZE_MISMATCH when bytes are lacking; DIGEST_MISMATCH,
                then the upload is gone.
        """
        self._claim(project, upload_id)
        return await self._background.to_the_end(self._commit(project, upload_id))

    async def advance(self, upload_id: str, committed_offset: int) -> None:
        """Records durable bytes of an open upload."""
        await self._access.write(self._index.advance, upload_id, committed_offset, self._expiry())

    def remember_digest(self, upload_id: str, digest: str) -> None:
        """Notes what a whole upload was found to have while it was written; "" when that is not known."""
        if digest:
            self._digests[upload_id] = digest

    async def recover(self) -> None:
        """Brings files and database together after a start: any step of an upload may have been the last one."""
        known = set()
        for record in await self._access.read(self._index.uploads):
            known.add(record.id)
            if record.complete:
                continue
            size = await asyncio.to_thread(self._spool.size, record.id)
            if size is not None and size >= record.committed_offset:
                continue  # Bytes beyond the committed offset are cut off when the file is opened.
            is_whole = size is None and record.committed_offset == record.size_bytes
            # The service may have ended between the move into the blob store and the commit to the database.
            if record.committed_offset and not (is_whole and await self.library.complete_put(record)):
                _log.warning("an upload lost its file", extra={"upload": record.name})
                await self._access.write(self._index.advance, record.id, 0, record.expire_us)
        for name in await asyncio.to_thread(self._spool.names):
            if name not in known:  # Packs that were being written have no entry in the database.
                await asyncio.to_thread(self._spool.remove, name)
        await self.drop_expired()

    async def drop_expired(self) -> None:
        """Drops uploads that nobody has touched for too long."""
        now = now_us()
        for record in await self._access.read(self._index.uploads):
            if record.expire_us < now and record.id not in self._busy:
                self._busy.add(record.id)
                try:
                    await self._discard(record)
                finally:
                    self._busy.discard(record.id)

    async def _commit(self, project: str, upload_id: str) -> UploadRecord:
        try:
            record = await self.get(project, upload_id)
            if record.complete:
                return record
            if record.committed_offset != record.size_bytes:
                raise ServiceError(
                    "UPLOAD_SIZE_MISMATCH",
                    f"{record.name} has {record.committed_offset} of {record.size_bytes} bytes; send the rest first",
                    {"upload": record.name, "committed_offset": str(record.committed_offset)},
                )
            if record.size_bytes == 0:
                await asyncio.to_thread(self._spool.touch, record.id)
            digest = self._digests.pop(record.id, "") or await asyncio.to_thread(self._spool.digest, record.id)
            if digest != record.digest:
                await self._discard(record)
                raise ServiceError(
                    "DIGEST_MISMATCH",
                    f"the bytes of {record.name} do not have the digest {record.digest}; the upload was discarded, "
                    "send them again",
                    {"upload": record.name, "digest": record.digest},
                )
            record = await self.library.publish(record, self._spool.path(record.id))
            self._collector.nudge(project)
            return record
        finally:
            self._busy.discard(upload_id)

    async def _open(self, record: UploadRecord) -> UploadWriter:
        self._digests.pop(record.id, None)
        return UploadWriter(self, record, await asyncio.to_thread(self._spool.open, record.id, record.committed_offset))

    async def _close_when_open(self, opening: asyncio.Future[UploadWriter], upload_id: str) -> None:
        try:
            await (await opening).close()
        finally:
            self._busy.discard(upload_id)

    async def _close(self, writer: UploadWriter, upload_id: str) -> None:
        try:
            await writer.close()
        finally:
            self._busy.discard(upload_id)

    async def _discard(self, record: UploadRecord) -> None:
        self._digests.pop(record.id, None)
        await self._access.write(self._index.discard, record.id)
        await asyncio.to_thread(self._spool.remove, record.id)

    def _claim(self, project: str, upload_id: str) -> None:
        if upload_id in self._busy:
            name = f"projects/{project}/uploads/{upload_id}"
            raise ServiceError(
                "UPLOAD_BUSY", f"another call is at work on {name}; try again when it has ended", {"upload": name}
            )
        self._busy.add(upload_id)

    def _expiry(self) -> int:
        return now_us() + round(self.limits.upload_ttl_s * 1_000_000)
