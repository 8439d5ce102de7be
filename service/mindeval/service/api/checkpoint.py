"""CheckpointService."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from mindeval.formats.digest import ALGORITHM, check_digest
from mindeval.formats.manifest import Manifest
from mindeval.formats.names import ResourceName, parse, parse_project
from mindeval.service.api import checks
from mindeval.service.api.differences import ValueComparison, compare
from mindeval.service.api.paging import Pager, fitting
from mindeval.service.background import Background
from mindeval.service.errors import FieldError, ServiceError
from mindeval.service.ingest.importer import Importer
from mindeval.service.scheduling.jobs import read_manifest, require_blobs
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import blob_key, pack_key
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import (
    CheckpointContent,
    CheckpointQuery,
    CheckpointRecord,
    CheckpointStepRecord,
)
from mindeval.service.storage.wire import timestamp
from mindeval.v1 import checkpoint_pb2 as pb
from mindeval.v1 import checkpoint_pb2_grpc

MAX_DIFFERENCES = 10_000
MAX_DIFF_S = 600.0
# What is left of a caller's deadline for everything but comparing values.
_SPARE_SHARE = 0.1
_SPARE_S = 0.2
# Many steps of one checkpoint are those of a run that does not learn; the newest ones say enough.
_MAX_STEPS = 1_000

_Context = grpc.aio.ServicerContext[Any, Any]


class CheckpointApi(checkpoint_pb2_grpc.CheckpointServiceServicer):
    """See checkpoint.proto."""

    def __init__(self, access: StoreAccess, library: BlobLibrary, importer: Importer, background: Background) -> None:
        self._access = access
        self._checkpoints = access.store.checkpoints
        self._library = library
        self._importer = importer
        self._background = background
        self._comparison = ValueComparison(library)

    async def CreateCheckpoint(  # noqa: N802 - named by the proto
        self, request: pb.CreateCheckpointRequest, context: _Context
    ) -> pb.CreateCheckpointResponse:
        """Registers a checkpoint."""
        project = parse_project(request.parent, "parent")
        step = _step(project, request)
        source = request.WhichOneof("source")
        if source is None:
            raise FieldError("source", "is required: the digest of an uploaded manifest, or a URI")
        is_new = False
        if source == "uri":
            digest, is_new = await self._importer.load(project, request.uri)
        else:
            digest = check_digest(request.manifest, "manifest")
        manifest = await read_manifest(self._library, project, digest)
        await require_blobs(self._library, project, manifest.blobs(), "the checkpoint")
        content = await asyncio.to_thread(CheckpointContent.of, manifest)
        record, created = await self._access.write(self._checkpoints.register, project, content, step)
        return pb.CreateCheckpointResponse(checkpoint=_message(record), created=created or is_new)

    async def GetCheckpoint(  # noqa: N802
        self, request: pb.GetCheckpointRequest, context: _Context
    ) -> pb.GetCheckpointResponse:
        """Reads a checkpoint."""
        return pb.GetCheckpointResponse(checkpoint=_message(await self._find(request.name, "name")))

    async def ListCheckpoints(  # noqa: N802
        self, request: pb.ListCheckpointsRequest, context: _Context
    ) -> pb.ListCheckpointsResponse:
        """Lists checkpoints."""
        project = parse_project(request.parent, "parent")
        size = checks.page_size(request.page_size)
        run = checks.name_in(project, request.run, "runs", "run").id if request.run else ""
        pager = Pager("ListCheckpoints", project, run)
        cursor = pager.cursor(request.page_token, [int, str])
        after = None if cursor is None else (cursor[0], cursor[1])
        records = await self._access.read(self._checkpoints.page, CheckpointQuery(project, run, after, size + 1))
        page = fitting(map(_message, records[:size]))
        token = ""
        if len(page) < len(records):
            last = records[len(page) - 1]
            place = min(step.step for step in last.steps if step.run == run) if run else last.use_us
            token = pager.token(place, last.manifest)
        return pb.ListCheckpointsResponse(checkpoints=page, next_page_token=token)

    async def PinCheckpoint(  # noqa: N802
        self, request: pb.PinCheckpointRequest, context: _Context
    ) -> pb.PinCheckpointResponse:
        """Pins a checkpoint, or lets go of it."""
        name = parse(request.name, "checkpoints", "name")
        record = await self._access.write(self._checkpoints.pin, name.project, _digest(name), request.pinned)
        return pb.PinCheckpointResponse(checkpoint=_message(_known(record, name)))

    async def DeleteCheckpoint(  # noqa: N802
        self, request: pb.DeleteCheckpointRequest, context: _Context
    ) -> pb.DeleteCheckpointResponse:
        """Forgets a checkpoint."""
        name = parse(request.name, "checkpoints", "name")
        return pb.DeleteCheckpointResponse(freed_bytes=await self._background.to_the_end(self._delete(name)))

    async def DiffCheckpoints(  # noqa: N802
        self, request: pb.DiffCheckpointsRequest, context: _Context
    ) -> pb.DiffCheckpointsResponse:
        """Compares two checkpoints."""
        remaining_s = context.time_remaining()
        base_name = parse(request.base, "checkpoints", "base")
        checks.name_in(base_name.project, request.other, "checkpoints", "other")
        base, other = await self._manifest(request.base, "base"), await self._manifest(request.other, "other")
        differences, equal_count = await asyncio.to_thread(compare, base, other)
        different_count = len(differences)
        differences = differences[:MAX_DIFFERENCES]
        if request.with_values:
            budget_s = min(MAX_DIFF_S, (remaining_s or MAX_DIFF_S) * (1 - _SPARE_SHARE) - _SPARE_S)
            differences = await self._comparison.measure(base_name.project, differences, budget_s)
        return pb.DiffCheckpointsResponse(
            differences=fitting(difference.message() for difference in differences),
            equal_count=equal_count,
            different_count=different_count,
        )

    async def _delete(self, name: ResourceName) -> int:
        removed = await self._access.write(self._checkpoints.remove, name.project, _digest(name))
        if removed is None:
            raise _not_found(name)
        keys = {
            pack_key(blob.project, blob.pack) if blob.pack else blob_key(blob.project, blob.digest) for blob in removed
        }
        await self._library.sweep(name.project, keys)
        return sum(blob.size_bytes for blob in removed)

    async def _manifest(self, text: str, field: str) -> Manifest:
        record = await self._find(text, field)
        manifest = await read_manifest(self._library, record.project, record.manifest)
        await self._access.write(self._checkpoints.touch, record.project, record.manifest)
        return manifest

    async def _find(self, text: str, field: str) -> CheckpointRecord:
        name = parse(text, "checkpoints", field)
        return _known(await self._access.read(self._checkpoints.get, name.project, _digest(name)), name)


def _step(project: str, request: pb.CreateCheckpointRequest) -> CheckpointStepRecord | None:
    if not request.HasField("step"):
        return None
    run = checks.name_in(project, request.step.run, "runs", "step.run").id
    return CheckpointStepRecord(run, checks.whole_number(request.step.step, "step.step"))


def _digest(name: ResourceName) -> str:
    return f"{ALGORITHM}:{name.id}"


def _known(record: CheckpointRecord | None, name: ResourceName) -> CheckpointRecord:
    if record is None:
        raise _not_found(name)
    return record


def _not_found(name: ResourceName) -> ServiceError:
    return ServiceError("CHECKPOINT_NOT_FOUND", f"there is no {name}", {"checkpoint": str(name)})


def _message(record: CheckpointRecord) -> pb.Checkpoint:
    state = pb.CHECKPOINT_STATE_MISSING if record.missing_count else pb.CHECKPOINT_STATE_READY
    return pb.Checkpoint(
        name=record.name,
        manifest=record.manifest,
        state=state,
        size_bytes=record.size_bytes,
        own_size_bytes=record.own_size_bytes,
        tensor_count=record.tensor_count,
        pinned=record.pinned,
        steps=[
            pb.CheckpointStep(run=f"projects/{record.project}/runs/{step.run}", step=step.step)
            for step in record.steps[-_MAX_STEPS:]
        ],
        create_time=timestamp(record.create_us),
        use_time=timestamp(record.use_us),
    )
