"""Pushing against a service that cuts, lies and forgets."""

from __future__ import annotations

import asyncio
import filecmp
import os
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.client.checkpoints import tensors, write_folder
from tests.client.fake import FakeService, Fault

from mindeval.client import (
    AsyncClient,
    CheckpointChanged,
    PushProgress,
    ServiceError,
    ServiceUnavailable,
    _encoding,
    _hashing,
    _sources,
)
from mindeval.formats import checkpoints
from mindeval.formats import manifest as manifests
from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest
from mindeval.v1 import blob_pb2


async def test_push_sends_every_blob_and_the_manifest_last(
    client: AsyncClient, fake: FakeService, tmp_path: Path
) -> None:
    seen: list[PushProgress] = []
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c"), progress=seen.append)
    manifest = Manifest.from_bytes(fake.blobs[pushed.digest])
    assert manifest.blobs().keys() <= fake.blobs.keys()
    assert [file.path for file in manifest.files] == ["config.json", "tokenizer.json"]
    assert len(manifest.tensors) == len(tensors())
    assert [blob.digest for blob in fake.requests["WriteSmallBlobs"][-1].blobs] == [pushed.digest]
    assert not fake.calls["CreateUpload"], "everything in it is small"
    assert pushed.bytes_sent == pushed.bytes_total == sum(len(data) for data in fake.blobs.values())
    assert pushed.blobs_sent == pushed.blobs_total == len(fake.blobs)
    assert seen[-1].bytes_sent == seen[-1].bytes_to_send == pushed.bytes_total


async def test_unchanged_checkpoint_sends_nothing_and_a_changed_tensor_only_itself(
    client: AsyncClient, fake: FakeService, tmp_path: Path
) -> None:
    values = tensors()
    await client.push_checkpoint(write_folder(tmp_path / "c", values))
    again = await client.push_checkpoint(tmp_path / "c")
    assert (again.bytes_sent, again.blobs_sent) == (0, 0)
    values["model.norm"] = values["model.norm"] * 2
    changed = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    assert changed.digest != again.digest
    assert changed.bytes_sent == values["model.norm"].nbytes + len(fake.blobs[changed.digest])


async def test_upload_resumes_where_it_was_cut(client: AsyncClient, fake: FakeService, tmp_path: Path) -> None:
    fake.knows_small_blobs = False
    values = {"w": np.arange(1 << 18, dtype=np.float32)}
    fake.cut_uploads_after.extend([300_000, 700_000])
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    assert fake.blobs[digest_bytes(values["w"].tobytes())] == values["w"].tobytes()
    received = sum(size for offset, size in fake.chunks)
    assert received == pushed.bytes_total, "no byte that was durable travelled twice"
    assert pushed.bytes_sent >= received


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("FindMissingBlobs", Fault(grpc.StatusCode.UNAVAILABLE)),
        ("CreateUpload", Fault(grpc.StatusCode.UNAVAILABLE, "SERVICE_DRAINING", retry_after_s=0.05)),
        ("WriteUpload", Fault(grpc.StatusCode.ABORTED, "UPLOAD_BUSY", retry_after_s=0.05)),
        ("WriteUpload", Fault(grpc.StatusCode.NOT_FOUND, "UPLOAD_NOT_FOUND")),
        ("WriteUpload", Fault(grpc.StatusCode.FAILED_PRECONDITION, "UPLOAD_SIZE_MISMATCH")),
        ("WriteUpload", Fault(grpc.StatusCode.ABORTED, "UPLOAD_OFFSET_MISMATCH", {"committed_offset": "0"})),
        ("CommitUpload", Fault(grpc.StatusCode.UNAVAILABLE)),
        ("CommitUpload", Fault(grpc.StatusCode.NOT_FOUND, "UPLOAD_NOT_FOUND")),
        ("CommitUpload", Fault(grpc.StatusCode.ABORTED, "UPLOAD_BUSY", retry_after_s=0.05)),
    ],
)
async def test_passing_faults_are_overcome(
    client: AsyncClient, fake: FakeService, tmp_path: Path, method: str, fault: Fault
) -> None:
    fake.knows_small_blobs = False
    fake.fail_next(
        method, fault, fault if fault.reason != "UPLOAD_SIZE_MISMATCH" else Fault(grpc.StatusCode.UNAVAILABLE)
    )
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c"))
    assert Manifest.from_bytes(fake.blobs[pushed.digest]).blobs().keys() <= fake.blobs.keys()


@pytest.mark.parametrize("method", ["CreateUpload", "WriteSmallBlobs"])
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FULL"),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
    ],
)
async def test_refusals_end_the_push_at_once(
    client: AsyncClient, fake: FakeService, tmp_path: Path, code: grpc.StatusCode, reason: str, method: str
) -> None:
    fake.knows_small_blobs = method == "WriteSmallBlobs"
    fake.fail_next(method, Fault(code, reason, {"field": "x"}, retry_after_s=30.0))
    with pytest.raises(ServiceError) as caught:
        await client.push_checkpoint(write_folder(tmp_path / "c"))
    assert (caught.value.reason, caught.value.code, caught.value.metadata) == (reason, code.name, {"field": "x"})


@pytest.mark.parametrize("method", ["CommitUpload", "WriteSmallBlobs"])
async def test_damaged_bytes_give_one_clear_error(
    client: AsyncClient, fake: FakeService, tmp_path: Path, method: str
) -> None:
    fake.knows_small_blobs = method == "WriteSmallBlobs"
    folder = write_folder(tmp_path / "c", {"w": np.ones(100, np.float32)})
    fake.fail_next(method, Fault(grpc.StatusCode.DATA_LOSS, "DIGEST_MISMATCH"))
    with pytest.raises(ServiceError) as caught:
        await client.push_checkpoint(folder)
    assert caught.value.reason == "DIGEST_MISMATCH"
    assert str(folder) in str(caught.value)


async def test_a_file_that_changes_is_named(client: AsyncClient, fake: FakeService, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c")
    weights = folder / "model.safetensors"

    def overwrite(_: PushProgress) -> None:
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)

    with pytest.raises(CheckpointChanged) as caught:
        await client.push_checkpoint(folder, progress=overwrite)
    assert caught.value.metadata == {"file": str(weights)}


async def test_a_file_that_is_cut_while_it_is_hashed_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c")
    source = _sources.open_checkpoint(folder)
    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(CheckpointChanged):
        await _hashing.digests_of(source.tensors)


async def test_small_blobs_go_on_after_a_cut_with_what_is_missing(
    client: AsyncClient, fake: FakeService, tmp_path: Path
) -> None:
    values = {f"w{number}": np.full(1000, number, np.float32) for number in range(100)}
    fake.cut_small_blobs_after.extend([30, 20])
    seen: list[PushProgress] = []
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c", values), progress=seen.append)
    assert len(fake.blobs) == pushed.blobs_total == 100 + 3
    assert seen[-1].bytes_sent == seen[-1].bytes_to_send == pushed.bytes_total
    blobs = [blob.digest for request in fake.requests["WriteSmallBlobs"] for blob in request.blobs]
    assert 103 < len(blobs) < 3 * 103
    assert fake.calls["WriteSmallBlobs"] >= 3


async def test_small_blobs_share_messages(client: AsyncClient, fake: FakeService, tmp_path: Path) -> None:
    values = {f"w{number}": np.full(60_000, number, np.float32) for number in range(20)}
    await client.push_checkpoint(write_folder(tmp_path / "c", values))
    sizes = [sum(len(blob.data) for blob in request.blobs) for request in fake.requests["WriteSmallBlobs"]]
    assert max(sizes) <= 1 << 20
    assert len(sizes) < 12
    assert not fake.calls["CreateUpload"]


async def test_large_tensors_travel_in_pieces(
    client: AsyncClient, fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (manifests, checkpoints):
        monkeypatch.setattr(module, "PIECE_BYTES", 1 << 20)
    values = {"w": np.arange((5 << 20) // 8 + 3, dtype=np.int64)}
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    (tensor,) = Manifest.from_bytes(fake.blobs[pushed.digest]).tensors
    assert len(tensor.pieces) == 6
    assert b"".join(fake.blobs[digest] for digest in tensor.pieces) == values["w"].tobytes()
    fetched = await client.fetch_checkpoint(pushed.digest, tmp_path / "back.safetensors")
    assert load_file(fetched.weights)["w"].tobytes() == values["w"].tobytes()
    values["w"][(2 << 20) // 8] += 1
    again = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    assert again.bytes_sent == (1 << 20) + len(fake.blobs[again.digest])


async def test_a_blob_that_another_push_sends_is_left_to_it(
    client: AsyncClient, fake: FakeService, tmp_path: Path
) -> None:
    """The others go first, and what the other push has finished meanwhile is not sent."""
    values = {f"w{number}": np.full(1 << 17, number, np.float32) for number in range(6)}
    busy = digest_bytes(values["w0"].tobytes())
    fake.busy[busy] = 3
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    assert fake.finished[-1] == busy
    assert pushed.digest in fake.blobs


async def test_service_away_is_reported_after_the_patience(tmp_path: Path, fake: FakeService) -> None:
    await fake.stop()
    async with AsyncClient(fake.endpoint, timeout_s=0.3) as client:
        with pytest.raises(ServiceUnavailable) as caught:
            await client.push_checkpoint(write_folder(tmp_path / "c"))
    assert fake.endpoint in caught.value.message


async def test_push_survives_a_restart(fake: FakeService, client: AsyncClient, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "c", {"w": np.arange(1 << 18, dtype=np.float32)})
    restarted = asyncio.Event()
    restarts: list[asyncio.Task[None]] = []

    async def restart() -> None:
        endpoint = fake.endpoint
        await fake.stop()
        await fake.start(endpoint)
        restarted.set()

    def once(progress: PushProgress) -> None:
        if progress.bytes_sent > 200_000 and not restarts:
            restarts.append(asyncio.ensure_future(restart()))

    pushed = await client.push_checkpoint(folder, progress=once)
    assert restarted.is_set()
    assert pushed.digest in fake.blobs


async def test_fetch_returns_the_original_bytes(client: AsyncClient, fake: FakeService, tmp_path: Path) -> None:
    values = tensors()
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    fetched = await client.fetch_checkpoint(pushed.digest, f"{tmp_path / 'out'}{os.sep}")
    assert {Path(file).name for file in fetched.files} == {"config.json", "tokenizer.json"}
    assert filecmp.cmp(fetched.files[0], tmp_path / "c" / "config.json", shallow=False)
    loaded = load_file(fetched.weights)
    assert loaded.keys() == values.keys()
    for name, value in values.items():
        assert loaded[name].dtype == value.dtype
        assert loaded[name].shape == value.shape
        assert loaded[name].tobytes() == value.tobytes()
    # The same content is the same checkpoint, and nothing has to travel.
    assert (await client.push_checkpoint(tmp_path / "out")).bytes_sent == 0
    assert sorted(os.listdir(tmp_path / "out")) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


async def test_a_damaged_download_leaves_nothing(client: AsyncClient, fake: FakeService, tmp_path: Path) -> None:
    values = tensors()
    pushed = await client.push_checkpoint(write_folder(tmp_path / "c", values))
    fake.flips_bits_in.add(digest_bytes(values["model.norm"].tobytes()))
    target = tmp_path / "best.safetensors"
    target.write_bytes(b"before")
    with pytest.raises(Exception, match="CHECKPOINT_CORRUPT"):
        await client.fetch_checkpoint(pushed.digest, target)
    assert target.read_bytes() == b"before"
    assert sorted(os.listdir(tmp_path)) == ["best.safetensors", "c"]


async def test_fetch_of_a_lost_blob(client: AsyncClient, tmp_path: Path) -> None:
    with pytest.raises(ServiceError) as caught:
        await client.fetch_checkpoint(digest_bytes(b"never pushed"), tmp_path / "x.safetensors")
    assert caught.value.reason == "BLOB_NOT_FOUND"


async def test_blob_missing_at_creation_is_pushed_again(client: AsyncClient, fake: FakeService, tmp_path: Path) -> None:
    from tests.client.fake import state_event

    fake.events.extend([state_event(1, "QUEUED"), state_event(2, "SUCCEEDED")])
    fake.fail_next("EvaluateCheckpoint", Fault(grpc.StatusCode.FAILED_PRECONDITION, "BLOB_MISSING", missing=("d",)))
    result = await client.evaluate(write_folder(tmp_path / "c"), "s")
    assert result.succeeded
    first, second = fake.requests["EvaluateCheckpoint"]
    assert first.request_id == second.request_id


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 1 << 20])
def test_hand_made_chunk_is_what_protobuf_makes(size: int) -> None:
    data = b"x" * size

    def fill(target: memoryview) -> None:
        target[:] = data

    made = blob_pb2.WriteUploadRequest.FromString(_encoding.encode_chunk("projects/p/uploads/u", 5 << 40, size, fill))
    assert made == blob_pb2.WriteUploadRequest(name="projects/p/uploads/u", offset=5 << 40, data=data)
