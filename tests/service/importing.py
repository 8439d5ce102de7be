"""An importer without the service."""

from __future__ import annotations

from pathlib import Path

from tests.service.disk import Disk

from mindeval.service.ingest.importer import Importer
from mindeval.service.ingest.objects import ObjectReader
from mindeval.service.ingest.uris import StorageRoots


class Importing:
    """An importer in this process."""

    def __init__(self, root: Path, shared: Path, endpoint_url: str = "", min_free_bytes: int = 0) -> None:
        self.disk = Disk(root)
        self.importer = Importer(
            self.disk.access,
            self.disk.library,
            self.disk.uploads,
            self.disk.background,
            StorageRoots({"p": [f"file://{shared}", "s3://models"]}),
            ObjectReader(endpoint_url, min_free_bytes),
            self.disk.directory.imports,
        )

    async def __aenter__(self) -> Importing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.importer.stop()
        await self.disk.background.settle()
        self.disk.close()
