from __future__ import annotations

import itertools
import os
import random
import resource
import threading
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.message import DecodeError
from tests.service.conftest import QUICK
from tests.service.stubs import TIMEOUT_S, Client, refusal_of, refused
from tests.support.service import FAULTY_RUNNER, ServiceProcess, wait_until

from mindeval.formats.digest import digest_bytes
from mindeval.service.api.upload_chunks import parse_upload_chunk
from mindeval.v1 import blob_pb2

DATA = os.urandom(3 * (1 << 20) + 12_345)
NOTHING = "blake3:" + "0" * 64


@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "tiny", "chunks"])
def test_round_trip(client: Client, data: bytes) -> None:
    digest = digest_bytes(data)
    assert client.missing(digest, NOTHING) == [digest, NOTHING]
    upload = client.create_upload(digest, len(data))
    assert (upload.committed_offset, upload.complete, upload.digest) == (0, False, digest)
    assert upload.expire_time.seconds > 0
    assert client.write(upload.name, data) == len(data)
    assert client.missing(digest) == [digest]
    assert client.commit(upload.name).complete
    assert client.commit(upload.name).complete
    assert client.missing(digest) == []
    assert client.read_blob(digest) == data
    assert client.read_blob(digest, offset=len(data) // 2, limit_bytes=100) == data[len(data) // 2 :][:100]
    assert client.read_blob(digest, offset=len(data)) == b""
    again = client.create_upload(digest, len(data))
    assert (again.name, again.complete, again.committed_offset) == ("", True, len(data))


def test_blobs_belong_to_one_project(client: Client, channel: grpc.Channel) -> None:
    digest = client.put_blob(b"secret")
    other = Client(channel, "other-project")
    assert other.missing(digest) == [digest]
    with refused("BLOB_NOT_FOUND") as refusals:
        other.read_blob(digest)
    assert refusals[0].code == grpc.StatusCode.NOT_FOUND


def test_an_open_upload_is_found_again(client: Client) -> None:
    first = client.create_upload(digest_bytes(DATA), len(DATA))
    client.write(first.name, DATA[: 1 << 20])
    second = client.create_upload(digest_bytes(DATA), len(DATA))
    assert (second.name, second.committed_offset) == (first.name, 1 << 20)
    # Who lies about the size cannot be in the way of who does not.
    assert client.create_upload(digest_bytes(DATA), 5).name != first.name


def test_a_cut_stream_is_resumed_from_the_committed_offset(client: Client, service: ServiceProcess) -> None:
    upload = client.create_upload(digest_bytes(DATA), len(DATA))
    release = threading.Event()

    def chunks() -> Iterator[blob_pb2.WriteUploadRequest]:
        yield blob_pb2.WriteUploadRequest(name=upload.name, data=DATA[:1000])
        yield blob_pb2.WriteUploadRequest(offset=1000, data=DATA[1000:5000])
        release.wait(TIMEOUT_S)

    call = client.blobs.WriteUpload.future(chunks(), timeout=TIMEOUT_S)
    wait_until(lambda: written(service, upload.name) >= 1000, what="the first bytes")
    call.cancel()
    release.set()
    offset = wait_until(lambda: get_upload(client, upload.name).committed_offset, what="the flush")
    assert 0 < offset <= 5000
    wait_until(lambda: not is_busy(client, upload.name, offset), what="the release of the upload")
    assert client.write(upload.name, DATA[offset:], offset) == len(DATA)
    assert client.commit(upload.name).complete
    assert client.read_blob(upload.digest) == DATA


def test_only_one_stream_writes(client: Client, service: ServiceProcess) -> None:
    upload = client.create_upload(digest_bytes(DATA), len(DATA))
    release = threading.Event()

    def chunks() -> Iterator[blob_pb2.WriteUploadRequest]:
        yield blob_pb2.WriteUploadRequest(name=upload.name, data=DATA[: 1 << 20])
        release.wait(TIMEOUT_S)

    call = client.blobs.WriteUpload.future(chunks(), timeout=TIMEOUT_S)
    wait_until(lambda: written(service, upload.name) == 1 << 20, what="the bytes of the stream")
    with refused("UPLOAD_BUSY") as refusals:
        client.write(upload.name, b"")
    assert refusals[0].code == grpc.StatusCode.ABORTED
    assert any(hasattr(detail, "retry_delay") for detail in refusals[0].details)
    with refused("UPLOAD_BUSY"):
        client.commit(upload.name)
    release.set()
    assert call.result().committed_offset == 1 << 20
    assert client.write(upload.name, DATA[1 << 20 :], 1 << 20) == len(DATA)


def test_a_wrong_digest_is_never_visible(client: Client) -> None:
    digest = digest_bytes(b"right")
    upload = client.create_upload(digest, 5)
    client.write(upload.name, b"wrong")
    with refused("DIGEST_MISMATCH") as refusals:
        client.commit(upload.name)
    assert refusals[0].code == grpc.StatusCode.DATA_LOSS
    assert client.missing(digest) == [digest]
    for call in (client.commit, lambda name: get_upload(client, name), lambda name: client.write(name, b"right")):
        with refused("UPLOAD_NOT_FOUND"):
            call(upload.name)
    assert client.put_blob(b"right") == digest
    assert client.read_blob(digest) == b"right"


def test_offsets_and_sizes_are_kept(client: Client) -> None:
    upload = client.create_upload(digest_bytes(b"0123456789"), 10)
    with refused("UPLOAD_OFFSET_MISMATCH") as refusals:
        client.write(upload.name, b"345", 3)
    assert refusals[0].metadata["committed_offset"] == "0"
    client.write(upload.name, b"012")
    with refused("UPLOAD_OFFSET_MISMATCH") as refusals:
        client.write(upload.name, b"012")
    assert refusals[0].metadata["committed_offset"] == "3"
    with refused("UPLOAD_SIZE_MISMATCH"):
        client.commit(upload.name)
    with refused("UPLOAD_SIZE_MISMATCH"):
        client.write(upload.name, b"3456789abc", 3)
    assert client.write(upload.name, b"3456789", 3) == 10
    assert client.commit(upload.name).complete
    with refused("UPLOAD_SIZE_MISMATCH"):
        client.create_upload(upload.digest, 11)


def test_bad_fields(client: Client) -> None:
    large = blob_pb2.WriteUploadRequest(data=b"x" * ((1 << 20) + 1))
    upload = client.create_upload(NOTHING, 1 << 22)
    calls = [
        lambda: client.missing("blake3:xyz"),
        lambda: client.missing(*([NOTHING] * 10_001)),
        lambda: client.create_upload("sha256:" + "0" * 64, 1),
        lambda: client.create_upload(NOTHING, -1),
        lambda: client.create_upload(NOTHING, 1 << 50),
        lambda: get_upload(client, "uploads/x"),
        lambda: client.commit(f"projects/{client.project}/uploads/../x"),
        lambda: client.blobs.WriteUpload(iter(()), timeout=TIMEOUT_S),
        lambda: client.blobs.WriteUpload(
            iter((blob_pb2.WriteUploadRequest(name=upload.name), large)), timeout=TIMEOUT_S
        ),
        lambda: client.read_blob("x"),
        lambda: client.read_blob(client.put_blob(b"abc"), offset=4),
        lambda: client.read_blob(client.put_blob(b"abc"), limit_bytes=-1),
    ]
    for number, call in enumerate(calls):
        with refused("INVALID_FIELD") as refusals:
            call()
        assert refusals[0].code == grpc.StatusCode.INVALID_ARGUMENT, number
        assert refusals[0].metadata["field"], number
    with refused("UPLOAD_NOT_FOUND"):
        get_upload(client, f"{client.parent}/uploads/none")
    assert len(client.missing(*([NOTHING] * 10_000))) == 10_000


def test_a_killed_service_keeps_what_it_promised() -> None:
    with ServiceProcess(runner_command=FAULTY_RUNNER, upload_sync_bytes=1 << 20, **QUICK) as service:
        with service.channel() as channel:
            client = Client(channel, "p")
            upload = client.create_upload(digest_bytes(DATA), len(DATA))
            release = threading.Event()

            def chunks() -> Iterator[blob_pb2.WriteUploadRequest]:
                for offset in itertools.count(0, 300_000):
                    if offset >= 2_700_000:
                        break
                    yield blob_pb2.WriteUploadRequest(
                        name=upload.name, offset=offset, data=DATA[offset : offset + 300_000]
                    )
                release.wait(TIMEOUT_S)

            call = client.blobs.WriteUpload.future(chunks(), timeout=TIMEOUT_S)
            wait_until(lambda: get_upload(client, upload.name).committed_offset >= 2 << 20, what="two flushes")
            (file,) = (service.data_dir / "uploads").iterdir()
            wait_until(lambda: file.stat().st_size == 2_700_000, what="bytes beyond the flush")
            service.kill()
            release.set()
            call.exception()
        service.start()
        with service.channel() as channel:
            client = Client(channel, "p")
            again = client.create_upload(digest_bytes(DATA), len(DATA))
            assert again.name == upload.name
            assert 2 << 20 <= again.committed_offset < 2_700_000
            with refused("UPLOAD_OFFSET_MISMATCH"):
                client.write(again.name, DATA[2_700_000:], 2_700_000)
            offset = again.committed_offset
            assert client.write(again.name, DATA[offset:], offset) == len(DATA)
            assert client.commit(again.name).complete
            assert client.read_blob(again.digest) == DATA


def test_no_room_is_said_before_anything_is_sent() -> None:
    with ServiceProcess(runner_command=FAULTY_RUNNER, min_free_bytes=1 << 60) as service:
        with service.channel() as channel, refused("STORAGE_FULL") as refusals:
            Client(channel, "p").create_upload(NOTHING, 10)
        assert refusals[0].code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert any(hasattr(detail, "retry_delay") for detail in refusals[0].details)


def get_upload(client: Client, name: str) -> blob_pb2.Upload:
    return client.blobs.GetUpload(blob_pb2.GetUploadRequest(name=name), timeout=TIMEOUT_S).upload


def is_busy(client: Client, name: str, offset: int) -> bool:
    try:
        client.write(name, b"", offset)
    except grpc.RpcError as error:
        assert refusal_of(error).reason == "UPLOAD_BUSY"
        return True
    return False


def written(service: ServiceProcess, name: str) -> int:
    """Bytes in the file of an upload; more than 0 only while, or after, a stream has had it."""
    file = service.data_dir / "uploads" / name.rpartition("/")[2]
    return file.stat().st_size if file.exists() else 0


def test_a_full_disk_is_said_and_uploads_go_on_when_there_is_room() -> None:
    """A limit on the size of files stands for the full disk: the kernel refuses the write, whoever asks."""
    limit = 6 << 20
    data = os.urandom(limit + (2 << 20))
    small = [bytes([number]) * (250 << 10) for number in range(40)]
    with ServiceProcess(runner_command=FAULTY_RUNNER, upload_sync_bytes=1 << 20, **QUICK) as service:
        _, most = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (limit, most))
        with service.channel() as channel:
            client = Client(channel, "p")
            upload = client.create_upload(digest_bytes(data), len(data))
            with refused("STORAGE_FULL") as refusals:
                client.write(upload.name, data)
            assert refusals[0].code == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert get_upload(client, upload.name).committed_offset == limit
            with refused("STORAGE_FULL"):
                put_small(client, small)
            stored = {digest_bytes(one) for one in small} - set(client.missing(*map(digest_bytes, small)))
            for one in small:
                if digest_bytes(one) in stored:
                    assert client.read_blob(digest_bytes(one)) == one
            resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (most, most))
            assert client.write(upload.name, data[limit:], limit) == len(data)
            assert client.commit(upload.name).complete
            assert client.read_blob(upload.digest) == data
            assert put_small(client, small) == len(small) - len(stored)
            assert client.missing(*map(digest_bytes, small)) == []


def put_small(client: Client, blobs: list[bytes]) -> int:
    requests = []
    for begin in range(0, len(blobs), 4):
        request = blob_pb2.WriteSmallBlobsRequest(parent=client.parent)
        for data in blobs[begin : begin + 4]:
            request.blobs.add(digest=digest_bytes(data), data=data)
        requests.append(request)
    return client.blobs.WriteSmallBlobs(iter(requests), timeout=TIMEOUT_S).stored_count


class TestUploadChunks:
    """The hand-made parser gives what the generated class gives."""

    def check(self, data: bytes) -> None:
        try:
            expected = blob_pb2.WriteUploadRequest.FromString(data)
        except DecodeError:
            with pytest.raises(DecodeError):
                parse_upload_chunk(data)
            return
        chunk = parse_upload_chunk(data)
        assert (chunk.name, chunk.offset, bytes(chunk.data)) == (expected.name, expected.offset, expected.data)

    @pytest.mark.parametrize("name", ["", "projects/p/uploads/x", "ü" * 200])
    @pytest.mark.parametrize("offset", [0, 1, 127, 128, 2**40, 2**63 - 1, -1, -(2**63)])
    @pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
    def test_messages_as_they_are_written(self, name: str, offset: int, size: int) -> None:
        self.check(blob_pb2.WriteUploadRequest(name=name, offset=offset, data=b"x" * size).SerializeToString())

    def test_anything_else(self) -> None:
        usual = blob_pb2.WriteUploadRequest(name="n", offset=300, data=b"data").SerializeToString()
        for end in range(len(usual)):
            self.check(usual[:end])
        self.check(usual + usual)
        self.check(usual[-6:] + usual[:-6])
        self.check(usual + b"\x20\x07")
        rng = random.Random(5)
        for _ in range(5_000):
            mutated = bytearray(usual)
            for _ in range(rng.randrange(1, 4)):
                mutated[rng.randrange(len(mutated))] = rng.choice((0x0A, 0x10, 0x1A, 0x80, 0xFF, rng.randrange(256)))
            self.check(bytes(mutated))
