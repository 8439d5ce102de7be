"""Imports of checkpoints in this process: files that change meanwhile, work that is shared and stopped."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.service.importing import Importing
from tests.support.containers import weights, write_hugging_face, write_ranks
from tests.support.s3 import ENVIRONMENT, S3Server

from mindeval.formats import manifest as manifests
from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest
from mindeval.service.errors import ServiceError
from mindeval.service.ingest import copying, local
from mindeval.service.ingest.objects import ObjectReader
from mindeval.service.ingest.uris import parse_uri
from mindeval.service.storage.records import CheckpointQuery
from mindeval.service.storage.uploads import Uploads

DTYPES = {"f2": "F16", "f4": "F32", "i8": "I64"}


# What changes meanwhile


def flip_last_bit(file: Path) -> None:
    """Changes a file in place."""
    with open(file, "r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        last = opened.read()[0]
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([last ^ 1]))


@pytest.mark.parametrize("how", ["rewritten", "replaced", "link"])
async def test_a_file_that_changes_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    path = write_hugging_face(tmp_path / "shared" / "m", weights(1))
    outside = write_hugging_face(tmp_path / "outside", weights(2))
    file = path / "model.safetensors"
    hash_batch = copying.Copying._hash
    changes: list[str] = []

    def change_then_hash(self: copying.Copying, batch: list[Any]) -> list[Any]:
        if not changes:
            changes.append(how)
            if how == "rewritten":
                flip_last_bit(file)
            elif how == "replaced":
                shutil.copy(outside / file.name, path / "new")
                os.replace(path / "new", file)
            else:
                file.unlink()
                file.symlink_to(outside / file.name)
        return hash_batch(self, batch)

    monkeypatch.setattr(copying.Copying, "_hash", change_then_hash)
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        with pytest.raises(ServiceError) as caught:
            await importing.importer.load("p", f"file://{path}")
        assert caught.value.reason == "CHECKPOINT_CHANGED"
        assert caught.value.metadata["file"] == str(file)
        assert importing.disk.held() == set()
        assert importing.disk.files() == []
        assert importing.disk.access.store.checkpoints.page(CheckpointQuery("p")) == []


async def test_a_file_that_changes_between_hashing_and_storing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hugging_face(tmp_path / "shared", {"large": np.arange(1 << 19, dtype="<f4")})
    file = path / "model.safetensors"
    status = os.stat(file)
    create = Uploads.create

    async def change_then_create(self: Uploads, *arguments: Any) -> Any:
        flip_last_bit(file)
        # As bad as can be: nothing but the bytes shows it.
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        return await create(self, *arguments)

    monkeypatch.setattr(Uploads, "create", change_then_create)
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        with pytest.raises(ServiceError) as caught:
            await importing.importer.load("p", f"file://{path}")
        assert caught.value.reason == "CHECKPOINT_CHANGED"
        assert caught.value.metadata["file"] == str(file)


async def test_a_folder_that_becomes_a_link_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hugging_face(tmp_path / "shared" / "m", weights(1))
    outside = write_hugging_face(tmp_path / "outside", weights(2))
    original = local.open_local

    def swap_then_open(*arguments: Any, **fields: Any) -> Any:
        path.rename(tmp_path / "shared" / "old")
        path.symlink_to(outside)
        # Without the bound, as if the link had come after the readers looked at it.
        return original(arguments[0])

    monkeypatch.setattr(local, "open_local", swap_then_open)
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        with pytest.raises(ServiceError) as caught:
            await importing.importer.load("p", f"file://{path}")
        assert caught.value.reason == "URI_FORBIDDEN"
        assert importing.disk.files() == []


async def test_objects_that_do_not_fit(
    tmp_path: Path, s3: S3Server, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    path = write_hugging_face(tmp_path / "m", weights(72))
    await asyncio.to_thread(bucket.put, str(path), "models/large", recursive=True)
    async with Importing(tmp_path / "data", tmp_path / "shared", s3.endpoint_url, min_free_bytes=1 << 60) as importing:
        with pytest.raises(ServiceError) as caught:
            await importing.importer.load("p", "s3://models/large")
        assert caught.value.reason == "STORAGE_FULL"
        assert list(importing.disk.directory.imports.iterdir()) == []


async def test_an_object_that_changes(
    tmp_path: Path, s3: S3Server, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    path = write_hugging_face(tmp_path / "m", weights(70))
    await asyncio.to_thread(bucket.put, str(path), "models/changing", recursive=True)
    fetch = ObjectReader.fetch

    def fetch_then_change(self: ObjectReader, *arguments: Any) -> None:
        fetch(self, *arguments)
        other = write_hugging_face(tmp_path / "other", weights(71))
        bucket.put_file(str(other / "model.safetensors"), "models/changing/model.safetensors")

    monkeypatch.setattr(ObjectReader, "fetch", fetch_then_change)
    async with Importing(tmp_path / "data", tmp_path / "shared", s3.endpoint_url) as importing:
        with pytest.raises(ServiceError) as caught:
            await importing.importer.load("p", "s3://models/changing")
        assert caught.value.reason == "CHECKPOINT_CHANGED"
        assert caught.value.metadata["file"] == "s3://models/changing/model.safetensors"
        assert list(importing.disk.directory.imports.iterdir()) == []


async def test_an_object_that_changes_while_it_is_fetched(
    tmp_path: Path, s3: S3Server, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    path = write_hugging_face(tmp_path / "m", {"large": np.arange(3 << 20, dtype="<f4")})
    reader = ObjectReader(s3.endpoint_url, 0)
    place = parse_uri("s3://models/moving")
    changes: list[int] = []

    def change_once() -> None:
        if not changes:
            changes.append(1)
            (path / "model.safetensors").write_bytes(b"another")
            bucket.put_file(str(path / "model.safetensors"), "models/moving/model.safetensors")

    def fetch() -> None:
        bucket.put(str(path), "models/moving", recursive=True)
        for name in ("look", "fetch"):
            (tmp_path / name).mkdir()
        found = reader.look("p", place, [parse_uri("s3://models")], tmp_path / "look")
        reader.fetch(found, tmp_path / "fetch", change_once)

    with pytest.raises(ServiceError) as caught:
        await asyncio.to_thread(fetch)
    assert caught.value.reason == "CHECKPOINT_CHANGED"
    assert changes == [1]


# Work that is shared, repeated and stopped


async def test_calls_at_the_same_time_share_one_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hugging_face(tmp_path / "shared", weights(1))
    runs: list[int] = []
    begun = asyncio.Event()
    run = copying.Copying.run

    async def counted(self: copying.Copying) -> Manifest:
        runs.append(1)
        begun.set()
        return await run(self)

    monkeypatch.setattr(copying.Copying, "run", counted)
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        uri = f"file://{path}"
        assert await importing.importer.find("p", uri) == ""
        leaving = asyncio.ensure_future(importing.importer.load("p", uri))
        others = [asyncio.ensure_future(importing.importer.load("p", uri)) for _ in range(3)]
        await begun.wait()
        leaving.cancel()
        found = set(await asyncio.gather(*others))
        (digest,) = {digest for digest, _ in found}
        assert await importing.importer.load("p", uri) == (digest, False)
        assert await importing.importer.find("p", uri) == digest
        assert len(runs) == 1


async def test_a_client_that_sends_the_same_bytes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.arange(1 << 19, dtype="<f4")
    data = values.tobytes()
    path = write_hugging_face(tmp_path / "shared", {"large": values})
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        uploads = importing.disk.uploads
        met, writing = asyncio.Event(), Uploads.writing

        def noticed(self: Uploads, *arguments: Any) -> Any:
            met.set()
            return writing(self, *arguments)

        record = await uploads.create("p", digest_bytes(data), len(data))
        async with uploads.writing("p", record.id) as writer:
            monkeypatch.setattr(Uploads, "writing", noticed)
            importing_it = asyncio.ensure_future(importing.importer.load("p", f"file://{path}"))
            await met.wait()
            await writer.append(0, data[: 1 << 20])
        # The client is gone; half of the bytes are there.
        digest, created = await importing_it
        assert created
        manifest = Manifest.from_bytes(await importing.disk.read(digest))
        assert await importing.disk.read(manifest.tensors[0].digest) == data


async def test_large_tensors_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"large": np.arange(3 << 19, dtype="<f4"), "small": np.ones(3, "<f4")}
    path = write_ranks(tmp_path / "shared", {"large": values["large"].reshape(1024, -1), "small": values["small"]})
    monkeypatch.setattr(manifests, "PIECE_BYTES", 4 << 20)
    monkeypatch.setattr("mindeval.formats.checkpoints.PIECE_BYTES", 4 << 20)
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        digest, _ = await importing.importer.load("p", f"file://{path}")
        manifest = Manifest.from_bytes(await importing.disk.read(digest))
        large = next(tensor for tensor in manifest.tensors if tensor.name == "large")
        assert [size for _, size in large.blobs()] == [4 << 20, 2 << 20]
        data = b"".join([await importing.disk.read(piece) for piece, _ in large.blobs()])
        assert data == values["large"].tobytes()


async def test_a_service_that_shuts_down_stops_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hugging_face(tmp_path / "shared", weights(1))
    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        hash_batch = copying.Copying._hash

        def stop_then_hash(self: copying.Copying, batch: list[Any]) -> list[Any]:
            importing.importer._stop.set()
            return hash_batch(self, batch)

        monkeypatch.setattr(copying.Copying, "_hash", stop_then_hash)
        with pytest.raises(ServiceError) as caught:
            await importing.importer.load("p", f"file://{path}")
        assert caught.value.reason == "SERVICE_DRAINING"


# What may not be read


@pytest.mark.parametrize("forbidden", ["m", "model.safetensors", "config.json"])
async def test_what_the_service_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forbidden: str) -> None:
    path = write_hugging_face(tmp_path / "shared" / "m", weights(40))
    original = os.open

    def refusing_open(name: Any, *arguments: Any, **fields: Any) -> int:
        # Nothing is forbidden to root, and tests may run as root.
        if Path(os.fspath(name)).name == forbidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
        return original(name, *arguments, **fields)

    async with Importing(tmp_path / "data", tmp_path / "shared") as importing:
        monkeypatch.setattr(os, "open", refusing_open)
        with pytest.raises(ServiceError, match="permission denied") as caught:
            await importing.importer.load("p", f"file://{path}")
        monkeypatch.undo()
    assert caught.value.reason == "URI_UNREADABLE"
    if forbidden != "m":
        assert caught.value.metadata["file"] == str(path / forbidden)
