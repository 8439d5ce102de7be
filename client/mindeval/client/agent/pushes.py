"""One push, from the trainer's `push` (or `watch`) to its `result`."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from mindeval.client import _content, _push, _sources, _watch
from mindeval.client._connection import Closing, Connection
from mindeval.client._errors import ServiceError
from mindeval.client.agent.lines import LineWriter
from mindeval.client.agent.messages import Push, Start, Watch
from mindeval.client.agent.results import error_fields, get_evaluation, tell_failure, tell_result
from mindeval.formats.checkpoints import TensorContent
from mindeval.formats.errors import MindEvalError
from mindeval.formats.readers import read_safetensors
from mindeval.v1 import evaluation_pb2

_log = logging.getLogger("mindeval.agent")
# Up to here, files that ride along are kept in memory, so that the trainer may delete them after the first push.
_MAX_KEPT_BYTES = 256 << 20


class RideAlong:
    """The files of every checkpoint of the run; read once, at the first push."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = {name: Path(path) for name, path in files.items()}
        self._contents: dict[str, _content.Content] | None = None

    def contents(self) -> dict[str, _content.Content]:
        """Their content by path in the checkpoint. Blocks; called by one thread at a time.

        Raises:
            FormatError: CHECKPOINT_UNREADABLE; metadata name the file.
        """
        if self._contents is None:
            contents = _content.file_contents(self._files, {})
            if sum(content.size_bytes for content in contents.values()) <= _MAX_KEPT_BYTES:
                with _content.ContentReader() as reader:
                    contents = {
                        name: _content.Inline(reader.read(content, 0, content.size_bytes))
                        for name, content in contents.items()
                    }
            self._contents = contents
        return self._contents


class Job:
    """Work whose end the trainer is told by `result`, exactly once unless the agent ends before.

    Attributes:
        is_waiting: Whether nothing was done about it yet.
        submitted: Set once the service has the evaluation, or there will be none.
    """

    def __init__(self, number: int, step: int, connection: Connection, writer: LineWriter, evaluation: str) -> None:
        self.is_waiting = True
        self.submitted = asyncio.Event()
        self._number = number
        self._step = step
        self._connection = connection
        self._writer = writer
        self._evaluation = evaluation
        self.task = asyncio.ensure_future(self._run())

    async def cancel(self) -> None:
        """Ends it: at once before it was submitted, through the service afterwards."""
        if not self._evaluation:
            self.task.cancel()
            return
        request = evaluation_pb2.CancelEvaluationRequest(name=self._evaluation)
        try:
            await self._connection.call("EvaluationService", "CancelEvaluation", request)
        except ServiceError as error:
            # It has ended already, most likely; its result is on its way.
            _log.info("push %d: cancel refused: %s", self._number, error)

    async def _run(self) -> None:
        try:
            await self._work()
            tell_result(
                self._writer, self._number, self._step, await get_evaluation(self._connection, self._evaluation)
            )
        except asyncio.CancelledError:
            self._give_up("CANCELLED", "CANCELLED_BY_USER", "the trainer gave it up before it was evaluated")
            raise
        except MindEvalError as error:
            self._give_up("FAILED", error.reason, error.message, error.metadata)
        except Exception as error:
            # A defect here must not cost the trainer its buffer.
            _log.exception("push %d", self._number)
            self._give_up("FAILED", "INTERNAL", f"push agent: {type(error).__name__}: {error}; see its log")
        finally:
            self.submitted.set()

    async def _work(self) -> None:
        """Does everything up to the end of the evaluation."""
        raise NotImplementedError

    def _give_up(self, state: str, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        error = error_fields(reason, message, metadata)
        tell_failure(self._writer, self._number, self._step, evaluation=self._evaluation, state=state, error=error)

    async def _follow(self, events: AsyncGenerator[evaluation_pb2.EvaluationEvent, None]) -> None:
        async with Closing(events) as open_events:
            async for event in open_events:
                if not self._evaluation:
                    self._evaluation = event.evaluation
                    self._writer.send("submitted", id=self._number, evaluation=self._evaluation)
                    self.submitted.set()


class WatchJob(Job):
    """Follows an evaluation that an earlier agent has submitted."""

    def __init__(self, watch: Watch, connection: Connection, writer: LineWriter) -> None:
        super().__init__(watch.id, watch.step, connection, writer, watch.evaluation)
        self.submitted.set()

    async def _work(self) -> None:
        self.is_waiting = False
        await self._follow(_watch.watch(self._connection, self._evaluation))


class PushJob(Job):
    """Pushes one checkpoint and has it evaluated. Tells `released` exactly once, before `result`."""

    def __init__(
        self,
        push: Push,
        start: Start,
        ride_along: RideAlong,
        connection: Connection,
        sending: asyncio.Lock,
        writer: LineWriter,
    ) -> None:
        """Begins the job.

        Args:
            push: What the trainer asked for.
            start: For whom.
            ride_along: Files that belong to each checkpoint.
            connection: The service.
            sending: Held while bytes travel: one push at a time, in order.
            writer: The way to the trainer.
        """
        self._push = push
        self._start = start
        self._ride_along = ride_along
        self._sending = sending
        self._released = False
        super().__init__(push.id, push.step, connection, writer, "")

    async def _work(self) -> None:
        async with self._sending:
            self.is_waiting = False
            digest = await self._send()
        await self._follow(_watch.evaluate(self._connection, self._request(digest)))

    async def _send(self) -> str:
        started = time.monotonic()
        source = await asyncio.to_thread(self._open)
        pushed = await _push.push(self._connection, self._start.parent, source, started=started)
        self._release(pushed.bytes_sent, pushed.bytes_total, pushed.seconds)
        return pushed.digest

    def _open(self) -> _sources.PushSource:
        tensors = read_safetensors(self._push.weights).tensors
        # Without stamps: the trainer vouches for the file until it is released, and some file systems move the
        # modification time of a mapped file when they write it back.
        return _sources.PushSource([TensorContent.of(tensor) for tensor in tensors], self._ride_along.contents())

    def _request(self, digest: str) -> evaluation_pb2.EvaluateCheckpointRequest:
        return evaluation_pb2.EvaluateCheckpointRequest(
            parent=self._start.parent,
            request_id=str(uuid.uuid4()),
            spec=evaluation_pb2.EvaluationSpec(
                suite=self._start.suite,
                checkpoint=evaluation_pb2.CheckpointSource(manifest=digest),
                run=self._start.run_name,
                step=self._push.step,
                epoch=self._push.epoch,
                parameters=dict(self._push.parameters),
            ),
            conflict_policy=evaluation_pb2.CONFLICT_POLICY_USE_EXISTING,
        )

    def _give_up(self, state: str, reason: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        self._release(0, 0, 0.0)
        super()._give_up(state, reason, message, metadata)

    def _release(self, bytes_sent: int, bytes_total: int, seconds: float) -> None:
        if not self._released:
            self._released = True
            self._writer.send(
                "released",
                id=self._push.id,
                bytes_sent=bytes_sent,
                bytes_total=bytes_total,
                seconds=round(seconds, 6),
            )
