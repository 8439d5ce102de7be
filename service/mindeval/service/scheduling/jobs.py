"""From an evaluation to the job that a runner is given."""

from __future__ import annotations

import asyncio
from typing import Any

from mindeval.formats.manifest import Manifest
from mindeval.formats.names import parse
from mindeval.service.errors import BlobsMissingError, ServiceError
from mindeval.service.execution.job import Job
from mindeval.service.storage.access import StoreAccess
from mindeval.service.storage.blobs import BlobFolder
from mindeval.service.storage.records import EvaluationRecord, VersionRecord


async def build_job(access: StoreAccess, folder: BlobFolder, record: EvaluationRecord) -> Job:
    """The job for the current attempt: all tasks that have no outcome yet.

    Raises:
        MindEvalError: BLOB_MISSING when blobs have gone since the evaluation was created.
    """
    manifest = await read_manifest(access, folder, record.project, record.checkpoint)
    await require_blobs(access, record.project, manifest.blobs(), "the checkpoint")
    tasks = []
    suite = await version(access, record.suite_version, "suites")
    done = {task.task for task in record.tasks}
    for task, dataset_name in zip(suite.content["tasks"], record.dataset_versions):
        if task["name"] in done:
            continue
        dataset = await version(access, dataset_name, "datasets")
        files = dataset.content["files"]
        sizes = {file["digest"]: file["size_bytes"] for file in files}
        await require_blobs(access, record.project, sizes, f"dataset {dataset_name}")
        tasks.append(_task(folder, task, dataset))
    return await asyncio.to_thread(_encoded_job, folder, record, manifest, tasks)


async def read_manifest(access: StoreAccess, folder: BlobFolder, project: str, digest: str) -> Manifest:
    """Reads and checks a checkpoint's manifest.

    Raises:
        MindEvalError: BLOB_MISSING; MANIFEST_INVALID.
    """
    await require_blobs(access, project, {digest: None}, "the checkpoint")
    try:
        data = await asyncio.to_thread(folder.path(project, digest).read_bytes)
    except FileNotFoundError:
        raise BlobsMissingError("the checkpoint", [digest]) from None
    return await asyncio.to_thread(Manifest.from_bytes, data)


async def require_blobs(access: StoreAccess, project: str, sizes: dict[str, Any], what: str) -> None:
    """Checks that the project holds blobs.

    Args:
        access: The store.
        project: Id of the project.
        sizes: Size in bytes that each must have, by digest; None for any.
        what: What needs them, for the message.

    Raises:
        ServiceError: BLOB_MISSING; MANIFEST_INVALID when a blob has another size than was declared.
    """
    held = await access.read(access.store.blobs.sizes, project, list(sizes))
    missing = [digest for digest in sizes if digest not in held]
    if missing:
        raise BlobsMissingError(what, missing)
    for digest, size_bytes in sizes.items():
        if size_bytes is not None and held[digest] != size_bytes:
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


def _encoded_job(folder: BlobFolder, record: EvaluationRecord, manifest: Manifest, tasks: list[dict[str, Any]]) -> Job:
    job = Job(
        id=f"{record.id}.{record.attempt}.{record.attempt_token}",
        manifest=str(folder.path(record.project, record.checkpoint)),
        checkpoint=record.checkpoint,
        blobs={digest: str(folder.path(record.project, digest)) for digest in manifest.blobs()},
        tasks=tasks,
    )
    assert job.encoded  # Made here, on a thread, and kept.
    return job


def _task(folder: BlobFolder, task: dict[str, Any], dataset: VersionRecord) -> dict[str, Any]:
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
                {
                    "path": file["path"],
                    "digest": file["digest"],
                    "location": str(folder.path(dataset.project, file["digest"])),
                }
                for file in content["files"]
            ],
        },
    }
