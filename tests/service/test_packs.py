"""Many small blobs in one stream, and the packs that they lie in."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.service.conftest import QUICK
from tests.service.disk import Disk
from tests.service.stubs import TIMEOUT_S, Client, refusal_of, refused
from tests.support.service import FAULTY_RUNNER, ServiceProcess, wait_until

from mindeval.formats.digest import digest_bytes
from mindeval.service.errors import ServiceError
from mindeval.service.runtime.messages import BlobLocation
from mindeval.service.storage import packs
from mindeval.service.storage.compaction import compact
from mindeval.v1 import blob_pb2 as pb

LIMIT_BYTES = 256 << 10


def small(number: int, size: int = 40) -> bytes:
    return random.Random(number).randbytes(size)


def request(*blobs: bytes, parent: str = "", **wrong: bytes) -> pb.WriteSmallBlobsRequest:
    """A message with these blobs, then those of `wrong` under a digest that is not theirs."""
    message = pb.WriteSmallBlobsRequest(parent=parent)
    for data in blobs:
        message.blobs.add(digest=digest_bytes(data), data=data)
    for name, data in wrong.items():
        message.blobs.add(digest=digest_bytes(name.encode()), data=data)
    return message


def send(client: Client, *requests: pb.WriteSmallBlobsRequest, timeout_s: float = TIMEOUT_S) -> int:
    if requests:
        requests[0].parent = client.parent
    return client.blobs.WriteSmallBlobs(iter(requests), timeout=timeout_s).stored_count


def test_small_blobs_are_there_when_the_call_returns(client: Client) -> None:
    blobs = [b"", b"x", small(1, LIMIT_BYTES), small(2), small(3)]
    digests = [digest_bytes(data) for data in blobs]
    assert client.missing(*digests) == digests
    assert send(client, request(*blobs[:2]), request(*blobs[2:])) == 5
    assert client.missing(*digests) == []
    assert [client.read_blob(digest) for digest in digests] == blobs
    assert client.read_blob(digests[2], offset=1000, limit_bytes=10) == blobs[2][1000:1010]
    assert client.read_blob(digests[3], offset=40) == b""
    upload = client.create_upload(digests[3], 40)
    assert (upload.complete, upload.name) == (True, "")


def test_repeating_is_harmless(client: Client) -> None:
    assert send(client, request(small(1), small(2), small(1))) == 2
    assert send(client, request(small(1), small(2))) == 0
    assert send(client, request(small(2), small(3)), request(small(3))) == 1
    own = client.put_blob(small(4))
    assert send(client, request(small(4), small(5))) == 1
    assert client.read_blob(own) == small(4)
    assert send(client, request()) == 0


def test_a_wrong_digest_ends_the_stream_and_those_before_it_stay(client: Client) -> None:
    before, after = small(1), small(2)
    with refused("DIGEST_MISMATCH") as refusals:
        send(client, request(small(0)), request(before, wrong=b"other bytes"), request(after))
    assert refusals[0].code == grpc.StatusCode.DATA_LOSS
    assert refusals[0].metadata["digest"] == digest_bytes(b"wrong")
    digests = [digest_bytes(data) for data in (small(0), before, b"wrong", after)]
    assert client.missing(*digests) == digests[2:]
    assert client.read_blob(digests[1]) == before


def test_limits_are_kept(client: Client) -> None:
    name = f"{client.parent}x" * 40
    many = pb.WriteSmallBlobsRequest(blobs=[pb.SmallBlob(digest=digest_bytes(b""))] * 4_097)
    calls = [
        lambda: send(client),
        lambda: client.blobs.WriteSmallBlobs(iter([request(b"x")]), timeout=TIMEOUT_S),
        lambda: client.blobs.WriteSmallBlobs(iter([request(b"x", parent=name)]), timeout=TIMEOUT_S),
        lambda: send(client, request(bytes(LIMIT_BYTES + 1))),
        lambda: send(client, request(*(small(i, LIMIT_BYTES) for i in range(4)), b"x")),
        lambda: send(client, many),
        lambda: send(client, pb.WriteSmallBlobsRequest(blobs=[pb.SmallBlob(digest="blake3:xyz", data=b"x")])),
    ]
    for number, call in enumerate(calls):
        with refused("INVALID_FIELD") as refusals:
            call()
        assert refusals[0].metadata["field"], number
    full = [small(i, LIMIT_BYTES) for i in range(4)]
    assert send(client, request(*full)) == 4
    for size in (4 << 20, 5 << 20):
        with pytest.raises(grpc.RpcError) as caught:
            send(client, request(bytes(size)))
        assert caught.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


def test_streams_of_the_same_blobs_at_the_same_time(client: Client) -> None:
    blobs = [small(number) for number in range(2_000)]
    counts: list[int] = []

    def work(seed: int) -> None:
        mine = random.Random(seed).sample(blobs, len(blobs))
        counts.append(send(client, *(request(*mine[begin : begin + 100]) for begin in range(0, 2_000, 100))))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 2_000
    for number in random.Random(0).sample(range(2_000), 50):
        assert client.read_blob(digest_bytes(blobs[number])) == blobs[number]


def test_a_hundred_thousand_tiny_blobs(client: Client) -> None:
    blobs = [number.to_bytes(4, "big") * 4 for number in range(100_000)]

    def requests() -> Iterator[pb.WriteSmallBlobsRequest]:
        for begin in range(0, len(blobs), 4_000):
            yield request(*blobs[begin : begin + 4_000], parent=client.parent if begin == 0 else "")

    began = time.monotonic()
    assert client.blobs.WriteSmallBlobs(requests(), timeout=120).stored_count == 100_000
    seconds = time.monotonic() - began
    print(f"100,000 blobs in {seconds:.1f} s")
    assert seconds < 60
    digests = [digest_bytes(data) for data in blobs]
    for begin in range(0, len(digests), 10_000):
        assert client.missing(*digests[begin : begin + 10_000]) == []
    assert client.read_blob(digests[77_777]) == blobs[77_777]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.close()


def bytes_at(location: BlobLocation) -> bytes:
    return Path(location.path).read_bytes()[location.offset :][: location.size_bytes]


async def test_many_blobs_share_a_file_and_large_streams_have_several(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await disk.pack(*(small(number) for number in range(500)))
    assert len(disk.files()) == 1
    monkeypatch.setattr(packs, "MAX_PACK_BLOBS", 100)
    batch = disk.uploads.small_blobs("p")
    for begin in range(500, 1_000, 50):
        await batch.add([(digest_bytes(small(number)), small(number)) for number in range(begin, begin + 50)])
    assert batch.stored_count == 500
    assert await batch.finish() == 500
    assert len(disk.files()) == 6
    assert list(disk.directory.uploads.iterdir()) == []


async def test_nothing_is_visible_before_the_end_and_nothing_is_left_of_a_stream_that_is_given_up(disk: Disk) -> None:
    batch = disk.uploads.small_blobs("p")
    await batch.add([(digest_bytes(small(1)), small(1))])
    assert disk.held(digest_bytes(small(1))) == set()
    assert len(list(disk.directory.uploads.iterdir())) == 1
    await batch.discard()
    assert list(disk.directory.uploads.iterdir()) == disk.files() == []
    # As a crash leaves it.
    await disk.uploads.small_blobs("p").add([(digest_bytes(small(1)), small(1))])
    await disk.uploads.recover()
    assert list(disk.directory.uploads.iterdir()) == []


async def test_a_full_disk_is_said_and_takes_nothing_along(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (await disk.pack(small(0)))[0]
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        if len(data) > 100:
            real_write(fd, bytes(data[:50]))
            raise OSError(28, "No space left on device")
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await disk.pack(small(1), small(2), small(3))
    # What came before it in the same stream can be finished.
    batch = disk.uploads.small_blobs("p")
    await batch.add([(digest_bytes(small(4)), small(4))])
    with pytest.raises(ServiceError, match="STORAGE_FULL"):
        await batch.add([(digest_bytes(small(number)), small(number)) for number in (1, 2, 3)])
    await batch.add([(digest_bytes(small(5)), small(5))])
    assert await batch.finish() == 2
    monkeypatch.undo()
    assert [await disk.read(digest_bytes(small(number))) for number in (4, 5)] == [small(4), small(5)]
    assert disk.held(*(digest_bytes(small(number)) for number in range(4))) == {first}
    assert list(disk.directory.uploads.iterdir()) == []
    digests = await disk.pack(small(1), small(2), small(3))
    assert disk.held(*digests) == set(digests)


async def test_the_same_blob_as_upload_and_in_a_pack_is_kept_once(disk: Disk) -> None:
    upload_id = await disk.upload(small(1))
    (digest,) = await disk.pack(small(1))
    assert (await disk.uploads.commit("p", upload_id)).complete
    assert len(disk.files()) == 1
    assert await disk.read(digest) == small(1)
    assert disk.index.usage("p") == 40


async def test_packs_that_are_mostly_empty_are_written_anew(disk: Disk) -> None:
    digests = await disk.pack(*(small(number, 1_000) for number in range(10)))
    (old,) = disk.files()
    disk.index.remove("p", digests[:5])
    assert await compact(disk.access, disk.library, disk.spool, "p") == 0
    disk.index.remove("p", digests[5:8])
    assert await compact(disk.access, disk.library, disk.spool, "p") == 1
    (new,) = disk.files()
    assert new != old
    assert new.stat().st_size == 2_000
    assert [await disk.read(digest) for digest in digests[8:]] == [small(8, 1_000), small(9, 1_000)]
    disk.index.remove("p", digests)
    await compact(disk.access, disk.library, disk.spool, "p")
    assert disk.files() == []
    assert disk.index.packs("p") == []


async def test_a_pack_that_is_read_stays_until_the_reader_is_done(disk: Disk) -> None:
    digests = await disk.pack(*(small(number, 1_000) for number in range(10)))
    async with disk.library.leased("p", digests[9:], "the test") as lease:
        location = lease.locations[digests[9]]
        disk.index.remove("p", digests[:9])
        await compact(disk.access, disk.library, disk.spool, "p")
        assert bytes_at(location) == small(9, 1_000)
        async with disk.library.leased("p", digests[9:], "the test") as other:
            assert other.locations[digests[9]].path != location.path
    assert location.path not in map(str, disk.files())
    assert await disk.read(digests[9]) == small(9, 1_000)


async def test_damaged_bytes_are_not_carried_on(disk: Disk) -> None:
    digests = await disk.pack(*(small(number, 1_000) for number in range(10)))
    disk.index.remove("p", digests[:8])
    (path,) = disk.files()
    content = bytearray(path.read_bytes())
    content[8_500] ^= 1
    path.write_bytes(content)
    await compact(disk.access, disk.library, disk.spool, "p")
    assert disk.held(*digests) == {digests[9]}
    assert await disk.read(digests[9]) == small(9, 1_000)


async def test_packs_are_written_anew_while_others_come_and_go(disk: Disk) -> None:
    rng = random.Random(7)
    kept: dict[str, bytes] = {}

    async def push(number: int) -> None:
        datas = [small(number * 100 + i, 200) for i in range(20)]
        for digest, data in zip(await disk.pack(*datas), datas):
            kept[digest] = data
        gone = rng.sample(sorted(kept), len(kept) // 3)
        for digest in gone:
            del kept[digest]
        await disk.access.write(disk.index.remove, "p", gone)

    async def read() -> None:
        for _ in range(60):
            digest = rng.choice(sorted(kept) or [""])
            if digest:
                data = kept[digest]
                try:
                    assert await disk.read(digest) == data
                except ServiceError as error:
                    assert error.reason == "BLOB_MISSING"
                    assert digest not in kept
            await asyncio.sleep(0)

    async def tidy() -> None:
        for _ in range(20):
            await compact(disk.access, disk.library, disk.spool, "p")

    await asyncio.gather(*(push(number) for number in range(12)), read(), read(), tidy())
    await compact(disk.access, disk.library, disk.spool, "p")
    assert disk.held(*kept) == set(kept)
    for digest, data in kept.items():
        assert await disk.read(digest) == data
    assert len(disk.files()) == len(disk.index.packs("p"))


def test_a_stream_that_is_cut_can_be_sent_again(client: Client, service: ServiceProcess) -> None:
    release = threading.Event()
    blobs = [small(number) for number in range(300)]

    def requests() -> Iterator[pb.WriteSmallBlobsRequest]:
        yield request(*blobs[:100], parent=client.parent)
        yield request(*blobs[100:])
        release.wait(TIMEOUT_S)

    spool = service.data_dir / "uploads"
    call = client.blobs.WriteSmallBlobs.future(requests(), timeout=TIMEOUT_S)
    wait_until(lambda: any(path.stat().st_size for path in spool.glob("pack-*")), what="the first bytes")
    call.cancel()
    release.set()
    wait_until(lambda: not list(spool.glob("pack-*")), what="the end of the stream")
    # Whether what had come is kept depends on what the service sees first; what is there is whole.
    assert send(client, request(*blobs)) in (0, 100, 200, 300)
    assert client.missing(*map(digest_bytes, blobs)) == []
    assert all(client.read_blob(digest_bytes(data)) == data for data in blobs[::50])


def test_a_service_that_shuts_down_ends_streams_and_keeps_what_came(tmp_path: Path) -> None:
    with ServiceProcess(runner_command=FAULTY_RUNNER, **QUICK) as service:
        release = threading.Event()
        with service.channel() as channel:
            client = Client(channel, "p")

            def requests() -> Iterator[pb.WriteSmallBlobsRequest]:
                yield request(small(1), parent=client.parent)
                release.wait(TIMEOUT_S)

            call = client.blobs.WriteSmallBlobs.future(requests(), timeout=TIMEOUT_S)
            spool = service.data_dir / "uploads"
            wait_until(lambda: any(path.stat().st_size for path in spool.glob("pack-*")), what="the first bytes")
            assert service.stop() == 0
            error = call.exception()
            release.set()
            assert refusal_of(error).reason == "SERVICE_DRAINING"
        service.start()
        with service.channel() as channel:
            assert Client(channel, "p").missing(digest_bytes(small(1))) == []
