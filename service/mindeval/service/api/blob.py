"""BlobService."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from mindeval.formats.digest import check_digest
from mindeval.formats.names import parse, parse_project
from mindeval.service import drain as draining
from mindeval.service.api import checks
from mindeval.service.drain import Drain
from mindeval.service.errors import FieldError, ServiceError
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import BlobFolder
from mindeval.service.storage.records import UploadRecord
from mindeval.service.storage.uploads import Uploads, UploadWriter
from mindeval.service.storage.wire import timestamp
from mindeval.v1 import blob_pb2 as pb
from mindeval.v1 import blob_pb2_grpc

MAX_CHUNK_BYTES = 1 << 20
MAX_DIGESTS = 10_000

_Context = grpc.aio.ServicerContext[Any, Any]


class BlobApi(blob_pb2_grpc.BlobServiceServicer):
    """See blob.proto."""

    def __init__(self, access: StoreAccess, uploads: Uploads, folder: BlobFolder, drain: Drain) -> None:
        self._access = access
        self._uploads = uploads
        self._folder = folder
        self._drain = drain

    async def FindMissingBlobs(  # noqa: N802 - named by the proto
        self, request: pb.FindMissingBlobsRequest, context: _Context
    ) -> pb.FindMissingBlobsResponse:
        """Tells which blobs are not there."""
        project = parse_project(request.parent, "parent")
        if len(request.digests) > MAX_DIGESTS:
            raise FieldError("digests", f"has {len(request.digests)} entries; at most {MAX_DIGESTS} are taken")
        digests = [check_digest(digest, f"digests[{i}]") for i, digest in enumerate(request.digests)]
        held = await self._access.read(self._access.store.blobs.sizes, project, digests)
        return pb.FindMissingBlobsResponse(missing_digests=[digest for digest in digests if digest not in held])

    async def CreateUpload(  # noqa: N802
        self, request: pb.CreateUploadRequest, context: _Context
    ) -> pb.CreateUploadResponse:
        """Opens an upload."""
        project = parse_project(request.parent, "parent")
        digest = check_digest(request.digest, "digest")
        size_bytes = checks.whole_number(request.size_bytes, "size_bytes", 0, self._uploads.limits.max_blob_bytes)
        return pb.CreateUploadResponse(upload=_message(await self._uploads.create(project, digest, size_bytes)))

    async def GetUpload(self, request: pb.GetUploadRequest, context: _Context) -> pb.GetUploadResponse:  # noqa: N802
        """Reads an upload."""
        name = parse(request.name, "uploads", "name")
        return pb.GetUploadResponse(upload=_message(await self._uploads.get(name.project, name.id)))

    async def WriteUpload(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.WriteUploadRequest], context: _Context
    ) -> pb.WriteUploadResponse:
        """Appends to an upload."""
        async with aclosing(self._until_drained(request_iterator)) as requests:
            first = await _first(requests)
            name = parse(first.name, "uploads", "name")
            async with self._uploads.writing(name.project, name.id) as writer:
                await _append(writer, first)
                async for request in requests:
                    await _append(writer, request)
                return pb.WriteUploadResponse(committed_offset=await writer.sync())

    async def CommitUpload(  # noqa: N802
        self, request: pb.CommitUploadRequest, context: _Context
    ) -> pb.CommitUploadResponse:
        """Verifies an upload and makes its blob visible."""
        name = parse(request.name, "uploads", "name")
        return pb.CommitUploadResponse(upload=_message(await self._uploads.commit(name.project, name.id)))

    async def ReadBlob(  # noqa: N802
        self, request: pb.ReadBlobRequest, context: _Context
    ) -> AsyncIterator[pb.ReadBlobResponse]:
        """Streams a blob."""
        project = parse_project(request.parent, "parent")
        digest = check_digest(request.digest, "digest")
        size_bytes = (await self._access.read(self._access.store.blobs.sizes, project, [digest])).get(digest)
        if size_bytes is None:
            raise _no_blob(project, digest)
        offset = checks.whole_number(request.offset, "offset", 0, size_bytes)
        limit = checks.whole_number(request.limit_bytes, "limit_bytes") or size_bytes
        end = min(size_bytes, offset + limit)
        try:
            fd = await asyncio.to_thread(os.open, self._folder.path(project, digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            await self._uploads.drop_if_damaged(project, digest)
            raise _no_blob(project, digest) from None
        try:
            while offset < end:
                data = await asyncio.to_thread(os.pread, fd, min(MAX_CHUNK_BYTES, end - offset), offset)
                if not data:
                    await self._uploads.drop_if_damaged(project, digest)
                    raise _no_blob(project, digest)
                offset += len(data)
                yield pb.ReadBlobResponse(data=data)
        finally:
            os.close(fd)

    async def _until_drained(
        self, requests: AsyncIterator[pb.WriteUploadRequest]
    ) -> AsyncGenerator[pb.WriteUploadRequest, None]:
        """The messages of a stream, or SERVICE_DRAINING instead of the next one."""
        iterator = requests.__aiter__()
        drained = asyncio.ensure_future(self._drain.wait())
        coming: asyncio.Future[pb.WriteUploadRequest] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(iterator.__anext__())
                await asyncio.wait((coming, drained), return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    raise draining.refusal()
                try:
                    request = coming.result()
                except StopAsyncIteration:
                    return
                yield request
        finally:
            drained.cancel()
            if coming is not None:
                coming.cancel()


async def _first(requests: AsyncIterator[pb.WriteUploadRequest]) -> pb.WriteUploadRequest:
    async for request in requests:
        return request
    raise FieldError("name", "the stream has no message; the first one must name the upload")


async def _append(writer: UploadWriter, request: pb.WriteUploadRequest) -> None:
    if len(request.data) > MAX_CHUNK_BYTES:
        raise FieldError("data", f"has {len(request.data)} bytes; at most {MAX_CHUNK_BYTES} are taken in one message")
    if request.data:
        await writer.append(request.offset, request.data)


def _no_blob(project: str, digest: str) -> ServiceError:
    return ServiceError("BLOB_NOT_FOUND", f"project {project!r} has no blob {digest}", {"digest": digest})


def _message(record: UploadRecord) -> pb.Upload:
    return pb.Upload(
        name=record.name if record.id else "",
        digest=record.digest,
        size_bytes=record.size_bytes,
        committed_offset=record.committed_offset,
        complete=record.complete,
        expire_time=timestamp(record.expire_us),
    )
