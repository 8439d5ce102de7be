"""A data directory with database and blobs, as a service opens them, without the service."""

from __future__ import annotations

from pathlib import Path

from mindeval.formats.digest import digest_bytes
from mindeval.service.background import Background
from mindeval.service.data_directory import DataDirectory
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import BlobStore, blob_key, pack_key
from mindeval.service.storage.collector import Collector
from mindeval.service.storage.folder_store import FolderStore
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.spool import Spool
from mindeval.service.storage.sql.store import SqlStore
from mindeval.service.storage.uploads import UploadLimits, Uploads

LIMITS = UploadLimits(upload_ttl_s=60.0, upload_sync_bytes=1 << 20, max_blob_bytes=1 << 30, min_free_bytes=0)


class Disk:
    """Everything below BlobService."""

    def __init__(
        self,
        root: Path,
        store: BlobStore | None = None,
        budget_bytes: int = 0,
        grace_s: float = 3600.0,
        limits: UploadLimits = LIMITS,
    ) -> None:
        directory = DataDirectory(root)
        directory.acquire()
        self.directory = directory
        self.access = StoreAccess(SqlStore(directory.database, lambda uid: None))
        self.index = self.access.store.blobs
        self.store = store or FolderStore(directory.root)
        self.library = BlobLibrary(self.access, self.store, grace_s)
        self.spool = Spool(directory.uploads)
        self.background = Background()
        self.collector = Collector(
            self.access, self.library, self.spool, self.background, budget_bytes, limits.upload_ttl_s, grace_s
        )
        self.uploads = Uploads(self.access, self.library, self.spool, self.background, limits, self.collector)

    def close(self) -> None:
        self.access.close()
        self.directory.release()

    async def upload(self, data: bytes) -> str:
        """Writes an upload to its end, and returns its id."""
        record = await self.uploads.create("p", digest_bytes(data), len(data))
        async with self.uploads.writing("p", record.id) as writer:
            await writer.append(0, data)
        return record.id

    async def put(self, data: bytes) -> str:
        """Stores a blob as an object of its own, and returns its digest."""
        await self.uploads.commit("p", await self.upload(data))
        return digest_bytes(data)

    async def pack(self, *blobs: bytes) -> list[str]:
        """Stores blobs in a pack, and returns their digests."""
        batch = self.uploads.small_blobs("p")
        try:
            await batch.add([(digest_bytes(data), data) for data in blobs])
            await batch.finish()
        finally:
            await batch.discard()
        return [digest_bytes(data) for data in blobs]

    async def read(self, digest: str) -> bytes:
        return await self.library.read("p", digest, "the test")

    def held(self, *digests: str) -> set[str]:
        return set(self.index.sizes("p", digests))

    def path(self, digest: str) -> Path:
        """The file that a blob lies in."""
        blob = self.index.find("p", [digest])[digest]
        key = pack_key("p", blob.pack) if blob.pack else blob_key("p", digest)
        return self.directory.root / key

    def files(self) -> list[Path]:
        """All files of the blob store, when it is a folder."""
        tops = [self.directory.root / name for name in ("blobs", "packs")]
        return sorted(path for top in tops for path in top.rglob("*") if path.is_file())

    def age(self, *digests: str, use_us: int = 1) -> None:
        """Makes blobs look unused for long."""
        self.index.touch("p", digests, use_us)
