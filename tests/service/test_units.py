"""Parts that are easier to corner without a server: errors, settings, files of uploads, recovery."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from tests.service.disk import Disk
from tests.service.stubs import refusal_of

from mindeval.formats.digest import digest_bytes
from mindeval.formats.errors import MindEvalError
from mindeval.service import settings
from mindeval.service.api.guard import Guard
from mindeval.service.background import Background
from mindeval.service.drain import Drain
from mindeval.service.errors import MAX_STATUS_BYTES, STATUS_CODES, BlobsMissingError, ServiceError, status_of
from mindeval.service.storage.blobs import StoredObject, blob_key
from mindeval.v1 import errors_pb2


def test_every_reason_has_a_status_code() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name, _ in errors_pb2.ErrorReason.items()} - {"UNSPECIFIED"}
    assert set(STATUS_CODES) == reasons
    assert grpc.StatusCode.OK not in STATUS_CODES.values()


def test_statuses_fit_into_a_trailer_whatever_is_in_them() -> None:
    huge = "过长\ud800" * 5000
    errors = [
        MindEvalError("INVALID_FIELD", huge, {huge[:100]: huge, **{f"k{i}": huge for i in range(100)}, "field": huge}),
        BlobsMissingError(huge, [f"blake3:{i:064x}" for i in range(5000)]),
        ServiceError("STORAGE_FULL", huge, {"field": huge}),
    ]
    for error in errors:
        status = status_of(error)
        assert len(status.SerializeToString()) <= MAX_STATUS_BYTES
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert info.reason == error.reason
    failure = error_details_pb2.PreconditionFailure()
    assert status_of(errors[1]).details[1].Unpack(failure)
    assert len(failure.violations) >= 20


async def test_a_defect_becomes_internal_with_an_id_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: bytes, context: object) -> bytes:
        raise ZeroDivisionError("the details are for the log only")

    async def broken_stream(request: bytes, context: object):  # type: ignore[no-untyped-def]
        yield b"first"
        raise ZeroDivisionError("the details are for the log only")

    handlers = {
        "Single": grpc.unary_unary_rpc_method_handler(broken),
        "Stream": grpc.unary_stream_rpc_method_handler(broken_stream),
    }
    server = grpc.aio.server(interceptors=[Guard(Drain())])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("mindeval.v1.Test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.RpcError) as single:
                await channel.unary_unary("/mindeval.v1.Test/Single")(b"")
            responses = channel.unary_stream("/mindeval.v1.Test/Stream")(b"")
            assert await responses.read() == b"first"
            with pytest.raises(grpc.RpcError) as stream:
                await responses.read()
    finally:
        await server.stop(0)
    for caught in (single, stream):
        refusal = refusal_of(caught.value)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert "for the log only" not in refusal.message
        incident = refusal.metadata["incident"]
        assert any(getattr(record, "incident", "") == incident for record in caplog.records)


async def test_work_goes_on_when_its_caller_is_gone() -> None:
    background, begun, release = Background(), asyncio.Event(), asyncio.Event()
    done = []

    async def work() -> None:
        begun.set()
        await release.wait()
        done.append(True)

    caller = asyncio.ensure_future(background.to_the_end(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    release.set()
    await background.settle()
    assert done == [True]


class TestSettings:
    def test_precedence(self, tmp_path: Path) -> None:
        file = tmp_path / "c.toml"
        file.write_text('devices = "cpu:3"\nlisten = "127.0.0.1:1"\nlog_level = "debug"\ncancel_grace_s = 3\n')
        environment = {"MINDEVAL_DEVICES": "cpu:2", "MINDEVAL_LISTEN": "127.0.0.1:2", "MINDEVAL_TOKEN": "not ours"}
        loaded = settings.load({"devices": "ascend:0,1"}, environment, file)
        assert loaded.devices == "ascend:0,1"
        assert loaded.listen == "127.0.0.1:2"
        assert (loaded.log_level, loaded.cancel_grace_s) == ("debug", 3.0)
        assert loaded.upload_ttl_s == settings.Settings().upload_ttl_s

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"devices": "gpu:1"}, "neither"),
            ({"devices": "cpu:0"}, "1 to 256"),
            ({"devices": "ascend:1,1"}, "twice"),
            ({"listen": "127.0.0.1"}, "HOST:PORT"),
            ({"listen": "127.0.0.1:70000"}, "HOST:PORT"),
            ({"listen": "example.org:80"}, "other machines"),
            ({"listen": "[::]:80"}, "other machines"),
            ({"heartbeat_timeout_s": "0"}, "more than 0"),
            ({"heartbeat_timeout_s": "nan"}, "more than 0"),
            ({"upload_sync_bytes": "many"}, "whole number"),
            ({"tls_key": "/nowhere"}, "both or none"),
            ({"allow_insecure": "perhaps"}, "true nor false"),
            ({"runner_command": ""}, "empty"),
            ({"log_level": "loud"}, "none of"),
            ({"blob_store": "ftp://x/y"}, "neither 'folder' nor an object store"),
            ({"blob_store": "s3://bucket/../other"}, "neither 'folder' nor an object store"),
            ({"project_budget_bytes": "-1"}, "0 or more"),
        ],
    )
    def test_faults(self, values: dict[str, str], words: str) -> None:
        environment = {f"MINDEVAL_{key.upper()}": value for key, value in values.items()}
        with pytest.raises(settings.SettingsError, match=words):
            settings.load({}, environment)

    def test_runner_command_from_the_environment_is_split(self) -> None:
        loaded = settings.load({}, {"MINDEVAL_RUNNER_COMMAND": "python 'my runner.py'"})
        assert loaded.runner_command == ("python", "my runner.py")

    def test_every_field_is_explained(self) -> None:
        source = Path(settings.__file__).read_text("utf-8")
        body = source[source.index("class Settings:") : source.index("@property")]
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        for number, line in enumerate(lines):
            if ": " in line and " = " in line and not line.startswith('"""'):
                assert lines[number + 1].startswith('"""'), line

    def test_loopback(self) -> None:
        for listen in ("127.0.0.1:0", "127.8.8.8:1", "[::1]:80", "localhost:80"):
            assert settings.load({"listen": listen}, {}).is_loopback


@pytest.fixture
def disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    disk = Disk(tmp_path)
    yield disk
    disk.close()


async def test_ended_between_rename_and_commit(disk: Disk) -> None:
    upload_id = await disk.upload(b"data")
    record = await disk.uploads.get("p", upload_id)
    item = StoredObject(blob_key("p", record.digest), record.digest, 4)
    disk.store.put(item, disk.spool.path(upload_id))
    assert disk.access.store.blobs.sizes("p", [record.digest]) == {}
    await disk.uploads.recover()
    assert disk.access.store.blobs.sizes("p", [record.digest]) == {record.digest: 4}
    assert (await disk.uploads.commit("p", upload_id)).complete


async def test_recovery_takes_nothing_on_trust(disk: Disk) -> None:
    lost = await disk.upload(b"lost file")
    short = await disk.upload(b"shortened")
    tail = await disk.upload(b"with a tail")
    uploads = disk.directory.uploads
    (uploads / lost).unlink()
    os.truncate(uploads / short, 3)
    (uploads / tail).write_bytes((uploads / tail).read_bytes() + b"not committed")
    (uploads / "stray").write_bytes(b"x")
    await disk.uploads.recover()
    assert (await disk.uploads.get("p", lost)).committed_offset == 0
    assert (await disk.uploads.get("p", short)).committed_offset == 0
    assert not (uploads / "stray").exists()
    async with disk.uploads.writing("p", tail):
        pass
    assert (uploads / tail).read_bytes() == b"with a tail"
    assert (await disk.uploads.commit("p", tail)).complete


async def test_expired_uploads_are_dropped(disk: Disk) -> None:
    kept, dropped = await disk.upload(b"kept"), await disk.upload(b"dropped")
    disk.access.store.blobs.advance(dropped, 7, 1)
    await disk.uploads.drop_expired()
    with pytest.raises(ServiceError, match="UPLOAD_NOT_FOUND"):
        await disk.uploads.get("p", dropped)
    assert [path.name for path in disk.directory.uploads.iterdir()] == [kept]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_keeps_the_upload(disk: Disk, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    record = await disk.uploads.create("p", digest_bytes(b"0123456789"), 10)
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        if bytes(data) == b"56789":
            real_write(fd, b"56")
            raise OSError(code, "no space")
        return real_write(fd, data)

    async def send() -> None:
        async with disk.uploads.writing("p", record.id) as writer:
            await writer.append(0, b"01234")
            await writer.append(5, b"56789")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await send()
    monkeypatch.undo()
    assert (await disk.uploads.get("p", record.id)).committed_offset == 5
    async with disk.uploads.writing("p", record.id) as writer:
        await writer.append(5, b"56789")
    assert (await disk.uploads.commit("p", record.id)).complete
