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
from mindeval.service.storage.blobs import BlobFolder, UploadFile, storage_full
from mindeval.service.storage.records import UploadRecord, now_us

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

    def __init__(self, uploads: Uploads, record: UploadRecord, file: UploadFile) -> None:
        self._uploads = uploads
        self._record = record
        self._file = file
        self._work: asyncio.Future[None] | None = None

    async def append(self, offset: int, data: bytes) -> None:
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
        finally:
            await asyncio.to_thread(self._file.close)


class Uploads:
    """All uploads of the service."""

    def __init__(self, access: StoreAccess, folder: BlobFolder, background: Background, limits: UploadLimits) -> None:
        self.limits = limits
        self._access = access
        self._index = access.store.blobs
        self._folder = folder
        # Uploads that a stream writes or a commit verifies. Taken and left on the event loop, so no lock is needed.
        self._busy: set[str] = set()
        self._background = background

    async def create(self, project: str, digest: str, size_bytes: int) -> UploadRecord:
        """Opens an upload, or returns the open one; a complete one without an id when the blob is there already.

        Raises:
            ServiceError: INVALID_FIELD; UPLOAD_SIZE_MISMATCH when the blob is there with another size; STORAGE_FULL.
        """
        known = (await self._access.read(self._index.sizes, project, [digest])).get(digest)
        if known is not None:
            if known != size_bytes:
                raise ServiceError(
                    "UPLOAD_SIZE_MISMATCH",
                    f"{digest} is there and has {known} bytes, not {size_bytes}",
                    {"digest": digest, "size_bytes": str(known)},
                )
            return UploadRecord(project, "", digest, size_bytes, size_bytes, True, 0)
        record = await self._access.write(self._index.open_upload, project, digest, size_bytes, self._expiry())
        reserved = await self._access.read(self._index.open_bytes)
        free = await asyncio.to_thread(self._folder.free_bytes)
        is_begun = record.committed_offset > 0 or record.id in self._busy
        if not is_begun and reserved + self.limits.min_free_bytes > free:
            await self._discard(record)
            raise storage_full()
        return record

    async def get(self, project: str, upload_id: str) -> UploadRecord:
        """One upload.

        Raises:
            ServiceError: UPLOAD_NOT_FOUND.
        """
        record = await self._access.read(self._index.upload, project, upload_id)
        if record is not None and record.complete:
            # The blob may have been dropped since, because its file was damaged.
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

    async def recover(self) -> None:
        """Brings files and database together after a start: any step of an upload may have been the last one."""
        known = set()
        for record in await self._access.read(self._index.uploads):
            known.add(record.id)
            if record.complete:
                continue
            size = await asyncio.to_thread(self._folder.upload_size, record.id)
            if size is not None and size >= record.committed_offset:
                continue  # Bytes beyond the committed offset are cut off when the file is opened.
            intact = await asyncio.to_thread(self._folder.is_intact, record.project, record.digest, record.size_bytes)
            if size is None and record.committed_offset == record.size_bytes and intact:
                # The service ended between the rename and the commit to the database.
                await self._access.write(self._index.complete, record.id)
            elif record.committed_offset:
                _log.warning("an upload lost its file", extra={"upload": record.name})
                await self._access.write(self._index.advance, record.id, 0, record.expire_us)
        for upload_id in await asyncio.to_thread(self._folder.upload_ids):
            if upload_id not in known:
                await asyncio.to_thread(self._folder.remove_upload, upload_id)
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

    async def drop_if_damaged(self, project: str, digest: str) -> bool:
        """Verifies a blob again, and makes it invisible when its file is damaged or gone; tells whether it was."""
        size_bytes = (await self._access.read(self._index.sizes, project, [digest])).get(digest)
        if size_bytes is None or await asyncio.to_thread(self._folder.is_intact, project, digest, size_bytes):
            return False
        _log.error("a blob is damaged and was dropped", extra={"project": project, "digest": digest})
        await self._access.write(self._index.remove, project, digest)
        await asyncio.to_thread(self._folder.remove_blob, project, digest)
        return True

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
            if not await asyncio.to_thread(self._folder.publish, record):
                await self._discard(record)
                raise ServiceError(
                    "DIGEST_MISMATCH",
                    f"the bytes of {record.name} do not have the digest {record.digest}; the upload was discarded, "
                    "send them again",
                    {"upload": record.name, "digest": record.digest},
                )
            return await self._access.write(self._index.complete, upload_id)
        finally:
            self._busy.discard(upload_id)

    async def _open(self, record: UploadRecord) -> UploadWriter:
        return UploadWriter(self, record, await asyncio.to_thread(self._folder.open_upload, record))

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
        await self._access.write(self._index.discard, record.id)
        await asyncio.to_thread(self._folder.remove_upload, record.id)

    def _claim(self, project: str, upload_id: str) -> None:
        if upload_id in self._busy:
            name = f"projects/{project}/uploads/{upload_id}"
            raise ServiceError(
                "UPLOAD_BUSY", f"another call is at work on {name}; try again when it has ended", {"upload": name}
            )
        self._busy.add(upload_id)

    def _expiry(self) -> int:
        return now_us() + round(self.limits.upload_ttl_s * 1_000_000)
