"""What the service keeps of checkpoints: registering, reading, pinning and comparing them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from mindeval.client import _decode, _results
from mindeval.client._connection import Connection
from mindeval.client._errors import NotFound
from mindeval.formats import names
from mindeval.formats.digest import digest_hex, is_digest
from mindeval.formats.errors import FormatError
from mindeval.v1 import checkpoint_pb2, evaluation_pb2

_PAGE_SIZE = 200
# The service reads and hashes all that a URI names before it answers.
_URI_TIMEOUT_S = 3_600.0
# It reads both checkpoints.
_DIFF_TIMEOUT_S = 3_600.0
_SERVICE = "CheckpointService"
_STEP = re.compile(r"(?P<run>[^@/]+)@(?P<step>\d{1,18})\Z")
_PREFIX = re.compile(r"(?:blake3:)?(?P<digits>[0-9a-f]{4,64})\Z")


def is_uri(text: str) -> bool:
    """Whether a text names a checkpoint by reference, such as "s3://bucket/run/step-100"."""
    return "://" in text


def source_of(checkpoint: str) -> evaluation_pb2.CheckpointSource:
    """The source that a digest, a full name or a URI stands for.

    Raises:
        FormatError: INVALID_FIELD when it is none of these.
    """
    if is_uri(checkpoint):
        return evaluation_pb2.CheckpointSource(uri=checkpoint)
    if checkpoint.startswith("projects/"):
        checkpoint = f"blake3:{names.parse(checkpoint, 'checkpoints', 'checkpoint').id}"
    return evaluation_pb2.CheckpointSource(manifest=checkpoint)


class Checkpoints:
    """The calls of CheckpointService for one project."""

    def __init__(self, connection: Connection, project: str) -> None:
        self._connection = connection
        self._project = project
        self._parent = names.project_name(project)

    async def create(self, checkpoint: str, run: str | None, step: int | None) -> _results.Checkpoint:
        """See `AsyncClient.create_checkpoint`."""
        source = source_of(checkpoint)
        request = checkpoint_pb2.CreateCheckpointRequest(parent=self._parent)
        by_uri = source.WhichOneof("source") == "uri"
        if by_uri:
            request.uri = source.uri
        else:
            request.manifest = source.manifest
        if run is not None:
            request.step.run = f"{self._parent}/runs/{names.check_id(run, 'run')}"
            request.step.step = step or 0
        response = await self._call("CreateCheckpoint", request, _URI_TIMEOUT_S if by_uri else 0.0)
        return _decode.checkpoint(response.checkpoint, response.created)

    async def get(self, checkpoint: str) -> _results.Checkpoint:
        """See `AsyncClient.get_checkpoint`."""
        request = checkpoint_pb2.GetCheckpointRequest(name=await self.name_of(checkpoint))
        return _decode.checkpoint((await self._call("GetCheckpoint", request)).checkpoint)

    async def list(self, run: str | None = None) -> AsyncIterator[_results.Checkpoint]:
        """See `AsyncClient.list_checkpoints`."""
        request = checkpoint_pb2.ListCheckpointsRequest(parent=self._parent, page_size=_PAGE_SIZE)
        if run is not None:
            request.run = f"{self._parent}/runs/{names.check_id(run, 'run')}"
        while True:
            response = await self._call("ListCheckpoints", request)
            for message in response.checkpoints:
                yield _decode.checkpoint(message)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def pin(self, checkpoint: str, pinned: bool) -> _results.Checkpoint:
        """See `AsyncClient.pin_checkpoint`."""
        request = checkpoint_pb2.PinCheckpointRequest(name=await self.name_of(checkpoint), pinned=pinned)
        return _decode.checkpoint((await self._call("PinCheckpoint", request)).checkpoint)

    async def delete(self, checkpoint: str) -> int:
        """See `AsyncClient.delete_checkpoint`."""
        request = checkpoint_pb2.DeleteCheckpointRequest(name=await self.name_of(checkpoint))
        return int((await self._call("DeleteCheckpoint", request)).freed_bytes)

    async def diff(self, base: str, other: str, with_values: bool) -> _results.CheckpointDiff:
        """See `AsyncClient.diff_checkpoints`."""
        request = checkpoint_pb2.DiffCheckpointsRequest(
            base=await self.name_of(base), other=await self.name_of(other), with_values=with_values
        )
        return _decode.checkpoint_diff(await self._call("DiffCheckpoints", request, _DIFF_TIMEOUT_S))

    async def name_of(self, checkpoint: str) -> str:
        """Full name of a checkpoint.

        Args:
            checkpoint: A full name, a digest, the first hexadecimal digits of one (four or more, "blake3:" may be left
                out), or "RUN@STEP".

        Raises:
            FormatError: INVALID_FIELD when it is none of these, or several checkpoints begin so.
            NotFound: CHECKPOINT_NOT_FOUND.
        """
        if checkpoint.startswith("projects/"):
            return str(names.parse(checkpoint, "checkpoints", "checkpoint"))
        if is_digest(checkpoint):
            return f"{self._parent}/checkpoints/{digest_hex(checkpoint)}"
        step = _STEP.match(checkpoint)
        if step:
            wanted = (step["run"], int(step["step"]))
            found = [item async for item in self.list(run=step["run"]) if wanted in item.steps]
            if not found:
                raise _not_found(f"run {wanted[0]!r} has no checkpoint of step {wanted[1]}", checkpoint)
            if len(found) > 1:
                raise _several(checkpoint, found)
            return found[0].name
        prefix = _PREFIX.match(checkpoint)
        if prefix is None:
            raise FormatError(
                "INVALID_FIELD",
                f"checkpoint: {checkpoint[:80]!r} is none of a digest, its first digits (at least four), or RUN@STEP",
                {"field": "checkpoint"},
            )
        digits = prefix["digits"]
        if len(digits) == 64:
            return f"{self._parent}/checkpoints/{digits}"
        found = [item async for item in self.list() if digest_hex(item.digest).startswith(digits)]
        if not found:
            raise _not_found(f"no checkpoint of project {self._project!r} begins with {digits}", checkpoint)
        if len(found) > 1:
            raise _several(checkpoint, found)
        return found[0].name

    async def _call(self, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        if timeout_s:
            return await self._connection.call(_SERVICE, method, request, timeout_s=timeout_s)
        return await self._connection.call(_SERVICE, method, request)


def _not_found(what: str, checkpoint: str) -> NotFound:
    return NotFound("CHECKPOINT_NOT_FOUND", what, {"checkpoint": checkpoint}, code="NOT_FOUND")


def _several(checkpoint: str, found: list[_results.Checkpoint]) -> FormatError:
    examples = ", ".join(digest_hex(item.digest)[:12] for item in found[:4])
    return FormatError(
        "INVALID_FIELD",
        f"checkpoint: {checkpoint!r} may be {len(found)} checkpoints ({examples}); name one by more of its digits",
        {"field": "checkpoint"},
    )
