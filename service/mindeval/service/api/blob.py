"""BlobService."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import grpc.aio

from mindeval.formats.digest import check_digest
from mindeval.formats.errors import MindEvalError
from mindeval.formats.names import parse, parse_project
from mindeval.service import drain as draining
from mindeval.service.api import checks
from mindeval.service.api.upload_chunks import UploadChunk, parse_upload_chunk
from mindeval.service.background import Background
from mindeval.service.drain import Drain
from mindeval.service.errors import BlobsMissingError, FieldError
from mindeval.service.storage.library import BlobLibrary, no_blob
from mindeval.service.storage.records import UploadRecord
from mindeval.service.storage.uploads import Uploads, UploadWriter
from mindeval.service.storage.wire import timestamp
from mindeval.v1 import blob_pb2 as pb
from mindeval.v1 import blob_pb2_grpc

MAX_CHUNK_BYTES = 1 << 20
MAX_DIGESTS = 10_000
MAX_SMALL_BLOB_BYTES = 256 << 10
MAX_SMALL_BLOBS = 4_096

M = TypeVar("M")
_Context = grpc.aio.ServicerContext[Any, Any]


def add_blob_service(api: BlobApi, server: grpc.aio.Server) -> None:
    """As the generated function, but for the parser of WriteUpload."""
    name = pb.DESCRIPTOR.services_by_name["BlobService"].full_name
    handler = grpc.stream_unary_rpc_method_handler(
        api.WriteUpload,
        request_deserializer=parse_upload_chunk,
        response_serializer=pb.WriteUploadResponse.SerializeToString,
    )
    # Of two handlers for one method, the one that was added first is used.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"WriteUpload": handler}),))
    blob_pb2_grpc.add_BlobServiceServicer_to_server(api, server)  # type: ignore[no-untyped-call,unused-ignore]


class BlobApi(blob_pb2_grpc.BlobServiceServicer):
    """See blob.proto."""

    def __init__(self, library: BlobLibrary, uploads: Uploads, drain: Drain, background: Background) -> None:
        self._library = library
        self._uploads = uploads
        self._drain = drain
        self._background = background

    async def FindMissingBlobs(  # noqa: N802 - named by the proto
        self, request: pb.FindMissingBlobsRequest, context: _Context
    ) -> pb.FindMissingBlobsResponse:
        """Tells which blobs are not there."""
        project = parse_project(request.parent, "parent")
        if len(request.digests) > MAX_DIGESTS:
            raise FieldError("digests", f"has {len(request.digests)} entries; at most {MAX_DIGESTS} are taken")
        digests = [check_digest(digest, f"digests[{i}]") for i, digest in enumerate(request.digests)]
        held = await self._library.sizes(project, digests)
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
        self, request_iterator: AsyncIterator[UploadChunk], context: _Context
    ) -> pb.WriteUploadResponse:
        """Appends to an upload."""
        async with aclosing(self._until_drained(request_iterator)) as requests:
            first = await _first(requests, "name")
            name = parse(first.name, "uploads", "name")
            async with self._uploads.writing(name.project, name.id) as writer:
                await _append(writer, first)
                del first  # No chunk is kept while the next one is awaited: there may be many slow streams.
                async for request in requests:
                    await _append(writer, request)
                    del request
                return pb.WriteUploadResponse(committed_offset=await writer.sync())

    async def CommitUpload(  # noqa: N802
        self, request: pb.CommitUploadRequest, context: _Context
    ) -> pb.CommitUploadResponse:
        """Verifies an upload and makes its blob visible."""
        name = parse(request.name, "uploads", "name")
        return pb.CommitUploadResponse(upload=_message(await self._uploads.commit(name.project, name.id)))

    async def WriteSmallBlobs(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.WriteSmallBlobsRequest], context: _Context
    ) -> pb.WriteSmallBlobsResponse:
        """Stores many small blobs."""
        async with aclosing(self._until_drained(request_iterator)) as requests:
            first = await _first(requests, "parent")
            batch = self._uploads.small_blobs(parse_project(first.parent, "parent"))
            try:
                try:
                    await self._background.to_the_end(batch.add(_small_blobs(first)))
                    del first
                    async for request in requests:
                        await self._background.to_the_end(batch.add(_small_blobs(request)))
                        del request
                except MindEvalError:
                    # Those before the one at fault stay.
                    await self._background.to_the_end(batch.finish())
                    raise
                return pb.WriteSmallBlobsResponse(stored_count=await self._background.to_the_end(batch.finish()))
            finally:
                await self._background.to_the_end(batch.discard())

    async def ReadBlob(  # noqa: N802
        self, request: pb.ReadBlobRequest, context: _Context
    ) -> AsyncIterator[pb.ReadBlobResponse]:
        """Streams a blob."""
        project = parse_project(request.parent, "parent")
        digest = check_digest(request.digest, "digest")
        size_bytes = (await self._library.sizes(project, [digest])).get(digest)
        if size_bytes is None:
            raise no_blob(project, digest)
        offset = checks.whole_number(request.offset, "offset", 0, size_bytes)
        limit = checks.whole_number(request.limit_bytes, "limit_bytes") or size_bytes
        try:
            async with self._library.leased(project, [digest], "the call") as lease:
                location = lease.locations[digest]
                fd = await asyncio.to_thread(os.open, location.path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    at, end = location.offset + offset, location.offset + min(size_bytes, offset + limit)
                    while at < end:
                        data = await asyncio.to_thread(os.pread, fd, min(MAX_CHUNK_BYTES, end - at), at)
                        if not data:
                            await self._library.drop_damaged(project, [digest])
                            raise no_blob(project, digest)
                        at += len(data)
                        yield pb.ReadBlobResponse(data=data)
                finally:
                    os.close(fd)
        except (BlobsMissingError, FileNotFoundError):
            raise no_blob(project, digest) from None

    async def _until_drained(self, requests: AsyncIterator[M]) -> AsyncGenerator[M, None]:
        """The messages of a stream, or SERVICE_DRAINING instead of the next one."""
        iterator = requests.__aiter__()
        drained = asyncio.ensure_future(self._drain.wait())
        coming: asyncio.Future[M] | None = None
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
                coming = None
                yield request
                del request
        finally:
            drained.cancel()
            if coming is not None:
                coming.cancel()


async def _first(requests: AsyncIterator[M], field: str) -> M:
    async for request in requests:
        return request
    raise FieldError(field, "the stream has no message; the first one must have it")


async def _append(writer: UploadWriter, chunk: UploadChunk) -> None:
    if len(chunk.data) > MAX_CHUNK_BYTES:
        raise FieldError("data", f"has {len(chunk.data)} bytes; at most {MAX_CHUNK_BYTES} are taken in one message")
    if chunk.data:
        await writer.append(chunk.offset, chunk.data)


def _small_blobs(request: pb.WriteSmallBlobsRequest) -> list[tuple[str, bytes]]:
    if len(request.blobs) > MAX_SMALL_BLOBS:
        raise FieldError(
            "blobs", f"has {len(request.blobs)} entries; at most {MAX_SMALL_BLOBS} are taken in one message"
        )
    blobs, size_bytes = [], 0
    for i, blob in enumerate(request.blobs):
        data = blob.data
        check_digest(blob.digest, f"blobs[{i}].digest")
        if len(data) > MAX_SMALL_BLOB_BYTES:
            raise FieldError(
                f"blobs[{i}].data",
                f"has {len(data)} bytes; at most {MAX_SMALL_BLOB_BYTES} are taken, upload it instead",
            )
        size_bytes += len(data)
        blobs.append((blob.digest, data))
    if size_bytes > MAX_CHUNK_BYTES:
        raise FieldError("blobs", f"have {size_bytes} bytes; at most {MAX_CHUNK_BYTES} are taken in one message")
    return blobs


def _message(record: UploadRecord) -> pb.Upload:
    return pb.Upload(
        name=record.name if record.id else "",
        digest=record.digest,
        size_bytes=record.size_bytes,
        committed_offset=record.committed_offset,
        complete=record.complete,
        expire_time=timestamp(record.expire_us),
    )
