from __future__ import annotations

import math

import pytest
from tests.service.stubs import TIMEOUT_S, Client, refused

from mindeval.v1 import run_pb2 as pb


def report(client: Client, *points: pb.TrainingMetrics, run: str = "r") -> pb.Run:
    request = pb.ReportTrainingMetricsRequest(run=f"{client.parent}/runs/{run}", points=points)
    return client.runs.ReportTrainingMetrics(request, timeout=TIMEOUT_S).run


def points(client: Client, **fields: int) -> list[pb.TrainingMetrics]:
    found, token = [], ""
    while True:
        request = pb.ListTrainingMetricsRequest(run=f"{client.parent}/runs/r", page_token=token, **fields)
        response = client.runs.ListTrainingMetrics(request, timeout=TIMEOUT_S)
        found += list(response.points)
        token = response.next_page_token
        if not token:
            return found


def test_points_are_kept_by_step_and_replaced(client: Client) -> None:
    run = report(client, *(pb.TrainingMetrics(step=step, loss=float(step)) for step in (3, 1, 2)))
    assert (run.name, run.last_step) == (f"{client.parent}/runs/r", 3)
    assert report(client, pb.TrainingMetrics(step=2, loss=math.nan), pb.TrainingMetrics(step=0)).last_step == 3
    found = points(client)
    assert [point.step for point in found] == [0, 1, 2, 3]
    assert math.isnan(found[2].loss)
    assert not found[0].HasField("loss")
    assert [point.step for point in points(client, page_size=1)] == [0, 1, 2, 3]
    assert [point.step for point in points(client, after_step=1, page_size=1)] == [2, 3]
    assert client.runs.GetRun(pb.GetRunRequest(name=run.name), timeout=TIMEOUT_S).run.last_step == 3


def test_runs_are_listed_by_name(client: Client) -> None:
    for name in ("b", "a", "c"):
        report(client, run=name)
    client.create(client.spec(client.suite("s"), run=f"{client.parent}/runs/by-evaluation"))
    found, token = [], ""
    while True:
        request = pb.ListRunsRequest(parent=client.parent, page_size=3, page_token=token)
        response = client.runs.ListRuns(request, timeout=TIMEOUT_S)
        found += [run.name.rpartition("/")[2] for run in response.runs]
        token = response.next_page_token
        if not token:
            break
    assert found == ["a", "b", "by-evaluation", "c"]


@pytest.mark.parametrize(
    ("field", "point"),
    [
        ("points[0].step", {"step": -1}),
        ("points[0].epoch", {"epoch": math.inf}),
        ("points[0].step_time_ms", {"step_time_ms": -1.0}),
        ("points[0].device_utilization", {"device_utilization": 1.5}),
        ("points[0].host_memory_bytes", {"host_memory_bytes": -1}),
    ],
)
def test_bad_points(client: Client, field: str, point: dict[str, float]) -> None:
    with refused("INVALID_FIELD") as refusals:
        report(client, pb.TrainingMetrics(**point))  # type: ignore[arg-type]
    assert refusals[0].metadata["field"] == field
    with refused("RUN_NOT_FOUND"):
        points(client)


def test_bad_requests(client: Client) -> None:
    with refused("INVALID_FIELD"):
        report(client, *[pb.TrainingMetrics()] * 1001)
    with refused("INVALID_FIELD"):
        report(client, run="a/b")
    with refused("RUN_NOT_FOUND"):
        client.runs.GetRun(pb.GetRunRequest(name=f"{client.parent}/runs/none"), timeout=TIMEOUT_S)
    with refused("PAGE_TOKEN_INVALID"):
        client.runs.ListRuns(pb.ListRunsRequest(parent=client.parent, page_token="x"), timeout=TIMEOUT_S)
