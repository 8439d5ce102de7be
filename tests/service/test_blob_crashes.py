"""The service is killed at random moments while blobs come in: nothing half-visible, everything acknowledged there."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from tests.service.conftest import QUICK
from tests.service.stubs import CHUNK_BYTES, Client
from tests.support.service import FAULTY_RUNNER, ServiceProcess

from mindeval.formats.digest import digest_bytes
from mindeval.v1 import blob_pb2 as pb

SYNC_BYTES = 1 << 20
# Blobs that are read after a kill, for each client.
READ = 60


class Pusher:
    """Sends blobs until the service is gone, and remembers what it was told."""

    def __init__(self, service: ServiceProcess, seed: int) -> None:
        self.rng = random.Random(seed)
        self.acknowledged: dict[str, int] = {}
        self.sent: dict[str, bytes] = {}
        self.promised: dict[str, tuple[bytes, int]] = {}
        self._service = service

    def run(self) -> None:
        with self._service.channel() as channel:
            client = Client(channel, "p")
            try:
                while True:
                    self.rng.choice((self.upload, self.small_blobs))(client)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error

    def upload(self, client: Client) -> None:
        data = self.rng.randbytes(self.rng.randrange(1, 4 << 20))
        digest = digest_bytes(data)
        self.sent[digest] = data
        upload = client.create_upload(digest, len(data))
        half = self.rng.randrange(len(data))
        self.promised[digest] = (data, client.write(upload.name, data[:half]) if half else 0)
        self.promised[digest] = (data, client.write(upload.name, data[half:], half))
        if client.commit(upload.name).complete:
            self.acknowledged[digest] = len(data)

    def small_blobs(self, client: Client) -> None:
        blobs = [self.rng.randbytes(self.rng.randrange(0, 3_000)) for _ in range(self.rng.randrange(1, 400))]
        self.sent.update((digest_bytes(data), data) for data in blobs)

        def requests() -> Iterator[pb.WriteSmallBlobsRequest]:
            for begin in range(0, len(blobs), 50):
                request = pb.WriteSmallBlobsRequest(parent=client.parent)
                for data in blobs[begin : begin + 50]:
                    request.blobs.add(digest=digest_bytes(data), data=data)
                yield request

        client.blobs.WriteSmallBlobs(requests(), timeout=20)
        self.acknowledged.update((digest_bytes(data), len(data)) for data in blobs)


def check(client: Client, pusher: Pusher) -> None:
    """What was acknowledged is there, what is there is whole, and what was promised can be resumed."""
    digests = sorted(pusher.sent)
    missing = set(client.missing(*digests))
    assert not missing & pusher.acknowledged.keys()
    there = [digest for digest in digests if digest not in missing]
    for digest in pusher.rng.sample(there, min(len(there), READ)):
        assert client.read_blob(digest) == pusher.sent[digest]
    for digest, (data, offset) in pusher.promised.items():
        if digest in missing:
            upload = client.create_upload(digest, len(data))
            assert offset <= upload.committed_offset <= len(data)
            client.write(upload.name, data[upload.committed_offset :], upload.committed_offset)
            assert client.commit(upload.name).complete
            assert client.read_blob(digest) == data


def rounds(count: int) -> None:
    settings = {**QUICK, "upload_sync_bytes": SYNC_BYTES}
    with ServiceProcess(runner_command=FAULTY_RUNNER, **settings) as service:
        acknowledged = 0
        for seed in range(count):
            pushers = [Pusher(service, seed * 10 + number) for number in range(3)]
            failures: list[BaseException] = []
            threads = [threading.Thread(target=kept(pusher.run, failures)) for pusher in pushers]
            for thread in threads:
                thread.start()
            time.sleep(random.Random(seed).uniform(0.0, 0.6))
            service.kill()
            for thread in threads:
                thread.join()
            assert failures == []
            service.start()
            with service.channel() as channel:
                for pusher in pushers:
                    check(Client(channel, "p"), pusher)
                    acknowledged += len(pusher.acknowledged)
        assert acknowledged > 0
        # Nothing is left of what was cut off, but for uploads that can be resumed.
        files = [path for top in ("blobs", "packs") for path in (service.data_dir / top).rglob("*") if path.is_file()]
        assert service.stop() == 0
        assert all(not path.name.startswith("pack-") for path in (service.data_dir / "uploads").iterdir())
        assert files


def kept(work: Callable[[], None], failures: list[BaseException]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    return run


def test_killed_in_the_middle_of_pushes() -> None:
    rounds(3)


@pytest.mark.slow
def test_killed_in_the_middle_of_many_pushes() -> None:
    rounds(20)


def test_slow_streams_take_little_memory() -> None:
    """Eight clients that send a megabyte now and then, and more than the service may buffer."""
    with ServiceProcess(runner_command=FAULTY_RUNNER, **QUICK) as service:
        base = resident_bytes(service, "VmRSS")

        def stream(number: int) -> None:
            data = random.Random(number).randbytes(24 << 20)
            with service.channel() as channel:
                client = Client(channel, "p")
                upload = client.create_upload(digest_bytes(data), len(data))

                def chunks() -> Iterator[pb.WriteUploadRequest]:
                    for offset in range(0, len(data), CHUNK_BYTES):
                        if offset % (8 << 20) == 0:
                            time.sleep(0.2)
                        yield pb.WriteUploadRequest(
                            name=upload.name, offset=offset, data=data[offset : offset + CHUNK_BYTES]
                        )

                assert client.blobs.WriteUpload(chunks(), timeout=60).committed_offset == len(data)
                assert client.commit(upload.name).complete

        failures: list[BaseException] = []
        threads = [threading.Thread(target=kept(lambda n=n: stream(n), failures)) for n in range(8)]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        peak = resident_bytes(service, "VmHWM")
        print(f"at first {base >> 20} MB, at most {peak >> 20} MB")
        assert peak < 200 << 20


def resident_bytes(service: ServiceProcess, field: str) -> int:
    with open(f"/proc/{service.pid}/status") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) << 10
