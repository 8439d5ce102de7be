from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from tests.service.stubs import TIMEOUT_S, Client, refused

from mindeval.formats.digest import digest_bytes
from mindeval.v1 import registry_pb2 as pb


def file_of(client: Client, data: bytes = b"text", path: str = "a.txt") -> pb.DatasetFile:
    return pb.DatasetFile(path=path, digest=client.put_blob(data), size_bytes=len(data))


def put_dataset(client: Client, dataset: pb.Dataset, dataset_id: str = "d") -> pb.PutDatasetResponse:
    request = pb.PutDatasetRequest(parent=client.parent, dataset_id=dataset_id, dataset=dataset)
    return client.registry.PutDataset(request, timeout=TIMEOUT_S)


def put_suite(client: Client, *tasks: pb.Task, suite_id: str = "s", **fields: Any) -> pb.PutSuiteResponse:
    request = pb.PutSuiteRequest(parent=client.parent, suite_id=suite_id, suite=pb.Suite(tasks=tasks), **fields)
    return client.registry.PutSuite(request, timeout=TIMEOUT_S)


def task_of(name: str = "t", dataset: str = "d", settings: dict[str, Any] | None = None, **fields: Any) -> pb.Task:
    task = pb.Task(**{"name": name, "type": "language_modeling", "dataset": dataset, **fields})
    task.settings.update(settings or {})
    return task


def test_dataset_versions(client: Client) -> None:
    first = put_dataset(client, pb.Dataset(files=[file_of(client)], format=pb.DATASET_FORMAT_TEXT, language="en"))
    assert first.created
    assert first.dataset.version.startswith(f"{client.parent}/datasets/d/versions/")
    second = put_dataset(
        client,
        pb.Dataset(files=[file_of(client, b'{"x": "y"}')], format=pb.DATASET_FORMAT_JSONL, text_field="x"),
    )
    assert second.created

    def newest() -> pb.Dataset:
        request = pb.GetDatasetRequest(name=f"{client.parent}/datasets/d")
        return client.registry.GetDataset(request, timeout=TIMEOUT_S).dataset

    assert newest() == second.dataset
    # The content decides, whoever sends it and in whatever version field; it is the newest again.
    again = put_dataset(client, first.dataset)
    assert (again.created, again.dataset) == (False, first.dataset)
    assert newest() == first.dataset
    request = pb.GetDatasetRequest(name=second.dataset.version)
    assert client.registry.GetDataset(request, timeout=TIMEOUT_S).dataset.text_field == "x"


def test_padding_token_zero_is_not_no_padding_token(client: Client) -> None:
    files = [file_of(client)]
    with_zero = put_dataset(client, pb.Dataset(files=files, format=pb.DATASET_FORMAT_TOKENS_NPY, padding_token=0))
    without = put_dataset(client, pb.Dataset(files=files, format=pb.DATASET_FORMAT_TOKENS_NPY))
    assert with_zero.dataset.HasField("padding_token")
    assert not without.dataset.HasField("padding_token")
    assert with_zero.dataset.version != without.dataset.version


def test_dataset_needs_its_blobs(client: Client) -> None:
    absent = digest_bytes(b"absent")
    file = pb.DatasetFile(path="a", digest=absent, size_bytes=6)
    with refused("BLOB_MISSING") as refusals:
        put_dataset(client, pb.Dataset(files=[file_of(client), file], format=pb.DATASET_FORMAT_TEXT))
    assert [violation.subject for violation in refusals[0].details[1].violations] == [absent]
    wrong = file_of(client)
    wrong.size_bytes += 1
    with refused("INVALID_FIELD") as refusals:
        put_dataset(client, pb.Dataset(files=[wrong], format=pb.DATASET_FORMAT_TEXT))
    assert refusals[0].metadata["field"] == "dataset.files[0].size_bytes"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("dataset.format", {"format": 0}),
        ("dataset.format", {"format": 99}),
        ("dataset.language", {"language": "tlh"}),
        ("dataset.text_field", {"text_field": "x"}),
        ("dataset.padding_token", {"padding_token": 0}),
        ("dataset.files", {"files": []}),
        ("dataset.files[0].path", {"files": [pb.DatasetFile(path="../x", digest="blake3:" + "0" * 64)]}),
        ("dataset.files[0].path", {"files": [pb.DatasetFile(path="/etc/passwd", digest="blake3:" + "0" * 64)]}),
        ("dataset.files[0].digest", {"files": [pb.DatasetFile(path="x", digest="0")]}),
        ("dataset.files[1].path", {"files": [pb.DatasetFile(path="x", digest="blake3:" + "0" * 64)] * 2}),
    ],
)
def test_bad_datasets(client: Client, field: str, fields: dict[str, Any]) -> None:
    good = {"files": [file_of(client)], "format": pb.DATASET_FORMAT_TEXT}
    with refused("INVALID_FIELD") as refusals:
        put_dataset(client, pb.Dataset(**{**good, **fields}))
    assert refusals[0].metadata["field"] == field
    with refused("INVALID_FIELD"):
        put_dataset(client, pb.Dataset(**good), dataset_id="../d")
    with refused("DATASET_NOT_FOUND"):
        client.registry.GetDataset(pb.GetDatasetRequest(name=f"{client.parent}/datasets/d"), timeout=TIMEOUT_S)


def test_suite_round_trip_keeps_settings(client: Client) -> None:
    client.dataset("d")
    task = task_of(settings={"max_length": 64, "prefix": "none"}, metrics=["loss"])
    response = put_suite(client, task)
    assert response.created
    assert response.suite.tasks[0] == task
    assert not put_suite(client, task).created
    assert put_suite(client, task_of(settings={"max_length": 65})).suite.version != response.suite.version
    request = pb.GetSuiteRequest(name=response.suite.version)
    assert client.registry.GetSuite(request, timeout=TIMEOUT_S).suite == response.suite


def test_suite_validate_only(client: Client) -> None:
    client.dataset("d")
    response = put_suite(client, task_of(), validate_only=True)
    assert not response.created
    assert response.suite.version
    with refused("SUITE_NOT_FOUND"):
        client.registry.GetSuite(pb.GetSuiteRequest(name=f"{client.parent}/suites/s"), timeout=TIMEOUT_S)
    with refused("UNKNOWN_METRIC"):
        put_suite(client, task_of(metrics=["nonsense"]), validate_only=True)


@pytest.mark.parametrize(
    ("reason", "field", "task"),
    [
        ("UNKNOWN_TASK_TYPE", "suite.tasks[1].type", {"type": "divination"}),
        ("UNKNOWN_METRIC", "suite.tasks[1].metrics", {"metrics": ["nonsense"]}),
        ("INVALID_FIELD", "suite.tasks[1].metrics", {"metrics": ["loss", "loss"]}),
        ("INVALID_FIELD", "suite.tasks[1].settings.max_length", {"settings": {"max_length": 0}}),
        ("INVALID_FIELD", "suite.tasks[1].settings.max_length", {"settings": {"max_length": math.inf}}),
        ("INVALID_FIELD", "suite.tasks[1].settings.colour", {"settings": {"colour": "blue"}}),
        ("INVALID_FIELD", "suite.tasks[1].name", {"name": "a/b"}),
        ("INVALID_FIELD", "suite.tasks[1].name", {"name": "first"}),
        ("INVALID_FIELD", "suite.tasks[1].dataset", {"dataset": "projects/other/datasets/d"}),
        ("INVALID_FIELD", "suite.tasks[1].dataset", {"dataset": ""}),
    ],
)
def test_bad_tasks(client: Client, reason: str, field: str, task: dict[str, Any]) -> None:
    client.dataset("d")
    with refused(reason) as refusals:
        put_suite(client, task_of("first"), task_of(**task))
    assert refusals[0].code == grpc.StatusCode.INVALID_ARGUMENT
    assert refusals[0].metadata["field"] == field


def test_bad_suites(client: Client) -> None:
    with refused("INVALID_FIELD") as refusals:
        put_suite(client)
    assert refusals[0].metadata["field"] == "suite.tasks"
    with refused("DATASET_NOT_FOUND") as refusals:
        put_suite(client, task_of())
    assert refusals[0].metadata["dataset"] == f"{client.parent}/datasets/d"
    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"x": nested}
    client.dataset("d")
    with refused("INVALID_FIELD"):
        put_suite(client, task_of(settings=nested))


def test_lists_by_name_in_pages(client: Client) -> None:
    names = [f"d{number:02}" for number in range(25)]
    for name in reversed(names):
        client.dataset(name)
    client.suite("only")

    def page(size: int, token: str = "") -> pb.ListDatasetsResponse:
        request = pb.ListDatasetsRequest(parent=client.parent, page_size=size, page_token=token)
        return client.registry.ListDatasets(request, timeout=TIMEOUT_S)

    everything = [dataset.version.split("/")[3] for dataset in page(0).datasets]
    assert everything == [*names, "only-0"]
    found, token = [], ""
    while True:
        response = page(7, token)
        assert len(response.datasets) <= 7
        found += [dataset.version.split("/")[3] for dataset in response.datasets]
        token = response.next_page_token
        if not token:
            break
    assert found == everything
    suites = client.registry.ListSuites(pb.ListSuitesRequest(parent=client.parent), timeout=TIMEOUT_S)
    assert [suite.version.split("/")[3] for suite in suites.suites] == ["only"]
    for bad in ("nonsense", page(7).next_page_token[:-4] + "AAAA"):
        with refused("PAGE_TOKEN_INVALID"):
            page(7, bad)
    with refused("PAGE_TOKEN_INVALID"):
        client.registry.ListSuites(
            pb.ListSuitesRequest(parent=client.parent, page_token=page(7).next_page_token), timeout=TIMEOUT_S
        )


def test_pages_stay_below_the_size_of_a_message(client: Client) -> None:
    file = file_of(client)
    for name in ("a", "b", "c"):
        files = [pb.DatasetFile(path=f"{name}/{'x' * 900}/{number}") for number in range(1_200)]
        for entry in files:
            entry.digest, entry.size_bytes = file.digest, file.size_bytes
        put_dataset(client, pb.Dataset(files=files, format=pb.DATASET_FORMAT_TEXT), name)
    found, token = [], ""
    while True:
        request = pb.ListDatasetsRequest(parent=client.parent, page_token=token)
        response = client.registry.ListDatasets(request, timeout=TIMEOUT_S)
        assert response.ByteSize() < 4 << 20
        found += [dataset.version.split("/")[3] for dataset in response.datasets]
        token = response.next_page_token
        if not token:
            break
    assert found == ["a", "b", "c"]
