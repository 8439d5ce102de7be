"""What cannot be pushed: one clear line each, bounded memory, and nothing of it visible in the service."""

from __future__ import annotations

import json
import os
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.client.conftest import put_suite
from tests.client.test_cli import Command, InProcess, assert_error
from tests.support.containers import weights, write_config, write_hugging_face, write_ranks
from tests.support.service import FAULTY_RUNNER, ServiceProcess

from mindeval.client import Client, PushProgress, ServiceError, _content, _hashing, _sources
from mindeval.formats.safetensors import encode_header

MIB = 1 << 20
WEIGHTS = "model.safetensors"


@pytest.fixture
def mindeval(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    return InProcess(Command(service.endpoint, tmp_path), capsys, monkeypatch)


def raw_file(header: bytes, data: bytes = b"\0" * 64, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def with_header(entries: Any, data: bytes = b"\0" * 64) -> Callable[[Path], None]:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return lambda folder: (folder / WEIGHTS).write_bytes(raw_file(text, data)) and None


def tensor(begin: Any, end: Any, shape: Any = (8,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


TWICE = b'{"a":%b,"a":%b}' % (json.dumps(tensor(0, 32)).encode(), json.dumps(tensor(32, 64)).encode())


def truncate(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 1)


def empty(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, 0)


def flip_a_header_bit(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[8] ^= 0x40  # the brace that opens the JSON object
    (folder / WEIGHTS).write_bytes(data)


def oversized_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(raw_file(b"{}", length=1 << 40))


def header_beyond_the_end(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(raw_file(b"{}", length=1_000_000))


def link_out(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere.safetensors")
    os.symlink(folder.parent / "elsewhere.safetensors", folder / WEIGHTS)


def pipe(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)


def broken_ckpt(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "net-1_1.ckpt").write_bytes(b"\x0a\xff\xff\xff\xff\x7f" + b"\0" * 50)


def other_format(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "reason", "said"),
    [
        (truncate, "CHECKPOINT_TRUNCATED", "ends at byte"),
        (empty, "CHECKPOINT_UNREADABLE", "is empty"),
        (flip_a_header_bit, "CHECKPOINT_UNREADABLE", "not valid JSON"),
        (oversized_header, "CHECKPOINT_UNREADABLE", "bytes long"),
        (header_beyond_the_end, "CHECKPOINT_TRUNCATED", "header needs"),
        (with_header({"a": tensor(0, 32), "b": tensor(16, 48)}), "CHECKPOINT_UNREADABLE", "overlaps"),
        (with_header({"a": tensor(0, 32), "b": tensor(32, 64), "c": tensor(64, 96)}), "CHECKPOINT_TRUNCATED", "'c'"),
        (with_header({"a": tensor(1 << 60, (1 << 60) + 32)}), "CHECKPOINT_UNREADABLE", "invalid data_offsets"),
        (with_header(TWICE), "CHECKPOINT_UNREADABLE", "twice"),
        (with_header({"a": tensor(0, 64, [2**52, 2**52])}), "CHECKPOINT_UNREADABLE", "needs"),
        (with_header({"a": tensor(0, 64, [1] * 100)}), "CHECKPOINT_UNREADABLE", "invalid shape"),
        (with_header({"a": tensor(0, 64, [-4, -4])}), "CHECKPOINT_UNREADABLE", "invalid shape"),
        (with_header({"a": tensor(-32, 0)}), "CHECKPOINT_UNREADABLE", "invalid data_offsets"),
        (with_header({"a": tensor(0, 64, [True] * 4)}), "CHECKPOINT_UNREADABLE", "invalid shape"),
        (with_header({"a": tensor(0, 64, [16], "Q8")}), "CHECKPOINT_UNREADABLE", "unknown dtype"),
        (with_header(b"[" * 100_000), "CHECKPOINT_UNREADABLE", "not valid JSON"),
        (link_out, "CHECKPOINT_UNREADABLE", "leads out of"),
        (pipe, "CHECKPOINT_UNREADABLE", ""),
        (broken_ckpt, "CHECKPOINT_", "net-1_1.ckpt"),
        (other_format, "CHECKPOINT_UNREADABLE", "another format"),
    ],
)  # fmt: skip
def test_bad_files(mindeval: Command, damage: Callable[[Path], None], reason: str, said: str) -> None:
    damage(write_hugging_face(mindeval.folder / "c", weights()))
    began = time.monotonic()
    assert_error(mindeval("push", "c"), 2, said, f"[{reason}")
    assert time.monotonic() - began < 5
    assert mindeval("checkpoints", "list").out == "no checkpoints\n"


def test_a_rank_that_is_missing(mindeval: Command) -> None:
    folder = write_ranks(mindeval.folder / "out", weights())
    (folder / "rank_1" / "net_rank_1-network-1_10.ckpt").unlink()
    assert_error(mindeval("push", "out"), 2, "rank 1", "[CHECKPOINT_UNREADABLE]")


def test_nothing_there(mindeval: Command) -> None:
    assert_error(mindeval("push", "nowhere"), 2, "nowhere", "[CHECKPOINT_UNREADABLE]")
    write_config(mindeval.folder / "empty")
    assert_error(mindeval("push", "empty"), 2, "no .safetensors or .ckpt", "[CHECKPOINT_UNREADABLE]")


def test_permission_denied(mindeval: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_hugging_face(mindeval.folder / "c", weights())
    real_open = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(WEIGHTS):
            raise PermissionError(13, "Permission denied", str(path))
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert_error(mindeval("push", str(folder)), 2, f"{folder / WEIGHTS}: permission denied", "[CHECKPOINT_UNREADABLE]")


def test_disk_full_on_the_service(tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "c", {"w": np.arange(MIB, dtype=np.float32)})
    with ServiceProcess(tmp_path / "service", runner_command=FAULTY_RUNNER, min_free_bytes=1 << 60) as service:
        done = Command(service.endpoint, tmp_path)("push", str(folder))
        assert_error(done, 4, "no room", "[STORAGE_FULL]")
        with Client(service.endpoint, project=tmp_path.name[:60]) as client:
            assert list(client.list_checkpoints()) == []


async def test_a_sparse_file_of_20_gb_is_hashed_in_bounded_memory(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "c")
    head, _ = encode_header([("w", "F32", (5 << 30,))])
    (folder / WEIGHTS).write_bytes(head)
    os.truncate(folder / WEIGHTS, len(head) + (20 << 30))
    source = _sources.open_checkpoint(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pieces = 0
    hashing = _hashing.hash_contents(source.tensors, 2)
    async for batch in hashing:
        pieces += len(batch)
        if pieces >= 6:
            break
    await hashing.aclose()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10, "kilobytes"
    assert source.size_bytes > 20 << 30


def test_any_piece_of_a_sparse_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.touch()
    os.truncate(path, 20 << 30)
    with _content.ContentReader() as reader:
        span = _content.ByteSpan(str(path), 0, 20 << 30)
        assert reader.read(span, (20 << 30) - 10, 10) == bytes(10)


def test_many_tensors(service: ServiceProcess, tmp_path: Path) -> None:
    """5,000 here; 100,000 in the slow test."""
    push_many(service, tmp_path, 5_000)


@pytest.mark.slow
def test_100_000_tensors(service: ServiceProcess, tmp_path: Path) -> None:
    push_many(service, tmp_path, 100_000)


def push_many(service: ServiceProcess, folder: Path, count: int) -> None:
    values = {f"layer.{number}": np.array([number, 1], np.int32) for number in range(count)}
    write_config(folder / "c")
    save_file(values, folder / "c" / WEIGHTS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Client(service.endpoint, project=f"many-{count}") as client:
        pushed = client.push_checkpoint(folder / "c")
        registered = client.create_checkpoint(pushed.digest, run="r", step=1)
        assert registered.tensor_count == count
        again = client.push_checkpoint(folder / "c")
        assert (again.digest, again.bytes_sent) == (pushed.digest, 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (100 + count // 200) << 10, "kilobytes"
    print(f"{count} tensors: {pushed.seconds:.1f} s, again {again.seconds:.1f} s")


def test_a_blob_that_lies_about_its_digest_is_never_visible(service: ServiceProcess, tmp_path: Path) -> None:
    folder = write_hugging_face(tmp_path / "c", {"w": np.arange(MIB, dtype=np.float32)})
    weights_file = folder / WEIGHTS
    flipped = False

    def flip(progress: PushProgress) -> None:
        nonlocal flipped
        if progress.bytes_to_send < MIB or flipped:
            return
        flipped = True  # hashed, and not sent yet
        status = weights_file.stat()
        with open(weights_file, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
        os.utime(weights_file, ns=(status.st_atime_ns, status.st_mtime_ns))

    with Client(service.endpoint, project="lies") as client:
        put_suite(client, tmp_path, "ok")
        with pytest.raises(ServiceError, match="DIGEST_MISMATCH"):
            client.push_checkpoint(folder, progress=flip)
        assert list(client.list_checkpoints()) == []
