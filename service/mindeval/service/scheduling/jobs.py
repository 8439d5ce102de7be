"""From an evaluation to the job that a runner is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from mindeval.formats.manifest import MAX_MANIFEST_BYTES, Manifest
from mindeval.formats.names import parse
from mindeval.service.errors import BlobsMissingError, ServiceError
from mindeval.service.execution.job import Job
from mindeval.service.runtime.messages import BlobLocation
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.library import BlobLibrary
from mindeval.service.storage.records import EvaluationRecord, VersionRecord


@asynccontextmanager
async def prepared_job(access: StoreAccess, library: BlobLibrary, record: EvaluationRecord) -> AsyncIterator[Job]:
    """The job for the current attempt: all tasks that have no outcome yet. Its blobs lie still until the block ends.

    Raises:
        MindEvalError: BLOB_MISSING when blobs have gone since the evaluation was created; STORAGE_FULL when they cannot
            be fetched to this machine.
    """
    manifest = await read_manifest(library, record.project, record.checkpoint)
    await require_blobs(library, record.project, manifest.blobs(), "the checkpoint")
    tasks: list[tuple[dict[str, Any], VersionRecord]] = []
    suite = await version(access, record.suite_version, "suites")
    done = {task.task for task in record.tasks}
    for task, dataset_name in zip(suite.content["tasks"], record.dataset_versions):
        if task["name"] in done:
            continue
        dataset = await version(access, dataset_name, "datasets")
        sizes = {file["digest"]: file["size_bytes"] for file in dataset.content["files"]}
        await require_blobs(library, record.project, sizes, f"dataset {dataset_name}")
        tasks.append((task, dataset))
    async with AsyncExitStack() as leases:
        digests = [record.checkpoint, *manifest.blobs()]
        lease = await leases.enter_async_context(library.leased(record.project, digests, "the checkpoint"))
        locations = dict(lease.locations)
        for _, dataset in tasks:
            digests = [file["digest"] for file in dataset.content["files"]]
            lease = await leases.enter_async_context(library.leased(record.project, digests, f"dataset {dataset.name}"))
            locations.update(lease.locations)
        yield await asyncio.to_thread(_encoded_job, record, manifest, tasks, locations)


async def read_manifest(library: BlobLibrary, project: str, digest: str) -> Manifest:
    """Reads and checks a checkpoint's manifest.

    Raises:
        MindEvalError: BLOB_MISSING; MANIFEST_INVALID.
    """
    size_bytes = (await library.sizes(project, [digest])).get(digest, 0)
    if size_bytes > MAX_MANIFEST_BYTES:
        raise ServiceError(
            "MANIFEST_INVALID", f"{digest} has {size_bytes} bytes and cannot be a manifest", {"digest": digest}
        )
    return await asyncio.to_thread(Manifest.from_bytes, await library.read(project, digest, "the checkpoint"))


async def require_blobs(library: BlobLibrary, project: str, sizes: Mapping[str, int], what: str) -> None:
    """Checks that the project holds blobs, which then stay for the grace time.

    Args:
        library: The blobs.
        project: Id of the project.
        sizes: Size in bytes that each must have, by digest.
        what: What needs them, for the message.

    Raises:
        ServiceError: BLOB_MISSING; MANIFEST_INVALID when a blob has another size than was declared.
    """
    held = await library.sizes(project, list(sizes))
    missing = [digest for digest in sizes if digest not in held]
    if missing:
        raise BlobsMissingError(what, missing)
    for digest, size_bytes in sizes.items():
        if held[digest] != size_bytes:
            raise ServiceError(
                "MANIFEST_INVALID",
                f"{what} declares {size_bytes} bytes for {digest}, which has {held[digest]}",
                {"digest": digest},
            )


async def version(access: StoreAccess, name: str, collection: str) -> VersionRecord:
    """A version by its full name; versions are never removed, so it is there."""
    parts = parse(name, collection, collection)
    record = await access.read(access.store.registry.get, parts.project, collection, parts.id, parts.version)
    assert record is not None
    return record


def _encoded_job(
    record: EvaluationRecord,
    manifest: Manifest,
    tasks: list[tuple[dict[str, Any], VersionRecord]],
    locations: Mapping[str, BlobLocation],
) -> Job:
    job = Job(
        id=f"{record.id}.{record.attempt}.{record.attempt_token}",
        manifest=locations[record.checkpoint],
        checkpoint=record.checkpoint,
        blobs={digest: locations[digest] for digest in manifest.blobs()},
        tasks=[_task(task, dataset, locations) for task, dataset in tasks],
    )
    assert job.encoded  # Made here, on a thread, and kept.
    return job


def _task(task: dict[str, Any], dataset: VersionRecord, locations: Mapping[str, BlobLocation]) -> dict[str, Any]:
    content = dataset.content
    return {
        "name": task["name"],
        "type": task["type"],
        "metrics": task["metrics"],
        "settings": task["settings"],
        "dataset": {
            "version": dataset.name,
            "format": content["format"],
            "language": content["language"],
            "text_field": content["text_field"],
            "padding_token": content["padding_token"],
            "files": [
                {"path": file["path"], "digest": file["digest"], "location": locations[file["digest"]]}
                for file in content["files"]
            ],
        },
    }
