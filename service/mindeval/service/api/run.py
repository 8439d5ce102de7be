"""RunService."""

from __future__ import annotations

from typing import Any

import grpc.aio

from mindeval.formats.names import parse, parse_project
from mindeval.service.api import checks
from mindeval.service.api.paging import Pager
from mindeval.service.errors import FieldError, ServiceError
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.records import PointRecord, RunRecord
from mindeval.service.storage.wire import timestamp
from mindeval.v1 import run_pb2 as pb
from mindeval.v1 import run_pb2_grpc

MAX_POINTS = 1_000
_DEFAULT_POINTS_PAGE = 1_000
_MAX_POINTS_PAGE = 10_000

_Context = grpc.aio.ServicerContext[Any, Any]


class RunApi(run_pb2_grpc.RunServiceServicer):
    """See run.proto."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
        self._runs = access.store.runs

    async def ReportTrainingMetrics(  # noqa: N802 - named by the proto
        self, request: pb.ReportTrainingMetricsRequest, context: _Context
    ) -> pb.ReportTrainingMetricsResponse:
        """Adds points to a run's series."""
        name = parse(request.run, "runs", "run")
        if len(request.points) > MAX_POINTS:
            raise FieldError("points", f"has {len(request.points)} entries; at most {MAX_POINTS} are taken")
        # The last point of a step wins, also within one call.
        points = {point.step: _point(point, f"points[{i}]") for i, point in enumerate(request.points)}
        record = await self._access.write(self._runs.report, name.project, name.id, list(points.values()))
        return pb.ReportTrainingMetricsResponse(run=_message(record))

    async def GetRun(self, request: pb.GetRunRequest, context: _Context) -> pb.GetRunResponse:  # noqa: N802
        """Reads a run."""
        return pb.GetRunResponse(run=_message(await self._find(request.name, "name")))

    async def ListRuns(self, request: pb.ListRunsRequest, context: _Context) -> pb.ListRunsResponse:  # noqa: N802
        """Lists runs."""
        project = parse_project(request.parent, "parent")
        size = checks.page_size(request.page_size)
        pager = Pager("ListRuns", project)
        (after,) = pager.cursor(request.page_token, [str]) or [""]
        records = await self._access.read(self._runs.page, project, after, size + 1)
        token = pager.token(records[size - 1].id) if len(records) > size else ""
        return pb.ListRunsResponse(runs=map(_message, records[:size]), next_page_token=token)

    async def ListTrainingMetrics(  # noqa: N802
        self, request: pb.ListTrainingMetricsRequest, context: _Context
    ) -> pb.ListTrainingMetricsResponse:
        """Reads a run's points."""
        record = await self._find(request.run, "run")
        after_step = checks.whole_number(request.after_step, "after_step")
        size = checks.page_size(request.page_size, _DEFAULT_POINTS_PAGE, _MAX_POINTS_PAGE)
        pager = Pager("ListTrainingMetrics", record.name, str(after_step))
        # An unset after_step means the whole series, with a point of step 0 if there is one.
        (after,) = pager.cursor(request.page_token, [int]) or [after_step or -1]
        points = await self._access.read(self._runs.points, record.project, record.id, after, size + 1)
        token = pager.token(points[size - 1].step) if len(points) > size else ""
        messages = [pb.TrainingMetrics.FromString(point.body) for point in points[:size]]
        return pb.ListTrainingMetricsResponse(points=messages, next_page_token=token)

    async def _find(self, text: str, field: str) -> RunRecord:
        name = parse(text, "runs", field)
        record = await self._access.read(self._runs.get, name.project, name.id)
        if record is None:
            raise ServiceError("RUN_NOT_FOUND", f"there is no {name}", {"run": str(name)})
        return record


def _point(point: pb.TrainingMetrics, field: str) -> PointRecord:
    checks.whole_number(point.step, f"{field}.step")
    checks.finite(point.epoch, f"{field}.epoch")
    for name in ("step_time_ms", "samples_per_second", "tokens_per_second", "device_utilization"):
        # A NaN is what a trainer reports when it does not know; negative values are mistakes.
        if point.HasField(name) and getattr(point, name) < 0:
            raise FieldError(f"{field}.{name}", "must not be negative")
    if point.device_utilization > 1:
        raise FieldError(f"{field}.device_utilization", "is a share, 0 to 1")
    for name in ("host_memory_bytes", "device_memory_bytes"):
        if point.HasField(name):
            checks.whole_number(getattr(point, name), f"{field}.{name}")
    return PointRecord(point.step, point.SerializeToString())


def _message(record: RunRecord) -> pb.Run:
    return pb.Run(name=record.name, create_time=timestamp(record.create_us), last_step=record.last_step)
