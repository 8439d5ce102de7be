"""RegistryService."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from mindeval.formats.names import ResourceName, check_id, parse, parse_project
from mindeval.service.api import checks
from mindeval.service.api.content import (
    dataset_content,
    dataset_message,
    suite_content,
    suite_message,
    version_digest,
)
from mindeval.service.api.paging import Pager, fitting
from mindeval.service.errors import BlobsMissingError, FieldError, ServiceError
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import VersionRecord
from mindeval.v1 import registry_pb2 as pb
from mindeval.v1 import registry_pb2_grpc

M = TypeVar("M", bound=Message)

_Context = grpc.aio.ServicerContext[Any, Any]
_VERSIONS_A_READ = 20
_NOT_FOUND = {"datasets": "DATASET_NOT_FOUND", "suites": "SUITE_NOT_FOUND"}


async def find_version(access: StoreAccess, name: ResourceName) -> VersionRecord:
    """The version of a dataset or suite that a name stands for now.

    Raises:
        ServiceError: DATASET_NOT_FOUND or SUITE_NOT_FOUND.
    """
    record = await access.read(access.store.registry.get, name.project, name.collection, name.id, name.version)
    if record is None:
        singular = name.collection[:-1]
        raise ServiceError(
            _NOT_FOUND[name.collection],
            f"there is no {name}; register it first (`mindeval {singular} put`), or check the name",
            {singular: str(name)},
        )
    return record


def task_dataset(project: str, text: str, field: str) -> ResourceName:
    """The dataset that a task names, by its id or its full name."""
    if "/" not in text:
        return ResourceName(project, "datasets", check_id(text, field))
    return checks.name_in(project, text, "datasets", field)


class RegistryApi(registry_pb2_grpc.RegistryServiceServicer):
    """See registry.proto."""

    def __init__(self, access: StoreAccess, library: BlobLibrary) -> None:
        self._access = access
        self._library = library
        self._registry = access.store.registry

    async def PutDataset(  # noqa: N802 - named by the proto
        self, request: pb.PutDatasetRequest, context: _Context
    ) -> pb.PutDatasetResponse:
        """Registers a version of a dataset."""
        project = parse_project(request.parent, "parent")
        dataset_id = check_id(request.dataset_id, "dataset_id")
        content = dataset_content(request.dataset)
        await self._require_files(project, content["files"])
        record, created = await self._access.write(
            self._registry.put, project, "datasets", dataset_id, version_digest(content), content
        )
        return pb.PutDatasetResponse(dataset=dataset_message(record), created=created)

    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context) -> pb.GetDatasetResponse:  # noqa: N802
        """Reads a dataset."""
        record = await find_version(self._access, parse(request.name, "datasets", "name"))
        return pb.GetDatasetResponse(dataset=dataset_message(record))

    async def ListDatasets(  # noqa: N802
        self, request: pb.ListDatasetsRequest, context: _Context
    ) -> pb.ListDatasetsResponse:
        """Lists datasets."""
        page, token = await self._list(request, "datasets", dataset_message)
        return pb.ListDatasetsResponse(datasets=page, next_page_token=token)

    async def PutSuite(self, request: pb.PutSuiteRequest, context: _Context) -> pb.PutSuiteResponse:  # noqa: N802
        """Registers a version of a suite."""
        project = parse_project(request.parent, "parent")
        suite_id = check_id(request.suite_id, "suite_id")
        content = suite_content(request.suite)
        for i, task in enumerate(content["tasks"]):
            name = task_dataset(project, task["dataset"], f"suite.tasks[{i}].dataset")
            await find_version(self._access, name)
        digest = version_digest(content)
        if request.validate_only:
            known = await self._access.read(self._registry.get, project, "suites", suite_id, digest)
            record = known or VersionRecord(project, "suites", suite_id, digest, content, 0)
            return pb.PutSuiteResponse(suite=suite_message(record), created=False)
        record, created = await self._access.write(self._registry.put, project, "suites", suite_id, digest, content)
        return pb.PutSuiteResponse(suite=suite_message(record), created=created)

    async def GetSuite(self, request: pb.GetSuiteRequest, context: _Context) -> pb.GetSuiteResponse:  # noqa: N802
        """Reads a suite."""
        record = await find_version(self._access, parse(request.name, "suites", "name"))
        return pb.GetSuiteResponse(suite=suite_message(record))

    async def ListSuites(self, request: pb.ListSuitesRequest, context: _Context) -> pb.ListSuitesResponse:  # noqa: N802
        """Lists suites."""
        page, token = await self._list(request, "suites", suite_message)
        return pb.ListSuitesResponse(suites=page, next_page_token=token)

    async def _list(
        self,
        request: pb.ListDatasetsRequest | pb.ListSuitesRequest,
        collection: str,
        convert: Callable[[VersionRecord], M],
    ) -> tuple[list[M], str]:
        project = parse_project(request.parent, "parent")
        size = checks.page_size(request.page_size)
        pager = Pager(f"List {collection}", project)
        (after,) = pager.cursor(request.page_token, [str]) or [""]
        records: list[VersionRecord] = []
        while len(records) <= size and len(fitting(map(convert, records))) == len(records):
            # In small parts: one version may be megabytes long.
            wanted = min(size + 1 - len(records), _VERSIONS_A_READ)
            part = await self._access.read(self._registry.page, project, collection, after, wanted)
            records += part
            if len(part) < wanted:
                break
            after = part[-1].id
        page = fitting(map(convert, records[:size]))
        return page, pager.token(records[len(page) - 1].id) if len(page) < len(records) else ""

    async def _require_files(self, project: str, files: list[dict[str, Any]]) -> None:
        digests = [file["digest"] for file in files]
        held = await self._library.sizes(project, digests)
        missing = [digest for digest in digests if digest not in held]
        if missing:
            raise BlobsMissingError("the dataset", missing)
        for i, file in enumerate(files):
            if held[file["digest"]] != file["size_bytes"]:
                raise FieldError(
                    f"dataset.files[{i}].size_bytes", f"is {file['size_bytes']}; the blob has {held[file['digest']]}"
                )
