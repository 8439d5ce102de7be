"""Imports: one at a time for each state of a URI, few at a time over all, remembered once done."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from mindeval.formats.digest import digest_bytes
from mindeval.formats.readers import FilePool
from mindeval.service import drain as draining
from mindeval.service.background import Background
from mindeval.service.errors import BlobsMissingError
from mindeval.service.ingest.copying import Copying
from mindeval.service.ingest.local import LocalCheckpoint, open_place, open_trusted
from mindeval.service.ingest.objects import ObjectReader, RemoteCheckpoint, renamed
from mindeval.service.ingest.sink import MAX_SMALL_BYTES, BlobSink, in_memory
from mindeval.service.ingest.uris import Place, StorageRoots, parse_uri
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import CheckpointContent
from mindeval.service.storage.uploads import Uploads

T = TypeVar("T")
_log = logging.getLogger(__name__)

_OPENING_THREADS = 4
_WORKING_THREADS = 2
_IMPORTS_AT_ONCE = 2
# A collector may take a blob between its being found and its being registered.
_TRIES = 3

_Found = LocalCheckpoint | RemoteCheckpoint


class Importer:
    """Reads checkpoints by URI into the blob store."""

    def __init__(
        self,
        access: StoreAccess,
        library: BlobLibrary,
        uploads: Uploads,
        background: Background,
        roots: StorageRoots,
        objects: ObjectReader,
        spool: Path,
    ) -> None:
        """Puts the parts together.

        Args:
            access: The database.
            library: The blobs that are there.
            uploads: The way for new ones.
            background: Keeps an import alive when its caller has left.
            roots: Who may name what.
            objects: Reads object stores.
            spool: An existing folder for what is fetched from object stores.
        """
        self._access = access
        self._library = library
        self._uploads = uploads
        self._background = background
        self._roots = roots
        self._objects = objects
        self._spool = spool
        self._openers = ThreadPoolExecutor(_OPENING_THREADS, "ingest-open")
        self._workers = ThreadPoolExecutor(_WORKING_THREADS, "ingest-work")
        self._slots = asyncio.Semaphore(_IMPORTS_AT_ONCE)
        self._running: dict[tuple[str, str, str], asyncio.Task[tuple[str, bool]]] = {}
        self._stop = threading.Event()

    async def find(self, project: str, uri: str) -> str:
        """Checks that a URI leads to a checkpoint, without reading its tensors.

        Returns:
            The digest of its manifest when this state of it was imported before, else "".

        Raises:
            MindEvalError: As `load`, for what headers and names show.
        """
        place, found = await self._open(project, uri)
        return await self._imported(project, place, _state(found))

    async def load(self, project: str, uri: str) -> tuple[str, bool]:
        """Imports a checkpoint and registers it. Goes on when the caller leaves; whoever asks again joins in.

        Returns:
            The digest of its manifest, and whether the project did not know it before.

        Raises:
            MindEvalError: INVALID_FIELD, URI_FORBIDDEN, URI_UNREADABLE; CHECKPOINT_CHANGED, CHECKPOINT_UNREADABLE,
                CHECKPOINT_TRUNCATED, CHECKPOINT_CORRUPT; MODEL_UNSUPPORTED, MODEL_INVALID, MANIFEST_INVALID;
                STORAGE_FULL, QUOTA_EXCEEDED, SERVICE_DRAINING. Metadata name the file and the tensor.
        """
        place, found = await self._open(project, uri)
        state = _state(found)
        known = await self._imported(project, place, state)
        if known:
            await self._access.write(self._access.store.checkpoints.touch, project, known)
            return known, False
        key = (project, str(place), state)
        task = self._running.get(key)
        if task is None:
            task = self._background.begin(self._import(project, place, found, state))
            self._running[key] = task
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """Ends what runs with SERVICE_DRAINING; what was stored stays, and is found by the next try."""
        self._stop.set()
        while self._running:
            await asyncio.wait(set(self._running.values()))
        self._openers.shutdown(wait=False)
        self._workers.shutdown(wait=False)

    async def _open(self, project: str, uri: str) -> tuple[Place, _Found]:
        self._check_running()
        place = parse_uri(uri)
        roots = self._roots.find(project, place)
        if place.scheme == "file":
            return place, await self._on(self._openers, partial(open_place, project, place, roots))
        return place, await self._on(self._openers, partial(self._look, project, place, roots))

    def _look(self, project: str, place: Place, roots: list[Place]) -> RemoteCheckpoint:
        with tempfile.TemporaryDirectory(dir=self._spool) as folder:
            return self._objects.look(project, place, roots, Path(folder))

    async def _imported(self, project: str, place: Place, state: str) -> str:
        checkpoints = self._access.store.checkpoints
        manifest = await self._access.read(checkpoints.find_import, project, str(place), state)
        if not manifest:
            return ""
        record = await self._access.read(checkpoints.get, project, manifest)
        return "" if record is None or record.missing_count else manifest

    async def _import(self, project: str, place: Place, found: _Found, state: str) -> tuple[str, bool]:
        async with self._slots:
            self._check_running()
            if isinstance(found, LocalCheckpoint):
                digest, created = await self._import_local(project, found)
            else:
                digest, created = await self._import_remote(project, found)
        await self._access.write(self._access.store.checkpoints.record_import, project, str(place), state, digest)
        _log.info("a checkpoint was imported", extra={"project": project, "uri": str(place), "checkpoint": digest})
        return digest, created

    async def _import_local(self, project: str, found: LocalCheckpoint) -> tuple[str, bool]:
        return await self._copy(project, found, found.reader, found.check_unchanged)

    async def _import_remote(self, project: str, found: RemoteCheckpoint) -> tuple[str, bool]:
        folder = await self._on(self._workers, partial(tempfile.TemporaryDirectory, dir=self._spool))
        spool = Path(folder.name)
        try:
            await self._on(self._workers, partial(self._objects.fetch, found, spool, self._check_running))
            with renamed(spool, found.base):
                local = await self._on(self._workers, partial(_open_spooled, found, spool))
                return await self._copy(project, local, local.reader, partial(self._objects.check_unchanged, found))
        finally:
            await self._on(self._workers, folder.cleanup)

    async def _copy(
        self,
        project: str,
        found: LocalCheckpoint,
        reader: Callable[[], FilePool],
        check_unchanged: Callable[[], None],
    ) -> tuple[str, bool]:
        await self._on(self._workers, partial(found.opened.verify, self._check_running))
        sink = BlobSink(self._library, self._uploads, project, self._check_running)
        for tries_left in reversed(range(_TRIES)):
            manifest = await Copying(found.opened, reader, sink, self._workers, self._check_running).run()
            await self._on(self._workers, check_unchanged)
            content = await self._on(self._workers, partial(CheckpointContent.of, manifest))
            await self._put_manifest(sink, content.manifest, await self._on(self._workers, manifest.to_bytes))
            try:
                _, created = await self._access.write(self._access.store.checkpoints.register, project, content)
                return content.manifest, created
            except BlobsMissingError:
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _put_manifest(self, sink: BlobSink, digest: str, data: bytes) -> None:
        if len(data) <= MAX_SMALL_BYTES:
            await sink.put_small({digest: data})
        else:
            await sink.put(digest, len(data), in_memory(data))

    def _check_running(self) -> None:
        if self._stop.is_set():
            raise draining.refusal()

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


def _open_spooled(found: RemoteCheckpoint, spool: Path) -> LocalCheckpoint:
    opened = open_trusted(str(spool / found.named), str(spool), str(found.place))
    return LocalCheckpoint.of_spool(opened, str(found.place))


def _state(found: _Found) -> str:
    return digest_bytes(found.state.encode("utf-8", "surrogateescape"))
