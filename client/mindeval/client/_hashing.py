"""Digests of what is to be sent: one pass over the bytes, in threads, in bounded memory.

A large tensor is hashed in the pieces that it is stored in, several at a time. Results come as they are ready, so that
sending may begin while the rest is still being read.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

from mindeval.client._content import Blob, Content, ContentReader
from mindeval.formats.checkpoints import TensorContent
from mindeval.formats.digest import Hasher

# Small enough to stay in a core's cache between reading and hashing.
_READ_BYTES = 1 << 20
# A thread takes neighbours together up to here, so that small tensors cost no hand-over each.
_GROUP_BYTES = 4 << 20
_GROUP_ITEMS = 256
_MAX_THREADS = 4


@dataclass(frozen=True)
class HashedPiece:
    """One piece of a content: the content's place in the list, its own among the pieces, and the blob that it is."""

    index: int
    piece: int
    blob: Blob


@dataclass(frozen=True)
class _Range:
    index: int
    piece: int
    content: Content
    begin: int
    size_bytes: int


async def hash_contents(
    contents: Sequence[Content], threads: int | None = None
) -> AsyncGenerator[list[HashedPiece], None]:
    """Hashes contents and yields their pieces as they are ready, roughly in order.

    Args:
        contents: What to hash; tensors in the pieces that a manifest stores them in, all else whole.
        threads: How many to use; None for one a core, at most four.

    Raises:
        CheckpointChanged: When a file is shorter by now.
        FormatError: CHECKPOINT_UNREADABLE.
    """
    loop = asyncio.get_running_loop()
    work = _Work(contents, loop)
    count = threads or min(_MAX_THREADS, os.cpu_count() or 1)
    workers = [
        threading.Thread(target=work.run, name=f"mindeval-digest-{number}", daemon=True) for number in range(count)
    ]
    for worker in workers:
        worker.start()
    try:
        left = count
        while left:
            await work.ready.wait()
            work.ready.clear()
            found: list[HashedPiece] = []
            while work.results:
                result = work.results.popleft()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    left -= 1
                else:
                    found.extend(result)
            if found:
                yield found
    finally:
        work.stop()
        for worker in workers:
            await asyncio.shield(loop.run_in_executor(None, worker.join))


class _Work:
    """What the threads share."""

    def __init__(self, contents: Sequence[Content], loop: asyncio.AbstractEventLoop) -> None:
        self.results: deque[list[HashedPiece] | BaseException | None] = deque()
        self.ready = asyncio.Event()
        self._groups = _groups(contents)
        self._lock = threading.Lock()
        self._loop = loop
        self._stopped = False

    def stop(self) -> None:
        """Lets the threads end after the range at hand."""
        self._stopped = True

    def run(self) -> None:
        """A thread's work: groups, until there are none."""
        result: BaseException | None = None
        try:
            with ContentReader() as reader:
                buffer = memoryview(bytearray(_READ_BYTES))
                while (group := self._next()) is not None:
                    self._tell([self._hashed(part, reader, buffer) for part in group])
        except BaseException as error:
            result = error
        self._tell(result)

    def _hashed(self, part: _Range, reader: ContentReader, buffer: memoryview) -> HashedPiece:
        hasher = Hasher()
        end = part.begin + part.size_bytes
        for offset in range(part.begin, end, _READ_BYTES):
            if self._stopped:
                break
            target = buffer[: min(_READ_BYTES, end - offset)]
            reader.read_into(part.content, offset, target)
            hasher.update(target)
        return HashedPiece(part.index, part.piece, Blob(hasher.digest(), part.content, part.begin, part.size_bytes))

    def _next(self) -> list[_Range] | None:
        with self._lock:
            return None if self._stopped else next(self._groups, None)

    def _tell(self, result: list[HashedPiece] | BaseException | None) -> None:
        self.results.append(result)
        if not self._stopped:
            try:
                self._loop.call_soon_threadsafe(self.ready.set)
            except RuntimeError:  # the loop ended meanwhile
                self.stop()


def _groups(contents: Sequence[Content]) -> Iterator[list[_Range]]:
    """What threads take at a time: whole pieces, or several small neighbours."""
    group: list[_Range] = []
    size = 0
    for index, content in enumerate(contents):
        for part in _ranges(index, content):
            group.append(part)
            size += part.size_bytes
            if size >= _GROUP_BYTES or len(group) >= _GROUP_ITEMS:
                yield group
                group, size = [], 0
    if group:
        yield group


def _ranges(index: int, content: Content) -> Iterator[_Range]:
    if isinstance(content, TensorContent):
        for number, (begin, end) in enumerate(content.piece_ranges()):
            yield _Range(index, number, content, begin, end - begin)
    else:
        yield _Range(index, 0, content, 0, content.size_bytes)


async def digests_of(contents: Sequence[Content]) -> list[str]:
    """Digest of each content that is stored whole, in order.

    Raises:
        CheckpointChanged: As `hash_contents`.
        FormatError: As `hash_contents`.
    """
    digests = [""] * len(contents)
    async for found in hash_contents(contents):
        for piece in found:
            digests[piece.index] = piece.blob.digest
    return digests
