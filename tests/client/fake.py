"""A service in memory that can be told to misbehave, in ways that a real one rarely does."""
# ruff: noqa: N802  the methods are named by the generated code

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from mindeval.formats.digest import digest_bytes
from mindeval.v1 import (
    blob_pb2,
    blob_pb2_grpc,
    capability_pb2,
    capability_pb2_grpc,
    evaluation_pb2,
    evaluation_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

PARENT = "projects/default"
EVALUATION = f"{PARENT}/evaluations/e1"
SUITE_VERSION = f"{PARENT}/suites/s/versions/{'0' * 64}"


@dataclass
class Fault:
    """What the next call of a method answers: an error, a plain status without details, or silence."""

    code: grpc.StatusCode
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    missing: tuple[str, ...] = ()


class FakeService:
    """State and faults. `calls` counts by method; `chunks` are (offset, size) of what was written."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, int, bytearray]] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.calls: dict[str, int] = defaultdict(int)
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.chunks: list[tuple[int, int]] = []
        self.cut_uploads_after: deque[int] = deque()
        self.events: list[evaluation_pb2.EvaluationEvent] = []
        self.cut_watches_after: deque[int] = deque()
        self.evaluations: list[evaluation_pb2.Evaluation] = []
        self.points: list[run_pb2.TrainingMetrics] = []
        self.flips_bits_in: set[str] = set()
        self.knows_small_blobs = True
        self.busy: dict[str, int] = {}
        self.finished: list[str] = []
        self.cut_small_blobs_after: deque[int] = deque()
        self.endpoint = ""
        self.metadata: dict[str, Any] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self, endpoint: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        blob_pb2_grpc.add_BlobServiceServicer_to_server(_Blobs(self), server)
        evaluation_pb2_grpc.add_EvaluationServiceServicer_to_server(_Evaluations(self), server)
        registry_pb2_grpc.add_RegistryServiceServicer_to_server(_Registry(self), server)
        run_pb2_grpc.add_RunServiceServicer_to_server(_Runs(self), server)
        capability_pb2_grpc.add_CapabilityServiceServicer_to_server(_Capabilities(self), server)
        if credentials is None:
            port = server.add_insecure_port(endpoint)
        else:
            port = server.add_secure_port(endpoint, credentials)
        await server.start()
        self._server = server
        self.endpoint = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    def fail_next(self, method: str, *faults: Fault) -> None:
        self.faults[method].extend(faults)

    async def enter(self, method: str, request: Any, context: grpc.aio.ServicerContext) -> None:
        self.calls[method] += 1
        self.metadata = dict(context.invocation_metadata() or ())
        self.requests[method].append(request)
        if self.faults[method]:
            await abort(context, self.faults[method].popleft())


async def abort(context: grpc.aio.ServicerContext, fault: Fault) -> None:
    if not fault.reason:
        await context.abort(fault.code, "no details")
    status = status_pb2.Status(code=fault.code.value[0], message=f"told to fail: {fault.reason}")
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=fault.reason, domain="mindeval", metadata=fault.metadata)]
    if fault.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(fault.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if fault.missing:
        violations = [error_details_pb2.PreconditionFailure.Violation(subject=digest) for digest in fault.missing]
        details.append(error_details_pb2.PreconditionFailure(violations=violations))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(fault.code, status.message)


def state_event(sequence: int, state: str, **fields: Any) -> evaluation_pb2.EvaluationEvent:
    evaluation = evaluation_pb2.Evaluation(
        name=EVALUATION,
        state=getattr(evaluation_pb2, f"EVALUATION_STATE_{state}"),
        last_sequence=sequence,
        **fields,
    )
    return evaluation_pb2.EvaluationEvent(
        sequence=sequence,
        evaluation=EVALUATION,
        state_changed=evaluation_pb2.StateChanged(evaluation=evaluation),
    )


def progress_event(sequence: int, done: int = 1, total: int = 2) -> evaluation_pb2.EvaluationEvent:
    progress = evaluation_pb2.Progress(task="val", phase="scoring", done=done, total=total, unit="tokens")
    return evaluation_pb2.EvaluationEvent(sequence=sequence, evaluation=EVALUATION, progress=progress)


def bookmark_event(sequence: int) -> evaluation_pb2.EvaluationEvent:
    return evaluation_pb2.EvaluationEvent(sequence=sequence, evaluation=EVALUATION, bookmark=evaluation_pb2.Bookmark())


class _Blobs(blob_pb2_grpc.BlobServiceServicer):
    def __init__(self, fake: FakeService) -> None:
        self.fake = fake

    async def FindMissingBlobs(self, request, context):
        await self.fake.enter("FindMissingBlobs", request, context)
        missing = [digest for digest in request.digests if digest not in self.fake.blobs]
        return blob_pb2.FindMissingBlobsResponse(missing_digests=missing)

    async def CreateUpload(self, request, context):
        await self.fake.enter("CreateUpload", request, context)
        if request.digest in self.fake.blobs:
            upload = blob_pb2.Upload(digest=request.digest, size_bytes=request.size_bytes, complete=True)
            return blob_pb2.CreateUploadResponse(upload=upload)
        name = f"{PARENT}/uploads/u{request.digest[-16:]}"
        _, _, data = self.fake.uploads.setdefault(name, (request.digest, request.size_bytes, bytearray()))
        upload = blob_pb2.Upload(
            name=name, digest=request.digest, size_bytes=request.size_bytes, committed_offset=len(data)
        )
        return blob_pb2.CreateUploadResponse(upload=upload)

    async def WriteUpload(self, requests, context):
        name = ""
        async for request in requests:
            if not name:
                name = request.name
                await self.fake.enter("WriteUpload", request, context)
            if name not in self.fake.uploads:
                await abort(context, Fault(grpc.StatusCode.NOT_FOUND, "UPLOAD_NOT_FOUND"))
            digest, _, data = self.fake.uploads[name]
            if self.fake.busy.get(digest, 0) > 0:
                self.fake.busy[digest] -= 1
                await abort(context, Fault(grpc.StatusCode.ABORTED, "UPLOAD_BUSY", retry_after_s=0.05))
            if request.offset != len(data):
                metadata = {"committed_offset": str(len(data))}
                await abort(context, Fault(grpc.StatusCode.ABORTED, "UPLOAD_OFFSET_MISMATCH", metadata))
            data += request.data
            self.fake.chunks.append((request.offset, len(request.data)))
            if self.fake.cut_uploads_after and len(data) >= self.fake.cut_uploads_after[0]:
                self.fake.cut_uploads_after.popleft()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        return blob_pb2.WriteUploadResponse(committed_offset=len(self.fake.uploads[name][2]))

    async def WriteSmallBlobs(self, requests, context):
        if not self.fake.knows_small_blobs:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        stored = 0
        first = True
        async for request in requests:
            assert request.ByteSize() <= (1 << 20) + (1 << 19)
            if first:
                assert request.parent.startswith("projects/")
                await self.fake.enter("WriteSmallBlobs", request, context)
                first = False
            else:
                self.fake.requests["WriteSmallBlobs"].append(request)
            for blob in request.blobs:
                assert len(blob.data) <= 256 << 10
                if digest_bytes(blob.data) != blob.digest:
                    await abort(context, Fault(grpc.StatusCode.DATA_LOSS, "DIGEST_MISMATCH", {"digest": blob.digest}))
                stored += blob.digest not in self.fake.blobs
                self.fake.blobs[blob.digest] = blob.data
                if self.fake.cut_small_blobs_after and stored >= self.fake.cut_small_blobs_after[0]:
                    self.fake.cut_small_blobs_after.popleft()
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        return blob_pb2.WriteSmallBlobsResponse(stored_count=stored)

    async def CommitUpload(self, request, context):
        await self.fake.enter("CommitUpload", request, context)
        if request.name not in self.fake.uploads:
            await abort(context, Fault(grpc.StatusCode.NOT_FOUND, "UPLOAD_NOT_FOUND"))
        digest, size, data = self.fake.uploads.pop(request.name)
        if len(data) != size or digest_bytes(data) != digest:
            await abort(context, Fault(grpc.StatusCode.DATA_LOSS, "DIGEST_MISMATCH", {"digest": digest}))
        self.fake.blobs[digest] = bytes(data)
        self.fake.finished.append(digest)
        upload = blob_pb2.Upload(name=request.name, digest=digest, size_bytes=size, complete=True)
        return blob_pb2.CommitUploadResponse(upload=upload)

    async def ReadBlob(self, request, context) -> AsyncIterator[Any]:
        await self.fake.enter("ReadBlob", request, context)
        if request.digest not in self.fake.blobs:
            await abort(context, Fault(grpc.StatusCode.NOT_FOUND, "BLOB_NOT_FOUND", {"digest": request.digest}))
        data = bytearray(self.fake.blobs[request.digest])
        if request.digest in self.fake.flips_bits_in:
            data[-1] ^= 1
        for begin in range(request.offset, len(data), 1 << 16):
            yield blob_pb2.ReadBlobResponse(data=bytes(data[begin : begin + (1 << 16)]))


class _Evaluations(evaluation_pb2_grpc.EvaluationServiceServicer):
    def __init__(self, fake: FakeService) -> None:
        self.fake = fake

    async def EvaluateCheckpoint(self, request, context) -> AsyncIterator[Any]:
        await self.fake.enter("EvaluateCheckpoint", request, context)
        async for event in self._events(0, context):
            yield evaluation_pb2.EvaluateCheckpointResponse(event=event)

    async def WatchEvaluation(self, request, context) -> AsyncIterator[Any]:
        await self.fake.enter("WatchEvaluation", request, context)
        async for event in self._events(request.after_sequence, context):
            yield evaluation_pb2.WatchEvaluationResponse(event=event)

    async def CreateEvaluation(self, request, context):
        await self.fake.enter("CreateEvaluation", request, context)
        evaluation = evaluation_pb2.Evaluation(name=EVALUATION, state=evaluation_pb2.EVALUATION_STATE_QUEUED)
        evaluation.spec.CopyFrom(request.spec)
        return evaluation_pb2.CreateEvaluationResponse(evaluation=evaluation, created=True)

    async def GetEvaluation(self, request, context):
        await self.fake.enter("GetEvaluation", request, context)
        last = next(event for event in reversed(self.fake.events) if event.WhichOneof("payload") == "state_changed")
        return evaluation_pb2.GetEvaluationResponse(evaluation=last.state_changed.evaluation)

    async def CancelEvaluation(self, request, context):
        await self.fake.enter("CancelEvaluation", request, context)
        self.fake.events.append(state_event(len(self.fake.events) + 1, "CANCELLED"))
        evaluation = self.fake.events[-1].state_changed.evaluation
        return evaluation_pb2.CancelEvaluationResponse(evaluation=evaluation)

    async def ListEvaluations(self, request, context):
        await self.fake.enter("ListEvaluations", request, context)
        begin = int(request.page_token or 0)
        end = begin + min(request.page_size, 3)
        token = str(end) if end < len(self.fake.evaluations) else ""
        return evaluation_pb2.ListEvaluationsResponse(
            evaluations=self.fake.evaluations[begin:end], next_page_token=token
        )

    async def _events(self, after: int, context) -> AsyncIterator[Any]:
        cut = self.fake.cut_watches_after.popleft() if self.fake.cut_watches_after else None
        sent = 0
        position = 0
        while True:
            while position < len(self.fake.events):
                event = self.fake.events[position]
                position += 1
                if event.sequence <= after and event.WhichOneof("payload") != "bookmark":
                    continue
                if cut is not None and sent >= cut:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                yield event
                sent += 1
                if event.WhichOneof("payload") == "state_changed" and event.state_changed.evaluation.state >= 4:
                    return
            if cut is not None:
                return  # ends without a terminal event, as a draining service does
            await asyncio.sleep(0.01)


class _Registry(registry_pb2_grpc.RegistryServiceServicer):
    def __init__(self, fake: FakeService) -> None:
        self.fake = fake

    async def GetSuite(self, request, context):
        await self.fake.enter("GetSuite", request, context)
        return registry_pb2.GetSuiteResponse(suite=registry_pb2.Suite(version=SUITE_VERSION))

    async def PutSuite(self, request, context):
        await self.fake.enter("PutSuite", request, context)
        suite = registry_pb2.Suite(version=f"{PARENT}/suites/{request.suite_id}/versions/{'1' * 64}")
        suite.tasks.extend(request.suite.tasks)
        suite.description = request.suite.description
        return registry_pb2.PutSuiteResponse(suite=suite, created=True)


class _Runs(run_pb2_grpc.RunServiceServicer):
    def __init__(self, fake: FakeService) -> None:
        self.fake = fake

    async def ReportTrainingMetrics(self, request, context):
        await self.fake.enter("ReportTrainingMetrics", request, context)
        self.fake.points.extend(request.points)
        return run_pb2.ReportTrainingMetricsResponse(run=run_pb2.Run(name=request.run))


class _Capabilities(capability_pb2_grpc.CapabilityServiceServicer):
    def __init__(self, fake: FakeService) -> None:
        self.fake = fake

    async def GetCapabilities(self, request, context):
        await self.fake.enter("GetCapabilities", request, context)
        return capability_pb2.GetCapabilitiesResponse(
            version="9.9.9",
            evaluator_build="build",
            digest_algorithms=["blake3"],
            max_chunk_bytes=1 << 16,
            task_types=[capability_pb2.TaskType(name="language_modeling", metrics=["loss"])],
            devices=[capability_pb2.Device(name="cpu:0", state=capability_pb2.DEVICE_STATE_IDLE)],
        )
