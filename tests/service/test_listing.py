"""ListEvaluations: order, pages, filters."""

from __future__ import annotations

import grpc
import pytest
from tests.service.stubs import TIMEOUT_S, Client, refused

from mindeval.service.api.filter import parse_filter
from mindeval.service.errors import ServiceError
from mindeval.v1 import evaluation_pb2 as pb

DIGEST = "blake3:" + "ab" * 32


def listed(client: Client, **fields: object) -> list[pb.Evaluation]:
    found, token = [], ""
    while True:
        request = pb.ListEvaluationsRequest(parent=client.parent, page_token=token, **fields)  # type: ignore[arg-type]
        response = client.evaluations.ListEvaluations(request, timeout=TIMEOUT_S)
        found += list(response.evaluations)
        token = response.next_page_token
        if not token:
            return found


def steps(client: Client, **fields: object) -> list[int]:
    return [evaluation.spec.step for evaluation in listed(client, **fields)]


def test_orders_pages_and_filters(client: Client) -> None:
    first, second = client.suite("first"), client.suite("second")
    r, q = f"{client.parent}/runs/r", f"{client.parent}/runs/q"
    made = [(first, r, 30), (second, r, 10), (first, q, 20), (first, q, 10), (second, r, 40)]
    names = [client.create(client.spec(suite, run=run, step=step)).evaluation.name for suite, run, step in made]
    for name in names:
        client.finished(name)
    for size in (0, 1, 2, 5, 1000):
        assert [evaluation.name for evaluation in listed(client, page_size=size)] == names[::-1]
        assert [evaluation.name for evaluation in listed(client, page_size=size, order_by="create_time")] == names
        assert steps(client, page_size=size, order_by="step") == [10, 10, 20, 30, 40]
        assert steps(client, page_size=size, order_by="step  desc") == [40, 30, 20, 10, 10]
    assert listed(client)[0] == client.get(names[-1])
    version = client.get(names[0]).resolved.suite_version
    checkpoint = client.get(names[0]).resolved.checkpoint
    for text, expected in {
        "state = SUCCEEDED": [40, 10, 20, 10, 30],
        "state != SUCCEEDED": [],
        "run=r": [40, 10, 30],
        f'run = "{q}"': [10, 20],
        "run != r": [10, 20],
        "suite = second AND step<=10": [10],
        "suite != second": [10, 20, 30],
        f"suite = {first}": [10, 20, 30],
        f"suite = {version}": [10, 20, 30],
        "step > 10 AND step < 40 AND step != 20": [30],
        "step >= 40": [40],
        f"checkpoint = {checkpoint}": [40, 10, 20, 10, 30],
        f"checkpoint = {DIGEST}": [],
    }.items():
        assert steps(client, filter=text, page_size=2) == expected, text


def test_tokens_are_bound_to_their_listing(client: Client) -> None:
    suite = client.suite("s")
    for step in range(3):
        client.finished(client.create(client.spec(suite, step=step)).evaluation.name)

    def call(token: str, **fields: object) -> pb.ListEvaluationsResponse:
        request = pb.ListEvaluationsRequest(  # type: ignore[arg-type]
            **{"parent": client.parent, "page_size": 1, "page_token": token, **fields}
        )
        return client.evaluations.ListEvaluations(request, timeout=TIMEOUT_S)

    token = call("").next_page_token
    assert call(token).evaluations[0].spec.step == 1
    for fields in ({"filter": "step < 2"}, {"order_by": "step"}, {"parent": "projects/other"}):
        with refused("PAGE_TOKEN_INVALID") as refusals:
            call(token, **fields)
        assert refusals[0].code == grpc.StatusCode.INVALID_ARGUMENT
    for bad in ("x", "é", "AAAA", token + token, "W10", token[:-1]):
        with refused("PAGE_TOKEN_INVALID"):
            call(bad)
    with refused("INVALID_FIELD"):
        call("", page_size=-1)
    with refused("INVALID_FIELD"):
        call("", order_by="name")
    with refused("FILTER_INVALID") as refusals:
        call("", filter="color = blue")
    assert "color" in refusals[0].message


@pytest.mark.parametrize(
    "text",
    [
        "state",
        "state =",
        "= RUNNING",
        "state = running",
        "state > RUNNING",
        "state = RUNNING AND",
        "state = RUNNING OR step = 1",
        "state = RUNNING step = 1",
        "step = -1",
        "step = 1.5",
        "step = 99999999999999999999",
        "run = a/b",
        "run = projects/other/runs/r",
        'run = "unclosed',
        "(step = 1)",
        "checkpoint = 12",
        "suite = ;drop",
        "step = 1 AND " * 20 + "step = 1",
        "x" * 2000,
        'run = "' + "\\" * 900,
    ],
)
def test_bad_filters(text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        parse_filter(text, "p")
    assert caught.value.reason == "FILTER_INVALID"
