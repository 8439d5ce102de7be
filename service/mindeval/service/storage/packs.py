"""Small blobs on their way into packs: many of them cost one file and one flush."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

from mindeval.formats.digest import digest_bytes
from mindeval.service.errors import ServiceError
from mindeval.service.storage.blobs import storage_full
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import PackedBlob, PackRecord
from mindeval.service.storage.spool import Spool, SpoolFile

# A pack is one object, one copy on a runner's machine, and one transaction of the database.
MAX_PACK_BYTES = 64 << 20
MAX_PACK_BLOBS = 8_192
SPOOL_PREFIX = "pack-"


class PackFile:
    """A pack that is being written. Methods block."""

    def __init__(self, spool: Spool, project: str) -> None:
        self.blobs: dict[str, PackedBlob] = {}
        self._spool = spool
        self._project = project
        self._id = uuid.uuid4().hex
        self._file: SpoolFile | None = None

    @property
    def name(self) -> str:
        """Name of its file in the spool."""
        return SPOOL_PREFIX + self._id

    @property
    def size_bytes(self) -> int:
        """Bytes in it so far."""
        return 0 if self._file is None else self._file.position

    def append(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        """Adds verified blobs.

        Raises:
            ServiceError: STORAGE_FULL; the pack is as it was before.
        """
        if self._file is None:
            self._file = self._spool.open(self.name)
        offset = self._file.position
        # One write for many small blobs.
        self._file.append(b"".join(data for _, data in blobs))
        for digest, data in blobs:
            self.blobs[digest] = PackedBlob(digest, offset, len(data))
            offset += len(data)

    def seal(self) -> PackRecord:
        """Makes it durable, and tells what it is.

        Raises:
            ServiceError: STORAGE_FULL.
        """
        assert self._file is not None
        self._file.sync()
        return PackRecord(self._project, self._id, self._file.digest, self._file.position)

    def close(self) -> None:
        """Closes its file, and removes it unless it was taken away."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._spool.remove(self.name)


class SmallBlobBatch:
    """Blobs that one caller sends; what was added is visible after `finish`, some of it earlier.

    Each method must be let run to its end, also when the call that it is for is cancelled (`Background.to_the_end`):
    threads cannot be stopped, and a file must not be closed under one that writes to it.
    """

    def __init__(
        self,
        library: BlobLibrary,
        spool: Spool,
        project: str,
        min_free_bytes: int,
        make_room: Callable[[str, int], Awaitable[None]],
    ) -> None:
        """Begins without any.

        Args:
            library: Where they go.
            spool: Where they wait.
            project: Id of the project.
            min_free_bytes: Bytes of disk that must be left free.
            make_room: Called with the project and bytes before they become visible; raises QUOTA_EXCEEDED.
        """
        self.stored_count = 0
        self._library = library
        self._spool = spool
        self._project = project
        self._min_free_bytes = min_free_bytes
        self._make_room = make_room
        self._pack: PackFile | None = None
        # Keeps `discard` waiting for what a cancelled call has left running.
        self._lock = asyncio.Lock()

    async def add(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        """Adds blobs, given as digest and bytes. After an error, those before the one at fault can still be finished.

        Raises:
            ServiceError: DIGEST_MISMATCH naming the digest; STORAGE_FULL; QUOTA_EXCEEDED.
        """
        async with self._lock:
            await self._add(blobs)

    async def finish(self) -> int:
        """Makes everything that was added durable and visible.

        Returns:
            How many blobs were not there before.

        Raises:
            ServiceError: STORAGE_FULL; QUOTA_EXCEEDED.
        """
        async with self._lock:
            if self._pack is not None:
                await self._publish()
        return self.stored_count

    async def discard(self) -> None:
        """Forgets what is not visible yet; harmless after `finish`."""
        async with self._lock:
            await self._forget()

    async def _add(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        right, wrong = await asyncio.to_thread(_verified, blobs)
        held = await self._library.sizes(self._project, list(right))
        known = self._pack.blobs if self._pack is not None else {}
        new = [(digest, data) for digest, data in right.items() if digest not in held and digest not in known]
        if new:
            pack = self._pack or await self._begin()
            await asyncio.to_thread(pack.append, new)
            if pack.size_bytes >= MAX_PACK_BYTES or len(pack.blobs) >= MAX_PACK_BLOBS:
                await self._publish()
        if wrong is not None:
            raise ServiceError(
                "DIGEST_MISMATCH",
                f"the bytes sent for {wrong} have another digest; those before it are stored, send it again",
                {"digest": wrong},
            )

    async def _forget(self) -> None:
        pack, self._pack = self._pack, None
        if pack is not None:
            await asyncio.to_thread(pack.close)

    async def _begin(self) -> PackFile:
        if await asyncio.to_thread(self._spool.free_bytes) < self._min_free_bytes:
            raise storage_full()
        self._pack = PackFile(self._spool, self._project)
        return self._pack

    async def _publish(self) -> None:
        pack = self._pack
        assert pack is not None
        await self._make_room(self._project, pack.size_bytes)
        record = await asyncio.to_thread(pack.seal)
        blobs = list(pack.blobs.values())
        self.stored_count += await self._library.publish_pack(record, blobs, self._spool.path(pack.name))
        await self._forget()


def _verified(blobs: Sequence[tuple[str, bytes]]) -> tuple[dict[str, bytes], str | None]:
    """The blobs up to the first one whose digest is wrong, by digest, and the digest of that one."""
    right: dict[str, bytes] = {}
    for digest, data in blobs:
        if digest_bytes(data) != digest:
            return right, digest
        right[digest] = data
    return right, None
