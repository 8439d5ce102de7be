"""From an opened checkpoint to blobs and a manifest: hashed while it is read, and stored where it is new.

The bytes of a small tensor are read once and kept until it is stored. A large piece is read twice, to hash it and to
store it if it is new; the second read comes from the page cache, and the store verifies the digest again, so what is
stored is what was hashed also when the file changed in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mindeval.formats.checkpoints import OpenCheckpoint, TensorContent
from mindeval.formats.digest import Hasher
from mindeval.formats.manifest import FileEntry, Manifest, TensorEntry
from mindeval.formats.readers import ByteSpan, FilePool, TensorRecord
from mindeval.service.errors import ServiceError
from mindeval.service.ingest.local import changed
from mindeval.service.ingest.sink import MAX_SMALL_BYTES, BlobSink, Source

T = TypeVar("T")

# Small enough to stay in a core's cache between reading and hashing; large enough that changing threads costs little.
_HASHED_BYTES = 1 << 20
_STORED_BYTES = 4 << 20
# What is kept in memory between hashing and storing, and how much is hashed before anything is stored.
_KEPT_BYTES = 16 << 20
_BATCH_BYTES = 128 << 20


@dataclass(frozen=True)
class _Piece:
    """Bytes [begin, end) of a tensor or file: one blob."""

    content: TensorContent
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin

    @property
    def is_small(self) -> bool:
        return self.size_bytes <= MAX_SMALL_BYTES


@dataclass(frozen=True)
class _Hashed:
    piece: _Piece
    digest: str
    data: bytes | None


class Copying:
    """Copies one checkpoint."""

    def __init__(
        self,
        opened: OpenCheckpoint,
        reader: Callable[[], FilePool],
        sink: BlobSink,
        threads: ThreadPoolExecutor,
        check_running: Callable[[], None],
    ) -> None:
        """Prepares the copy.

        Args:
            opened: The checkpoint.
            reader: Makes the pools that its files are read with.
            sink: Where blobs go.
            threads: Where reading and hashing happen.
            check_running: Called before each chunk; raises to end the copy.
        """
        self._opened = opened
        self._files = [_file_content(path, span) for path, span in opened.files.items()]
        self._reader = reader
        self._sink = sink
        self._threads = threads
        self._check_running = check_running

    async def run(self) -> Manifest:
        """Hashes everything and stores what is new; the manifest itself is not stored.

        Raises:
            MindEvalError: CHECKPOINT_CHANGED, CHECKPOINT_TRUNCATED, CHECKPOINT_UNREADABLE, MANIFEST_INVALID,
                STORAGE_FULL, QUOTA_EXCEEDED or SERVICE_DRAINING.
        """
        batches = iter(await self._on_thread(self._plan))
        digests: list[str] = []
        hashing = self._begin(next(batches, []))
        try:
            while True:
                hashed = await hashing
                following = next(batches, None)
                if following is not None:
                    hashing = self._begin(following)
                digests += [item.digest for item in hashed]
                await self._store(hashed)
                if following is None:
                    break
        finally:
            # A batch that nobody waits for any more still reads files; they must not be taken away under it.
            with suppress(Exception):
                await asyncio.shield(hashing)
        return await self._on_thread(partial(self._manifest, digests))

    def _plan(self) -> list[list[_Piece]]:
        """All pieces, tensors first, in batches."""
        pieces = [_Piece(tensor, begin, end) for tensor in self._opened.tensors for begin, end in tensor.piece_ranges()]
        # A file is one blob, however large.
        pieces += [_Piece(file, 0, file.size_bytes) for file in self._files]
        return list(_batches(pieces))

    def _manifest(self, digests: list[str]) -> Manifest:
        """The manifest, given the digests of all pieces in the order of the plan."""
        found = iter(digests)
        tensors = [
            TensorEntry.of_pieces(
                tensor.name,
                tensor.dtype,
                tensor.shape,
                tensor.size_bytes,
                tuple(next(found) for _ in tensor.piece_ranges()),
            )
            for tensor in self._opened.tensors
        ]
        files = [FileEntry(file.name, file.size_bytes, next(found)) for file in self._files]
        # Read back as from a client: names and sizes come from a file, and are checked in one place.
        return Manifest.from_bytes(Manifest.of(tensors, files).to_bytes())

    def _begin(self, batch: list[_Piece]) -> asyncio.Future[list[_Hashed]]:
        return asyncio.get_running_loop().run_in_executor(self._threads, self._hash, batch)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _hash(self, batch: list[_Piece]) -> list[_Hashed]:
        found = []
        with self._reader() as pool:
            for piece in batch:
                hasher = Hasher()
                kept: bytes | None = b"" if piece.is_small else None
                for chunk in self._read(piece, 0, pool, _HASHED_BYTES):
                    hasher.update(chunk)
                    if kept is not None:
                        kept += chunk
                found.append(_Hashed(piece, hasher.digest(), kept))
        return found

    def _read(self, piece: _Piece, offset: int, pool: FilePool, chunk_bytes: int) -> Iterator[bytes]:
        for chunk in piece.content.iter_bytes(piece.begin + offset, piece.end, chunk_bytes, pool):
            self._check_running()
            yield chunk

    async def _store(self, hashed: list[_Hashed]) -> None:
        new = {item.digest: item for item in hashed}
        missing = await self._sink.missing(list(new))
        small = {digest: new[digest].data or b"" for digest in missing if new[digest].piece.is_small}
        await self._sink.put_small(small)
        for digest in missing - small.keys():
            item = new[digest]
            try:
                await self._sink.put(digest, item.piece.size_bytes, self._source(item.piece))
            except ServiceError as error:
                if error.reason != "DIGEST_MISMATCH":
                    raise
                spans = item.piece.content.spans(item.piece.begin, item.piece.end)
                raise changed(spans[0].path if spans else item.piece.content.name) from None

    def _source(self, piece: _Piece) -> Source:
        async def chunks(offset: int) -> AsyncGenerator[bytes, None]:
            loop = asyncio.get_running_loop()
            with self._reader() as pool:
                source = self._read(piece, offset, pool, _STORED_BYTES)
                coming = loop.run_in_executor(self._threads, next, source, b"")
                try:
                    while chunk := await asyncio.shield(coming):
                        # The next chunk is read while this one is written.
                        coming = loop.run_in_executor(self._threads, next, source, b"")
                        yield chunk
                finally:
                    await asyncio.wait([coming])

        return chunks


def _file_content(path: str, span: ByteSpan) -> TensorContent:
    spans = (span,) if span.size_bytes else ()
    return TensorContent.of(TensorRecord(path, "U8", (span.size_bytes,), spans))


def _batches(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    total = kept = 0
    for piece in pieces:
        batch.append(piece)
        total += piece.size_bytes
        kept += piece.size_bytes if piece.is_small else 0
        if total >= _BATCH_BYTES or kept >= _KEPT_BYTES:
            yield batch
            batch, total, kept = [], 0, 0
    if batch:
        yield batch
