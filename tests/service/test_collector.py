"""What is collected, what never is, and what becomes of blobs that are lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.service.conftest import QUICK
from tests.service.disk import LIMITS, Disk
from tests.service.stubs import Client, manifest_of, reason_of, refused
from tests.support.service import FAULTY_RUNNER, ServiceProcess, wait_until

from mindeval.formats.digest import digest_bytes
from mindeval.service.errors import ServiceError
from mindeval.service.storage.records import CheckpointContent, ConflictPolicy, NewEvaluation, State, now_us
from mindeval.v1 import checkpoint_pb2, checkpoint_pb2_grpc
from mindeval.v1 import evaluation_pb2 as pb

BUDGET_BYTES = 10_000


def data(number: int, size: int = 1_000) -> bytes:
    return random.Random(number).randbytes(size)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    disks: list[Disk] = []

    def make_disk(**options: object) -> Disk:
        disks.append(Disk(tmp_path, **{"budget_bytes": BUDGET_BYTES, "grace_s": 0.001, **options}))  # type: ignore[arg-type]
        return disks[-1]

    yield make_disk
    for disk in disks:
        disk.close()


async def fill(disk: Disk, *numbers: int) -> list[str]:
    """Stores blobs, used one after the other, the first one longest ago."""
    digests = [await disk.put(data(number)) for number in numbers]
    for age, digest in enumerate(digests):
        disk.age(digest, use_us=1_000 + age)
    return digests


def evaluation(checkpoint: str, content: CheckpointContent | None = None) -> NewEvaluation:
    return NewEvaluation(
        project="p",
        request_id="",
        payload_hash="h",
        suite="projects/p/suites/s",
        suite_version="projects/p/suites/s/versions/" + "1" * 64,
        dataset_versions=(),
        checkpoint=checkpoint,
        evaluator_build="build",
        run="",
        step=0,
        epoch=0.0,
        timeout_s=None,
        parameters={},
        natural_key="",
        conflict_policy=ConflictPolicy.USE_EXISTING,
        content=content,
    )


async def test_the_longest_unused_go_first_and_no_more_than_necessary(make: Callable[..., Disk]) -> None:
    disk = make()
    digests = await fill(disk, *range(10))
    disk.age(digests[0], use_us=5_000)
    assert disk.index.usage("p") == BUDGET_BYTES
    await disk.put(data(10, 2_500))
    assert disk.held(*digests) == {digests[0], *digests[4:]}
    assert disk.index.usage("p") == 9_500
    assert sum(path.stat().st_size for path in disk.files()) == 9_500


async def test_without_a_budget_nothing_goes(make: Callable[..., Disk]) -> None:
    disk = make(budget_bytes=0)
    digests = await fill(disk, *range(12))
    await disk.collector.run()
    assert disk.held(*digests) == set(digests)


async def test_projects_have_budgets_of_their_own(make: Callable[..., Disk]) -> None:
    disk = make()
    digests = await fill(disk, *range(10))
    record = await disk.uploads.create("q", digest_bytes(data(0, 9_000)), 9_000)
    async with disk.uploads.writing("q", record.id) as writer:
        await writer.append(0, data(0, 9_000))
    assert (await disk.uploads.commit("q", record.id)).complete
    assert disk.held(*digests) == set(digests)


async def test_what_cannot_fit_is_refused_before_it_is_sent(make: Callable[..., Disk]) -> None:
    disk = make()
    digests = await fill(disk, *range(8))
    checkpoint = CheckpointContent(digests[0], dict.fromkeys(digests, 1_000), 7)
    disk.access.store.checkpoints.register("p", checkpoint)
    disk.access.store.checkpoints.pin("p", digests[0], True)
    for size in (2_001, 1 << 29):
        with pytest.raises(ServiceError, match="QUOTA_EXCEEDED") as caught:
            await disk.uploads.create("p", digest_bytes(data(99, 10)), size)
        assert caught.value.metadata["budget_bytes"] == str(BUDGET_BYTES)
    with pytest.raises(ServiceError, match="QUOTA_EXCEEDED"):
        await disk.pack(data(20), data(21), data(22))
    assert disk.index.uploads() == [] or all(upload.complete for upload in disk.index.uploads())
    assert list(disk.directory.uploads.iterdir()) == []
    await disk.put(data(30, 2_000))
    assert disk.held(*digests) == set(digests)
    # Unpinned, it makes room.
    disk.access.store.checkpoints.pin("p", digests[0], False)
    await disk.put(data(31, 5_000))


async def test_open_uploads_are_reckoned_in_until_nobody_touches_them(make: Callable[..., Disk]) -> None:
    disk = make()
    first = await disk.uploads.create("p", digest_bytes(b"1"), 6_000)
    again = await disk.uploads.create("p", digest_bytes(b"1"), 6_000)
    assert first.id == again.id
    disk.index.advance(first.id, 0, now_us() + round(LIMITS.upload_ttl_s * 1e6))
    grace = make_longer_grace(disk)
    with pytest.raises(ServiceError, match="QUOTA_EXCEEDED"):
        await grace.create("p", digest_bytes(b"2"), 6_000)
    disk.index.advance(first.id, 0, now_us() + 1_000_000)
    await grace.create("p", digest_bytes(b"2"), 6_000)


def make_longer_grace(disk: Disk):  # type: ignore[no-untyped-def]
    """Uploads of the same disk, with a grace time of ten seconds."""
    collector = type(disk.collector)(
        disk.access, disk.library, disk.spool, disk.background, BUDGET_BYTES, LIMITS.upload_ttl_s, 10.0
    )
    return type(disk.uploads)(disk.access, disk.library, disk.spool, disk.background, LIMITS, collector)


@pytest.mark.parametrize("state", ["queued", "running", "cancelling", "ended"])
async def test_what_evaluations_need_stays_until_they_have_ended(make: Callable[..., Disk], state: str) -> None:
    disk = make()
    digests = await fill(disk, *range(9))
    content = CheckpointContent(digests[0], dict.fromkeys(digests[:4], 1_000), 3)
    record, _ = disk.access.store.evaluations.create(evaluation(digests[0], content))
    if state != "queued":
        started = disk.access.store.evaluations.start_next("cpu:0", "build")
        assert started is not None
        if state == "cancelling":
            disk.access.store.evaluations.cancel("p", record.id, "")
        if state == "ended":
            disk.access.store.evaluations.finish(record.uid, started.attempt_token, State.SUCCEEDED, None, None)
    await disk.put(data(20, 6_000))
    assert disk.held(*digests) == set(digests[5:] if state == "ended" else digests[:4])


async def test_files_of_registered_datasets_stay(make: Callable[..., Disk]) -> None:
    disk = make()
    digests = await fill(disk, *range(9))
    files = [{"path": "a", "digest": digests[1], "size_bytes": 1_000}]
    for version, entries in (("1" * 64, files), ("2" * 64, [])):
        disk.access.store.registry.put("p", "datasets", "d", version, {"files": entries})
    await disk.put(data(20, 8_000))
    assert digests[1] in disk.held(*digests)
    assert digests[0] not in disk.held(*digests)


async def test_what_was_found_present_stays_for_the_grace_time(make: Callable[..., Disk]) -> None:
    disk = make(grace_s=3_600.0)
    digests = await fill(disk, *range(10))
    assert set(await disk.library.sizes("p", digests[:5])) == set(digests[:5])
    with pytest.raises(ServiceError, match="QUOTA_EXCEEDED"):
        await disk.put(data(20, 6_000))
    assert disk.held(*digests) >= set(digests[:5])
    await disk.put(data(21, 4_000))
    assert disk.held(*digests) >= set(digests[:5])
    # Use is not written down again and again.
    before = disk.index.find("p", digests[:1])[digests[0]]
    await disk.library.sizes("p", digests[:1])
    assert disk.index.find("p", digests[:1])[digests[0]] == before
    hour_us = 3_600_000_000
    disk.age(*digests[:5], use_us=now_us() - hour_us - hour_us // 4 - 1_000_000)
    await disk.put(data(22, 5_000))


async def test_what_is_read_stays_where_it_is(make: Callable[..., Disk]) -> None:
    disk = make()
    digests = await fill(disk, *range(10))
    async with disk.library.leased("p", digests[:1], "the test") as lease:
        await asyncio.sleep(0.01)
        disk.age(digests[0])
        await disk.put(data(20, 9_500))
        assert disk.held(digests[0]) == set()
        assert len(lease.locations) == 1
        assert (disk.directory.root / lease.locations[digests[0]].path).read_bytes() == data(0)
    assert len(disk.files()) == 1


async def test_packed_blobs_are_collected_one_by_one(make: Callable[..., Disk]) -> None:
    disk = make()
    digests = await disk.pack(*(data(number) for number in range(10)))
    for age, digest in enumerate(digests):
        disk.age(digest, use_us=1_000 + age)
    await disk.put(data(20, 7_000))
    assert disk.held(*digests) == set(digests[7:])
    assert sum(path.stat().st_size for path in disk.files()) == 10_000
    assert [await disk.read(digest) for digest in digests[7:]] == [data(7), data(8), data(9)]


async def test_nothing_needed_is_ever_collected(make: Callable[..., Disk]) -> None:
    rng = random.Random(3)
    disk = make()
    pinned: set[str] = set()
    for round_ in range(40):
        datas = [data(round_ * 10 + i, rng.randrange(100, 900)) for i in range(3)]
        try:
            digests = await disk.pack(*datas) if rng.random() < 0.5 else [await disk.put(one) for one in datas]
        except ServiceError as error:
            assert error.reason == "QUOTA_EXCEEDED"
            assert sum(disk.index.find("p", sorted(pinned))[digest].size_bytes for digest in pinned) > 6_000
            digests = []
        if digests and rng.random() < 0.3 and len(pinned) < 15:
            sizes = {digest: len(one) for digest, one in zip(digests, datas)}
            disk.access.store.checkpoints.register("p", CheckpointContent(digests[0], sizes, 2))
            disk.access.store.checkpoints.pin("p", digests[0], True)
            pinned.update(digests)
        await asyncio.sleep(0.002)
        assert disk.held(*sorted(pinned)) == pinned
        assert disk.index.usage("p") <= BUDGET_BYTES
    await disk.background.settle()
    for digest in pinned:
        assert digest_bytes(await disk.read(digest)) == digest
    assert disk.index.usage("p") == sum(blob.size_bytes for blob in disk.index.below("p", "blake3:"))


class TestLostBlobs:
    """Files that vanish or change behind the service's back."""

    @pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
    async def test_a_lost_blob_is_found_by_who_reads_it(self, make: Callable[..., Disk], how: str) -> None:
        disk = make()
        alone, whole = await disk.put(data(1)), await disk.put(data(2))
        first, second = await disk.pack(data(3), data(4))
        for digest in (alone, second):
            damage(disk.path(digest), how, at=-10)
            with pytest.raises(ServiceError, match="BLOB_MISSING") as caught:
                await disk.read(digest)
            assert caught.value.metadata["digest"] == digest
            assert disk.held(digest) == set()
        assert await disk.read(whole) == data(2)
        if how == "flipped":
            assert await disk.read(first) == data(3)
        assert await disk.put(data(1)) == alone
        await disk.pack(data(3), data(4))
        assert [await disk.read(digest) for digest in (alone, first, second)] == [data(1), data(3), data(4)]

    async def test_sound_blobs_stay(self, make: Callable[..., Disk]) -> None:
        disk = make()
        digests = [await disk.put(data(1)), *await disk.pack(data(2), data(3))]
        assert await disk.library.drop_damaged("p", [*digests, digest_bytes(b"never heard of")]) == []
        damage(disk.path(digests[2]), "flipped", at=-10)
        assert await disk.library.drop_damaged("p", digests) == [digests[2]]
        assert disk.held(*digests) == set(digests[:2])

    async def test_the_check_finds_what_is_lost_and_removes_what_is_left_over(self, make: Callable[..., Disk]) -> None:
        disk = make()
        alone = [await disk.put(data(number)) for number in range(4)]
        packed = await disk.pack(data(10), data(11))
        others = await disk.pack(data(12), data(13))
        damage(disk.path(alone[0]), "gone")
        damage(disk.path(alone[1]), "cut")
        damage(disk.path(packed[0]), "cut")
        stray = [disk.directory.root / "packs/p" / ("0" * 32), disk.directory.root / "blobs/p/ab" / ("ab" * 32)]
        for path in stray:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"left over")
        await disk.collector.check()
        assert disk.held(*alone, *packed, *others) == {*alone[2:], *others}
        assert not any(path.exists() for path in stray)
        assert len(disk.files()) == 3
        await disk.collector.check()
        assert len(disk.files()) == 3

    def test_evaluations_say_what_is_missing_and_a_push_mends_it(self) -> None:
        with ServiceProcess(runner_command=FAULTY_RUNNER, **QUICK) as service:
            with service.channel() as channel:
                client = Client(channel, "p")
                suite, checkpoint = client.suite("s"), client.checkpoint("the weights")
                name = client.create(client.spec(suite, checkpoint)).evaluation.name
                assert client.finished(name).state == pb.EVALUATION_STATE_SUCCEEDED
                digest = manifest_of("the weights").tensors[0].digest
                path = next((service.data_dir / "blobs/p").rglob(digest[7:]))
                path.unlink()
                with refused("BLOB_NOT_FOUND") as refusals:
                    client.read_blob(digest)
                assert refusals[0].code == grpc.StatusCode.NOT_FOUND
                assert client.missing(digest) == [digest]
                with refused("BLOB_MISSING"):
                    client.create(client.spec(suite, checkpoint))
                client.checkpoint("the weights")
                # Lost while it waits in the queue.
                path.unlink()
                name = client.create(client.spec(suite, checkpoint)).evaluation.name
                assert reason_of(client.finished(name).error) == "BLOB_MISSING"
                assert client.missing(digest) == [digest]
                client.checkpoint("the weights")
                path.unlink()
            service.restart()
            with service.channel() as channel:
                client = Client(channel, "p")
                wait_until(lambda: client.missing(digest) == [digest], what="the check at the start")


def test_a_service_keeps_its_budget() -> None:
    settings = {"project_budget_bytes": 30_000, "blob_grace_s": 0.05}
    with ServiceProcess(runner_command=FAULTY_RUNNER, **settings, **QUICK) as service, service.channel() as channel:
        client = Client(channel, "p")
        suite = client.suite("s")
        stub = checkpoint_pb2_grpc.CheckpointServiceStub(channel)
        weights = ["".join(random.Random(number).choices("abcdef", k=4_000)) for number in range(10)]
        first = client.checkpoint(weights[0])
        request = checkpoint_pb2.CreateCheckpointRequest(parent=client.parent, manifest=first)
        name = stub.CreateCheckpoint(request, timeout=20).checkpoint.name
        stub.PinCheckpoint(checkpoint_pb2.PinCheckpointRequest(name=name, pinned=True), timeout=20)
        for text in weights[1:]:
            evaluation_ = client.create(client.spec(suite, client.checkpoint(text))).evaluation
            assert client.finished(evaluation_.name).state == pb.EVALUATION_STATE_SUCCEEDED
        wait_until(lambda: client.missing(digest_bytes(weights[1].encode())), what="the collection")
        assert client.missing(digest_bytes(weights[0].encode()), first) == []
        with refused("QUOTA_EXCEEDED") as refusals:
            client.create_upload(digest_bytes(b"large"), 29_000)
        assert refusals[0].code == grpc.StatusCode.RESOURCE_EXHAUSTED


def damage(path: Path, how: str, at: int = 0) -> None:
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
        return
    if how == "cut":
        content = content[:-5]
    else:
        content[at] ^= 1
    path.write_bytes(content)
