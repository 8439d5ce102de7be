"""What every `BlobStore` must do; run for each implementation."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.service.conftest import QUICK
from tests.service.stubs import Client
from tests.support.s3 import ENVIRONMENT, S3Server, s3_server
from tests.support.service import FAULTY_RUNNER, ServiceProcess

from mindeval.formats.digest import digest_bytes
from mindeval.service.storage.blobs import BlobStore, ObjectGoneError, StoredObject, blob_key, pack_key
from mindeval.service.storage.cache import ObjectCache
from mindeval.service.storage.folder_store import FolderStore
from mindeval.service.storage.s3_store import S3Store, parse_address
from mindeval.v1 import blob_pb2, evaluation_pb2

DATA = b"some bytes"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


class Place:
    """A store, and the ways to damage what it keeps."""

    def __init__(self, store: BlobStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def put(self, data: bytes = DATA, key: str = "") -> StoredObject:
        source = self.folder / f"source-{threading.get_ident()}"
        source.write_bytes(data)
        digest = digest_bytes(data)
        item = StoredObject(key or blob_key("p", digest), digest, len(data))
        self.store.put(item, source)
        assert not source.exists()
        return item

    def overwrite(self, item: StoredObject, data: bytes) -> None:
        """Puts other bytes under the object's key, as a disk does that fails."""
        source = self.folder / "damaged"
        source.write_bytes(data)
        self.store.put(StoredObject(item.key, digest_bytes(data), len(data)), source)

    def read(self, item: StoredObject) -> bytes:
        path = self.store.hold(item)
        try:
            return path.read_bytes()
        finally:
            self.store.release(item.key)


@pytest.fixture(params=["folder", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(FolderStore(tmp_path), tmp_path)
        return
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    bucket = f"b{os.urandom(8).hex()}"
    server.make_bucket(bucket)
    yield Place(
        S3Store(f"s3://{bucket}/some/place", server.endpoint_url, ObjectCache(tmp_path / "cache", 1 << 20)), tmp_path
    )


@pytest.mark.parametrize("data", [b"", DATA, os.urandom(9 << 20)], ids=["empty", "small", "large"])
def test_what_is_put_is_there(place: Place, data: bytes) -> None:
    item = place.put(data)
    assert place.read(item) == data
    assert place.store.is_intact(item)
    assert place.put(data) == item
    assert place.read(item) == data


def test_what_is_not_there_is_gone(place: Place) -> None:
    item = StoredObject(blob_key("p", digest_bytes(DATA)), digest_bytes(DATA), len(DATA))
    with pytest.raises(ObjectGoneError, match=item.key):
        place.store.hold(item)
    assert not place.store.is_intact(item)
    place.store.remove(item.key)
    assert list(place.store.objects("blobs/p/")) == []
    assert place.store.projects() == []


def test_removed_objects_are_gone(place: Place) -> None:
    item = place.put()
    place.store.remove(item.key)
    place.store.remove(item.key)
    with pytest.raises(ObjectGoneError):
        place.store.hold(item)
    assert place.read(place.put()) == DATA


def test_what_is_held_stays_when_it_is_removed(place: Place) -> None:
    item = place.put()
    path = place.store.hold(item)
    assert place.store.hold(item) == path
    place.store.remove(item.key)
    assert path.read_bytes() == DATA
    with pytest.raises(ObjectGoneError):
        place.store.hold(item)
    place.store.release(item.key)
    assert path.read_bytes() == DATA
    place.store.release(item.key)
    assert not path.exists()


def test_what_is_put_again_while_it_is_held_stays(place: Place) -> None:
    item = place.put()
    path = place.store.hold(item)
    place.store.remove(item.key)
    place.put()
    place.store.release(item.key)
    assert place.read(item) == DATA
    assert path.exists()


def test_damage_is_found(place: Place) -> None:
    for bad in (b"Some bytes", b"some byte", b"some bytes!", b""):
        item = place.put()
        assert place.read(item) == DATA
        place.overwrite(item, bad)
        assert not place.store.is_intact(item)
        if len(bad) != len(DATA):
            with pytest.raises(ObjectGoneError):
                place.store.hold(item)
    assert place.store.is_intact(place.put())


def test_objects_are_listed_by_prefix(place: Place) -> None:
    blob, pack = place.put(b"a blob"), place.put(b"a pack!", pack_key("p", "1" * 32))
    other = place.put(b"another", blob_key("q", digest_bytes(b"another")))
    assert place.store.projects() == ["p", "q"]
    assert dict(place.store.objects("blobs/p/")) == {blob.key: 6}
    assert dict(place.store.objects(f"blobs/p/{blob.digest[7:9]}/")) == {blob.key: 6}
    assert dict(place.store.objects("packs/p/")) == {pack.key: 7}
    assert dict(place.store.objects("blobs/q/")) == {other.key: 7}
    assert dict(place.store.objects("blobs/none/")) == {}


def test_many_threads_at_once(place: Place) -> None:
    def work(number: int) -> None:
        data = f"blob {number % 5}".encode()
        assert place.read(place.put(data)) == data

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(40)))
    assert len(list(place.store.objects("blobs/p/"))) == 5


class TestCache:
    """Local copies; what they are copies of is a dictionary here."""

    @staticmethod
    def item(data: bytes) -> StoredObject:
        return StoredObject(f"blobs/p/{digest_bytes(data)[7:]}", digest_bytes(data), len(data))

    def test_least_recently_used_copies_go_but_none_that_is_held(self, tmp_path: Path) -> None:
        cache = ObjectCache(tmp_path, 30)
        datas = [bytes([number]) * 10 for number in range(6)]
        items = [self.item(data) for data in datas]
        paths = [cache.hold(item, lambda path, data=data: path.write_bytes(data)) for item, data in zip(items, datas)]  # type: ignore[misc]
        assert all(path.exists() for path in paths)
        for number in (5, 4, 3, 2):
            cache.release(items[number].key)
        # 60 bytes were too many; each went as soon as nobody held it, until what was left fitted.
        assert [path.exists() for path in paths] == [True, True, True, False, False, False]
        cache.release(items[0].key)
        cache.release(items[1].key)
        again = ObjectCache(tmp_path, 20)
        assert sum(path.exists() for path in paths) == 2
        survivor = next(number for number, path in enumerate(paths) if path.exists())
        assert again.hold(items[survivor], pytest.fail).read_bytes() == datas[survivor]

    def test_only_one_fetches(self, tmp_path: Path) -> None:
        cache, item, fetches = ObjectCache(tmp_path, 100), self.item(DATA), []

        def fetch(path: Path) -> None:
            fetches.append(path)
            path.write_bytes(DATA)

        with ThreadPoolExecutor(8) as threads:
            paths = {future.result() for future in [threads.submit(cache.hold, item, fetch) for _ in range(8)]}
        assert len(paths) == len(fetches) == 1

    @pytest.mark.parametrize("bad", [b"Some bytes", b"some byte", b""])
    def test_a_wrong_copy_is_not_given_out(self, tmp_path: Path, bad: bytes) -> None:
        cache, item = ObjectCache(tmp_path, 100), self.item(DATA)
        with pytest.raises(ObjectGoneError):
            cache.hold(item, lambda path: path.write_bytes(bad))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert cache.hold(item, lambda path: path.write_bytes(DATA)).read_bytes() == DATA

    def test_an_interrupted_copy_is_removed_at_the_next_start(self, tmp_path: Path) -> None:
        cache, item = ObjectCache(tmp_path, 100), self.item(DATA)

        def fetch(path: Path) -> None:
            path.write_bytes(b"half")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cache.hold(item, fetch)
        (tmp_path / ".partial-x").write_bytes(b"left over by a crash")
        ObjectCache(tmp_path, 100)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_addresses() -> None:
    assert parse_address("s3://bucket") == ("bucket", "")
    assert parse_address("s3://my-bucket/a/b.c/") == ("my-bucket", "a/b.c")
    for text in (
        "s3://",
        "s3:/b/c",
        "ftp://bucket/x",
        "s3://B/x",
        "s3://bucket/../x",
        "s3://bucket/a?b",
        "s3://bucket//x",
    ):
        with pytest.raises(ValueError, match="is not s3://BUCKET/PREFIX"):
            parse_address(text)


def test_a_service_with_its_blobs_in_a_bucket(server: S3Server) -> None:
    bucket = f"b{os.urandom(8).hex()}"
    server.make_bucket(bucket)
    settings = {"blob_store": f"s3://{bucket}/blobs", "s3_endpoint_url": server.endpoint_url, "blob_cache_bytes": 0}
    with ServiceProcess(runner_command=FAULTY_RUNNER, env=ENVIRONMENT, **settings, **QUICK) as service:
        data = os.urandom(3 << 20)
        with service.channel() as channel:
            client = Client(channel, "p")
            digest = client.put_blob(data)
            assert client.read_blob(digest) == data
            assert client.read_blob(digest, offset=1 << 20, limit_bytes=7) == data[1 << 20 :][:7]
            suite = client.suite("s")
            for name in ("first", "second"):
                evaluation = client.run(suite, checkpoint=client.checkpoint(name))
                assert evaluation.state == evaluation_pb2.EVALUATION_STATE_SUCCEEDED
            messages = [blob_pb2.WriteSmallBlobsRequest(parent=client.parent)]
            small = [f"small {number}".encode() for number in range(300)]
            for one in small:
                messages[0].blobs.add(digest=digest_bytes(one), data=one)
            assert client.blobs.WriteSmallBlobs(iter(messages), timeout=20).stored_count == 300
            assert client.read_blob(digest_bytes(small[123])) == small[123]
        for name in ("uploads", "cache", "blobs", "packs"):
            assert [path for path in (service.data_dir / name).rglob("*") if path.is_file()] == []
        service.kill()
        service.start()
        with service.channel() as channel:
            client = Client(channel, "p")
            assert client.missing(digest, *map(digest_bytes, small)) == []
            assert client.read_blob(digest) == data
            assert client.read_blob(digest_bytes(small[299])) == small[299]


def test_a_blob_store_that_cannot_be_reached_is_said_at_the_start() -> None:
    service = ServiceProcess(env=ENVIRONMENT, blob_store="s3://bucket", s3_endpoint_url="http://127.0.0.1:9")
    service.launch()
    assert service.wait() == 1
    assert "cannot use the blob store s3://bucket" in service.log()
    assert "Traceback" not in service.log()
