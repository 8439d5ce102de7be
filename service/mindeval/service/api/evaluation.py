"""EvaluationService."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from mindeval.formats.names import parse, parse_project
from mindeval.service.api import checks, creation
from mindeval.service.api.checkpoint_source import CheckpointSources
from mindeval.service.api.filter import parse_filter, parse_order
from mindeval.service.api.paging import Pager, fitting
from mindeval.service.background import Background
from mindeval.service.errors import ServiceError
from mindeval.service.ingest.importer import Importer
from mindeval.service.scheduling.scheduler import Scheduler
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.feed import EventFeed
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import EvaluationQuery, EvaluationRecord, NewEvaluation, now_us
from mindeval.service.storage.wire import evaluation_message, timestamp
from mindeval.v1 import evaluation_pb2 as pb
from mindeval.v1 import evaluation_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]


class EvaluationApi(evaluation_pb2_grpc.EvaluationServiceServicer):
    """See evaluation.proto."""

    def __init__(
        self,
        access: StoreAccess,
        library: BlobLibrary,
        importer: Importer,
        feed: EventFeed,
        scheduler: Scheduler,
        background: Background,
    ) -> None:
        self._access = access
        self._evaluations = access.store.evaluations
        self._library = library
        self._sources = CheckpointSources(library, importer)
        self._feed = feed
        self._scheduler = scheduler
        self._background = background

    async def EvaluateCheckpoint(  # noqa: N802 - named by the proto
        self, request: pb.EvaluateCheckpointRequest, context: _Context
    ) -> AsyncIterator[pb.EvaluateCheckpointResponse]:
        """Creates an evaluation, or attaches to one, and streams its events."""
        record, _ = await self._create(request)
        async with aclosing(self._events(record, 0)) as events:
            async for event in events:
                yield pb.EvaluateCheckpointResponse(event=event)

    async def CreateEvaluation(  # noqa: N802
        self, request: pb.CreateEvaluationRequest, context: _Context
    ) -> pb.CreateEvaluationResponse:
        """Creates an evaluation."""
        if request.validate_only:
            new = await creation.resolve(request, self._access, self._library, self._sources.look)
            record = await self._access.read(self._evaluations.preview, new)
            return pb.CreateEvaluationResponse(evaluation=evaluation_message(record), created=False)
        record, created = await self._create(request)
        return pb.CreateEvaluationResponse(evaluation=evaluation_message(record), created=created)

    async def GetEvaluation(  # noqa: N802
        self, request: pb.GetEvaluationRequest, context: _Context
    ) -> pb.GetEvaluationResponse:
        """Reads an evaluation."""
        return pb.GetEvaluationResponse(evaluation=evaluation_message(await self._find(request.name)))

    async def ListEvaluations(  # noqa: N802
        self, request: pb.ListEvaluationsRequest, context: _Context
    ) -> pb.ListEvaluationsResponse:
        """Lists evaluations."""
        project = parse_project(request.parent, "parent")
        size = checks.page_size(request.page_size)
        conditions = parse_filter(request.filter, project)
        order, descending = parse_order(request.order_by)
        pager = Pager("ListEvaluations", project, request.filter, order, str(descending))
        cursor = pager.cursor(request.page_token, [int, int])
        query = EvaluationQuery(
            project=project,
            conditions=conditions,
            order=order,
            descending=descending,
            after=None if cursor is None else (cursor[0], cursor[1]),
            limit=size + 1,
        )
        records = await self._access.read(self._evaluations.page, query)
        page = fitting(map(evaluation_message, records[:size]))
        token = ""
        if len(page) < len(records):
            last = records[len(page) - 1]
            token = pager.token(last.step, last.serial)
        return pb.ListEvaluationsResponse(evaluations=page, next_page_token=token)

    async def CancelEvaluation(  # noqa: N802
        self, request: pb.CancelEvaluationRequest, context: _Context
    ) -> pb.CancelEvaluationResponse:
        """Asks for an evaluation to end."""
        name = parse(request.name, "evaluations", "name")
        record = await self._scheduler.cancel(name.project, name.id, checks.text(request.etag, "etag", 100))
        return pb.CancelEvaluationResponse(evaluation=evaluation_message(record))

    async def WatchEvaluation(  # noqa: N802
        self, request: pb.WatchEvaluationRequest, context: _Context
    ) -> AsyncIterator[pb.WatchEvaluationResponse]:
        """Streams the events after a sequence."""
        after = checks.whole_number(request.after_sequence, "after_sequence")
        record = await self._find(request.name)
        if after > record.last_sequence:
            raise ServiceError(
                "SEQUENCE_AHEAD",
                f"{record.name} has {record.last_sequence} events; after_sequence is {after}",
                {"evaluation": record.name, "last_sequence": str(record.last_sequence)},
            )
        async with aclosing(self._events(record, after)) as events:
            async for event in events:
                yield pb.WatchEvaluationResponse(event=event)

    async def _create(self, request: creation.Request) -> tuple[EvaluationRecord, bool]:
        # Before anything is resolved: a repeated call gets the same answer also when names have moved on since.
        project = parse_project(request.parent, "parent")
        creation.conflict_policy(request)
        request_id = checks.request_id(request.request_id)
        earlier = await self._access.read(
            self._evaluations.find_request, project, request_id, creation.payload_hash(request)
        )
        if earlier is not None:
            return earlier, False
        new = await creation.resolve(request, self._access, self._library, self._sources.load)
        return await self._background.to_the_end(self._submit(new))

    async def _submit(self, new: NewEvaluation) -> tuple[EvaluationRecord, bool]:
        record, created = await self._access.write(self._evaluations.create, new)
        if created:
            self._scheduler.wake()
        return record, created

    async def _find(self, text: str) -> EvaluationRecord:
        name = parse(text, "evaluations", "name")
        record = await self._access.read(self._evaluations.get, name.project, name.id)
        if record is None:
            raise ServiceError("EVALUATION_NOT_FOUND", f"there is no {name}", {"evaluation": str(name)})
        return record

    async def _events(self, record: EvaluationRecord, after: int) -> AsyncGenerator[pb.EvaluationEvent, None]:
        if record.state.is_terminal and after == record.last_sequence:
            yield _bookmark(record, after)
            return
        async with aclosing(self._feed.follow(self._access, record.uid, after)) as events:
            async for event in events:
                if event is None:
                    yield _bookmark(record, after)
                else:
                    after = event.sequence
                    yield pb.EvaluationEvent.FromString(event.body)


def _bookmark(record: EvaluationRecord, sequence: int) -> pb.EvaluationEvent:
    return pb.EvaluationEvent(
        sequence=sequence, time=timestamp(now_us()), evaluation=record.name, bookmark=pb.Bookmark()
    )
