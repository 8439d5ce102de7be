"""Where ingested bytes go: the blob store, by the same steps as an upload of a client, so with the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from mindeval.service.errors import ServiceError
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.uploads import Uploads

MAX_SMALL_BYTES = 1 << 20
"""Largest blob for `BlobSink.put_small`."""

_CHUNK_BYTES = 1 << 20
_BUSY_RETRY_S = 0.1
# A client sends the same bytes, or has just sent them.
_OTHERS_AT_WORK = frozenset({"UPLOAD_BUSY", "UPLOAD_OFFSET_MISMATCH", "UPLOAD_NOT_FOUND", "UPLOAD_SIZE_MISMATCH"})

Source = Callable[[int], AsyncGenerator[bytes, None]]
"""The bytes of a blob from an offset on, in chunks."""


class BlobSink:
    """Puts blobs into the store of one project."""

    def __init__(self, library: BlobLibrary, uploads: Uploads, project: str, check_running: Callable[[], None]) -> None:
        """Puts the parts together; `check_running` is called now and then, and raises to end what goes on."""
        self._check_running = check_running
        self._library = library
        self._uploads = uploads
        self._project = project

    async def missing(self, digests: list[str]) -> set[str]:
        """Which of these blobs the project does not hold; the others stay for a while."""
        return set(digests) - (await self._library.sizes(self._project, digests)).keys()

    async def put_small(self, blobs: Mapping[str, bytes]) -> None:
        """Stores blobs that are in memory, by digest, together.

        Raises:
            ServiceError: STORAGE_FULL, QUOTA_EXCEEDED.
        """
        if not blobs:
            return
        batch = self._uploads.small_blobs(self._project)
        try:
            await batch.add(list(blobs.items()))
            await batch.finish()
        finally:
            await batch.discard()

    async def put(self, digest: str, size_bytes: int, source: Source) -> None:
        """Stores one blob; one that is there already, or that a client sends meanwhile, is not read.

        Raises:
            ServiceError: STORAGE_FULL, QUOTA_EXCEEDED; DIGEST_MISMATCH when the source has other bytes than the digest
                says.
        """
        while True:
            self._check_running()
            record = await self._uploads.create(self._project, digest, size_bytes)
            if record.complete:
                return
            try:
                async with (
                    self._uploads.writing(self._project, record.id) as writer,
                    aclosing(source(record.committed_offset)) as chunks,
                ):
                    offset = record.committed_offset
                    async for chunk in chunks:
                        await writer.append(offset, chunk)
                        offset += len(chunk)
                await self._uploads.commit(self._project, record.id)
                return
            except ServiceError as error:
                # Let it, and go on from where it stops.
                if error.reason not in _OTHERS_AT_WORK:
                    raise
            await asyncio.sleep(_BUSY_RETRY_S)


def in_memory(data: bytes) -> Source:
    """Bytes at hand as a source."""

    async def chunks(offset: int) -> AsyncGenerator[bytes, None]:
        for begin in range(offset, len(data), _CHUNK_BYTES):
            yield data[begin : begin + _CHUNK_BYTES]

    return chunks
