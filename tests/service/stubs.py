"""Raw generated stubs with just enough around them to write tests about the service's behaviour."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc

from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import FileEntry, Manifest, TensorEntry
from mindeval.v1 import (
    blob_pb2,
    blob_pb2_grpc,
    capability_pb2_grpc,
    checkpoint_pb2_grpc,
    evaluation_pb2,
    evaluation_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    run_pb2_grpc,
)

TIMEOUT_S = 20.0
CHUNK_BYTES = 1 << 20
TERMINAL = (
    evaluation_pb2.EVALUATION_STATE_SUCCEEDED,
    evaluation_pb2.EVALUATION_STATE_FAILED,
    evaluation_pb2.EVALUATION_STATE_CANCELLED,
)


@dataclass(frozen=True)
class Refusal:
    """A failed call, taken apart."""

    code: grpc.StatusCode
    reason: str
    metadata: dict[str, str]
    message: str
    details: list[Any]
    size_bytes: int


@contextmanager
def refused(reason: str) -> Iterator[list[Refusal]]:
    """Expects the block to end with that reason; the list then holds the refusal."""
    found: list[Refusal] = []
    with pytest.raises(grpc.RpcError) as caught:
        yield found
    refusal = refusal_of(caught.value)
    assert refusal.reason == reason, refusal
    found.append(refusal)


def refusal_of(error: grpc.RpcError) -> Refusal:
    trailers = dict(error.trailing_metadata() or ())
    assert "grpc-status-details-bin" in trailers, error
    data = trailers["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(data)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    details: list[Any] = []
    for packed in status.details:
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.BadRequest,
            error_details_pb2.PreconditionFailure,
            error_details_pb2.RetryInfo,
        ):
            if packed.Is(kind.DESCRIPTOR):
                message = kind()
                packed.Unpack(message)
                details.append(message)
    info = details[0]
    assert info.domain == "mindeval"
    return Refusal(error.code(), info.reason, dict(info.metadata), error.details(), details, len(data))


def reason_of(status: status_pb2.Status) -> str:
    """Reason of an error that is kept in an evaluation."""
    info = error_details_pb2.ErrorInfo()
    assert status.details, status
    assert status.details[0].Unpack(info)
    return info.reason


class Client:
    """Stubs of one channel, for one project."""

    def __init__(self, channel: grpc.Channel, project: str) -> None:
        self.project = project
        self.parent = f"projects/{project}"
        self.evaluations = evaluation_pb2_grpc.EvaluationServiceStub(channel)
        self.blobs = blob_pb2_grpc.BlobServiceStub(channel)
        self.registry = registry_pb2_grpc.RegistryServiceStub(channel)
        self.checkpoints = checkpoint_pb2_grpc.CheckpointServiceStub(channel)
        self.runs = run_pb2_grpc.RunServiceStub(channel)
        self.capabilities = capability_pb2_grpc.CapabilityServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    # Blobs

    def create_upload(self, digest: str, size_bytes: int) -> blob_pb2.Upload:
        request = blob_pb2.CreateUploadRequest(parent=self.parent, digest=digest, size_bytes=size_bytes)
        return self.blobs.CreateUpload(request, timeout=TIMEOUT_S).upload

    def write(self, name: str, data: bytes, offset: int = 0) -> int:
        requests = [
            blob_pb2.WriteUploadRequest(name=name, offset=offset + begin, data=data[begin : begin + CHUNK_BYTES])
            for begin in range(0, len(data), CHUNK_BYTES)
        ] or [blob_pb2.WriteUploadRequest(name=name)]
        return self.blobs.WriteUpload(iter(requests), timeout=TIMEOUT_S).committed_offset

    def commit(self, name: str) -> blob_pb2.Upload:
        return self.blobs.CommitUpload(blob_pb2.CommitUploadRequest(name=name), timeout=TIMEOUT_S).upload

    def put_blob(self, data: bytes) -> str:
        digest = digest_bytes(data)
        upload = self.create_upload(digest, len(data))
        if not upload.complete:
            self.write(upload.name, data[upload.committed_offset :], upload.committed_offset)
            self.commit(upload.name)
        return digest

    def read_blob(self, digest: str, offset: int = 0, limit_bytes: int = 0) -> bytes:
        request = blob_pb2.ReadBlobRequest(parent=self.parent, digest=digest, offset=offset, limit_bytes=limit_bytes)
        return b"".join(response.data for response in self.blobs.ReadBlob(request, timeout=TIMEOUT_S))

    def missing(self, *digests: str) -> list[str]:
        request = blob_pb2.FindMissingBlobsRequest(parent=self.parent, digests=digests)
        return list(self.blobs.FindMissingBlobs(request, timeout=TIMEOUT_S).missing_digests)

    # What evaluations need

    def checkpoint(self, content: str = "weights") -> str:
        """Pushes a small checkpoint, and returns the digest of its manifest."""
        manifest = manifest_of(content)
        self.put_blob(content.encode("utf-8"))
        self.put_blob(b"{}")
        return self.put_blob(manifest.to_bytes())

    def dataset(self, dataset_id: str, mode: str = "ok", text: str = "one two three\nfour five") -> str:
        """Registers a dataset that tells the scripted runner what to do."""
        data = f"{mode}\n{text}\n".encode()
        file = registry_pb2.DatasetFile(path="data.txt", digest=self.put_blob(data), size_bytes=len(data))
        dataset = registry_pb2.Dataset(files=[file], format=registry_pb2.DATASET_FORMAT_TEXT_LINES, language="en")
        request = registry_pb2.PutDatasetRequest(parent=self.parent, dataset_id=dataset_id, dataset=dataset)
        return self.registry.PutDataset(request, timeout=TIMEOUT_S).dataset.version

    def suite(self, suite_id: str, *modes: str) -> str:
        """Registers a suite with one task a mode ("ok" when there is none), and returns its name."""
        tasks = []
        for number, mode in enumerate(modes or ("ok",)):
            dataset_id = f"{suite_id}-{number}"
            self.dataset(dataset_id, mode)
            tasks.append(registry_pb2.Task(name=f"task{number}", type="language_modeling", dataset=dataset_id))
        request = registry_pb2.PutSuiteRequest(
            parent=self.parent, suite_id=suite_id, suite=registry_pb2.Suite(tasks=tasks)
        )
        self.registry.PutSuite(request, timeout=TIMEOUT_S)
        return f"{self.parent}/suites/{suite_id}"

    def spec(self, suite: str, checkpoint: str | None = None, **fields: Any) -> evaluation_pb2.EvaluationSpec:
        source = evaluation_pb2.CheckpointSource(manifest=checkpoint or self.checkpoint())
        return evaluation_pb2.EvaluationSpec(suite=suite, checkpoint=source, **fields)

    # Evaluations

    def create(
        self, spec: evaluation_pb2.EvaluationSpec, request_id: str | None = None, **fields: Any
    ) -> evaluation_pb2.CreateEvaluationResponse:
        request = evaluation_pb2.CreateEvaluationRequest(
            parent=self.parent, request_id=str(uuid.uuid4()) if request_id is None else request_id, spec=spec, **fields
        )
        return self.evaluations.CreateEvaluation(request, timeout=TIMEOUT_S)

    def get(self, name: str) -> evaluation_pb2.Evaluation:
        return self.evaluations.GetEvaluation(
            evaluation_pb2.GetEvaluationRequest(name=name), timeout=TIMEOUT_S
        ).evaluation

    def cancel(self, name: str, etag: str = "") -> evaluation_pb2.Evaluation:
        request = evaluation_pb2.CancelEvaluationRequest(name=name, etag=etag)
        return self.evaluations.CancelEvaluation(request, timeout=TIMEOUT_S).evaluation

    def watch(self, name: str, after: int = 0, timeout_s: float = TIMEOUT_S) -> Any:
        request = evaluation_pb2.WatchEvaluationRequest(name=name, after_sequence=after)
        return self.evaluations.WatchEvaluation(request, timeout=timeout_s)

    def log(self, name: str) -> list[evaluation_pb2.EvaluationEvent]:
        """The whole log of an evaluation, once it has ended."""
        return [r.event for r in self.watch(name) if r.event.WhichOneof("payload") != "bookmark"]

    def finished(self, name: str) -> evaluation_pb2.Evaluation:
        """The evaluation, once it has ended."""
        self.log(name)
        evaluation = self.get(name)
        assert evaluation.state in TERMINAL
        return evaluation

    def reach(self, name: str, state: int) -> None:
        """Waits until the log says that the evaluation has reached a state."""
        for response in self.watch(name):
            event = response.event
            if event.WhichOneof("payload") == "state_changed" and event.state_changed.evaluation.state == state:
                return
        raise AssertionError(f"{name} ended before it reached state {state}")

    def working(self, name: str) -> None:
        """Waits until a runner reports progress, which means that it has the job."""
        for response in self.watch(name):
            if response.event.WhichOneof("payload") == "progress":
                return
        raise AssertionError(f"{name} ended without progress")

    def run(self, suite: str, **fields: Any) -> evaluation_pb2.Evaluation:
        """Evaluates a checkpoint under a suite, and returns the evaluation once it has ended."""
        return self.finished(self.create(self.spec(suite, **fields)).evaluation.name)


def manifest_of(content: str) -> Manifest:
    data = content.encode("utf-8")
    tensor = TensorEntry("w", "U8", (len(data),), len(data), digest_bytes(data))
    return Manifest.of([tensor], [FileEntry("config.json", 2, digest_bytes(b"{}"))])


def states(events: list[evaluation_pb2.EvaluationEvent]) -> list[str]:
    """Names of the states that a log goes through."""
    name: Callable[[int], str] = evaluation_pb2.EvaluationState.Name  # type: ignore[assignment]
    return [
        name(event.state_changed.evaluation.state).removeprefix("EVALUATION_STATE_")
        for event in events
        if event.WhichOneof("payload") == "state_changed"
    ]
