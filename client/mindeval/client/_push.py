"""Pushes a checkpoint: hashes it, sends what the service lacks while the rest is hashed, and its manifest last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mindeval.client._connection import Closing, Connection
from mindeval.client._content import Blob, Content, Inline
from mindeval.client._hashing import HashedPiece, hash_contents
from mindeval.client._results import PushedCheckpoint
from mindeval.client._sources import PushSource
from mindeval.client._upload import OnProgress, Uploader
from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import FileEntry, Manifest, TensorEntry

_FIRST_OFFER_BYTES = 16 << 20
_LARGEST_OFFER_BYTES = 512 << 20
_OFFER_BLOBS = 5_000


async def push(
    connection: Connection,
    project_name: str,
    source: PushSource,
    *,
    on_progress: OnProgress | None = None,
    started: float | None = None,
) -> PushedCheckpoint:
    """Pushes a checkpoint.

    Args:
        connection: The connection.
        project_name: "projects/{project}".
        source: What to send.
        on_progress: Called as bytes go, from the event loop.
        started: When the push began (`time.monotonic()`), for `seconds`.

    Raises:
        CheckpointChanged: When a file changed meanwhile.
        FormatError: CHECKPOINT_UNREADABLE, MANIFEST_INVALID.
        ServiceError: See `Uploader.send`.
    """
    started = time.monotonic() if started is None else started
    hashed = HashedSource(source)
    uploader = Uploader(
        connection, project_name, stamps=source.stamps, bytes_total=source.size_bytes, on_progress=on_progress
    )
    await uploader.run(hashed.offer_to(uploader))
    uploader.check_files()
    data = await asyncio.to_thread(lambda: hashed.manifest().to_bytes())
    digest = await asyncio.to_thread(digest_bytes, data)
    await uploader.send([Blob(digest, Inline(data), 0, len(data))])
    return PushedCheckpoint(
        digest=digest,
        bytes_total=uploader.bytes_offered,
        bytes_sent=uploader.bytes_sent,
        blobs_total=uploader.blobs_offered,
        blobs_sent=uploader.blobs_sent,
        seconds=time.monotonic() - started,
    )


class HashedSource:
    """The digests of a checkpoint, as they come."""

    def __init__(self, source: PushSource) -> None:
        self._source = source
        self._contents: list[Content] = [*source.tensors, *source.files.values()]
        self._pieces: list[dict[int, str]] = [{} for _ in self._contents]

    async def offer_to(self, uploader: Uploader) -> None:
        """Hashes everything, and offers each blob as soon as its digest is known.

        Raises:
            MindEvalError: See `push`.
        """
        found: list[Blob] = []
        size, enough = 0, _FIRST_OFFER_BYTES
        async with Closing(hash_contents(self._contents)) as batches:
            async for batch in batches:
                self.add(batch)
                found.extend(piece.blob for piece in batch)
                size += sum(piece.blob.size_bytes for piece in batch)
                if size >= enough or len(found) >= _OFFER_BLOBS:
                    missing = await uploader.offer(found)
                    # Soon while there is something to send; seldom while all is there, for each question costs both
                    # sides time in which the rest could be hashed.
                    enough = _FIRST_OFFER_BYTES if missing else min(2 * enough, _LARGEST_OFFER_BYTES)
                    found, size = [], 0
        await uploader.offer(found)

    def add(self, batch: Sequence[HashedPiece]) -> None:
        """Notes digests."""
        for piece in batch:
            self._pieces[piece.index][piece.piece] = piece.blob.digest

    def manifest(self) -> Manifest:
        """The manifest, when everything was hashed.

        Raises:
            FormatError: MANIFEST_INVALID.
        """
        tensors = self._source.tensors
        ordered = [tuple(found[number] for number in range(len(found))) for found in self._pieces]
        return Manifest.of(
            [
                TensorEntry.of_pieces(tensor.name, tensor.dtype, tensor.shape, tensor.size_bytes, pieces)
                for tensor, pieces in zip(tensors, ordered)
            ],
            [
                FileEntry(path, content.size_bytes, pieces[0])
                for (path, content), pieces in zip(self._source.files.items(), ordered[len(tensors) :])
            ],
        )
