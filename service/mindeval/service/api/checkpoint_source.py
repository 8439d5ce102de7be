"""What `CheckpointSource` stands for: an uploaded manifest, or a checkpoint that is read from shared storage."""

from __future__ import annotations

import asyncio

from mindeval.formats.digest import check_digest
from mindeval.service.errors import FieldError
from mindeval.service.ingest.importer import Importer
from mindeval.service.ingest.uris import parse_uri
from mindeval.service.scheduling.jobs import read_manifest, require_blobs
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import CheckpointContent
from mindeval.v1 import evaluation_pb2 as pb


def check_source(source: pb.CheckpointSource, field: str) -> None:
    """Checks the form alone.

    Raises:
        MindEvalError: INVALID_FIELD; URI_FORBIDDEN.
    """
    kind = source.WhichOneof("source")
    if kind is None:
        raise FieldError(field, "is required: the digest of an uploaded manifest, or a URI")
    if kind == "uri":
        parse_uri(source.uri, f"{field}.uri")
    else:
        check_digest(source.manifest, f"{field}.manifest")


class CheckpointSources:
    """Finds the checkpoints that requests name."""

    def __init__(self, library: BlobLibrary, importer: Importer) -> None:
        self._library = library
        self._importer = importer

    async def load(self, project: str, source: pb.CheckpointSource) -> CheckpointContent:
        """A checkpoint whose blobs are all there; one named by URI is read into blobs first.

        Raises:
            MindEvalError: BLOB_MISSING, MANIFEST_INVALID; for a URI what `Importer.load` raises.
        """
        digest = source.manifest
        if source.WhichOneof("source") == "uri":
            digest, _ = await self._importer.load(project, source.uri)
        return await self._content(project, digest)

    async def look(self, project: str, source: pb.CheckpointSource) -> CheckpointContent | None:
        """As `load`, but a URI is looked at and not read; None when what it holds is not known yet.

        Raises:
            MindEvalError: As `load`.
        """
        digest = source.manifest
        if source.WhichOneof("source") == "uri":
            digest = await self._importer.find(project, source.uri)
        return await self._content(project, digest) if digest else None

    async def _content(self, project: str, digest: str) -> CheckpointContent:
        manifest = await read_manifest(self._library, project, digest)
        await require_blobs(self._library, project, manifest.blobs(), "the checkpoint")
        return await asyncio.to_thread(CheckpointContent.of, manifest)
