"""Files that are cut, damaged, hostile or out of reach: a specific error each, in bounded memory and time."""

from __future__ import annotations

import os
import random
import threading
import time
import tracemalloc
from itertools import islice

import pytest

from mindeval.formats.errors import FormatError
from mindeval.formats.readers import (
    iter_record_bytes,
    open_tensors,
    read_mindspore_ckpt,
    read_safetensors,
    read_strategy,
    verify_crc,
)
from mindeval.formats.safetensors import encode_header

UNREADABLE, TRUNCATED, CORRUPT = "CHECKPOINT_UNREADABLE", "CHECKPOINT_TRUNCATED", "CHECKPOINT_CORRUPT"
GB = 1 << 30


@pytest.fixture
def refuse(tmp_path):
    """Writes bytes as a .ckpt, and returns the error it is refused with."""

    def check(data: bytes, reason: str, tensor: str = "", match: str | None = None) -> FormatError:
        path = tmp_path / "bad.ckpt"
        path.write_bytes(data)
        with pytest.raises(FormatError, match=match) as caught:
            read_mindspore_ckpt(path)
        assert caught.value.reason == reason, caught.value
        assert caught.value.metadata == {"file": str(path), **({"tensor": tensor} if tensor else {})}
        return caught.value

    return check


def record_ends(file):
    return [tensor.spans[-1].end for tensor in file.tensors]


def test_a_cut_at_a_record_boundary_leaves_a_smaller_file(made, tmp_path):
    """The format cannot tell; MindSpore loads such a file too. The checksum is gone, which a caller may insist on."""
    data = (made / "crc.ckpt").read_bytes()
    file = read_mindspore_ckpt(made / "crc.ckpt")
    for count, end in enumerate(record_ends(file), start=1):
        path = tmp_path / "cut.ckpt"
        path.write_bytes(data[:end])
        cut = read_mindspore_ckpt(path)
        assert [t.name for t in cut.tensors] == [t.name for t in file.tensors[:count]]
        assert cut.crc is None


def test_a_cut_between_the_records_of_one_tensor_is_found(made, refuse):
    data = (made / "split.ckpt").read_bytes()
    spans = read_mindspore_ckpt(made / "split.ckpt").find("big").spans
    for span in spans[:-1]:
        refuse(data[: span.end], TRUNCATED, "big", "needs 49152 bytes")


def test_any_other_cut_is_found(made, tmp_path):
    data = (made / "crc.ckpt").read_bytes()
    file = read_mindspore_ckpt(made / "crc.ckpt")
    cuts = {*range(1, 300), *range(len(data) - 40, len(data)), *random.Random(1).sample(range(len(data)), 300)}
    for cut in cuts - {0, *record_ends(file)}:
        path = _write(tmp_path / "cut.ckpt", data[:cut])
        with pytest.raises(FormatError) as caught:
            read_mindspore_ckpt(path)
        # What is left of a cut checksum is no record.
        reasons = {TRUNCATED} if cut < file.payload_end else {TRUNCATED, UNREADABLE}
        assert caught.value.reason in reasons, (cut, caught.value)


def test_the_cut_tensor_is_named(encode, refuse):
    data = encode("first") + encode("second", dims=(100,), content=bytes(400))
    for cut in range(len(encode("first")) + 12, len(data)):
        refuse(data[:cut], TRUNCATED, "second")


def test_every_flipped_bit_is_found_by_the_checksum(made, tmp_path):
    data = (made / "crc.ckpt").read_bytes()
    path = tmp_path / "flipped.ckpt"
    chosen = random.Random(2)
    for _ in range(300):
        position = chosen.randrange(len(data))
        flipped = bytearray(data)
        flipped[position] ^= 1 << chosen.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(FormatError) as caught:
            verify_crc(read_mindspore_ckpt(path))
        assert caught.value.reason in (UNREADABLE, TRUNCATED, CORRUPT), position


def test_empty(refuse, tmp_path):
    refuse(b"", TRUNCATED, match="empty")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(FormatError) as caught:
        open_tensors(tmp_path / "empty.safetensors")
    assert caught.value.reason == TRUNCATED
    with pytest.raises(FormatError, match="empty"):
        read_strategy([_write(tmp_path / "empty_strategy.ckpt", b"")])


@pytest.mark.parametrize(
    ("dims", "match"),
    [
        ((-1,), "invalid shape"),
        ((-(2**63), 4), "invalid shape"),
        ((2**62, 2**62, 4), "invalid shape"),
        ((2**52, 2**52), "needs"),
        ((0, 4), "needs 0 bytes"),
        ((2,), "needs 8 bytes"),
        ((1,) * 17, "more than 16 dimensions"),
        ((1,) * 5000, "more than 16 dimensions"),
    ],
)
def test_absurd_shapes(encode, refuse, dims, match):
    refuse(encode("w", dims=dims) + encode("last"), UNREADABLE, "w", match)


def test_names(encode, refuse):
    refuse(encode("a") + encode("b") + encode("a"), UNREADABLE, "a", "stands twice")
    refuse(encode("a") + encode("a"), UNREADABLE, "a", "needs 4 bytes, the file has 8")
    refuse(encode("a") + encode("a", dims=(2,)), UNREADABLE, "a", "different shapes")
    refuse(encode("text", "str", (0,), b"x\0\0\0") * 2, UNREADABLE, "text", "not of one record")
    refuse(encode("text", "str", (0,), b"x\0\0"), UNREADABLE, "text", "whole UTF-32")
    refuse(encode("text", "str", (0,), b"\xff" * 4), UNREADABLE, "text", "not UTF-32")
    refuse(encode(""), UNREADABLE, match="a name that is empty")
    refuse(encode("n\0ul"), UNREADABLE, match="a name that is empty, too long or holds NUL")
    refuse(encode("x" * 1025), UNREADABLE, match="a name that is empty, too long")
    refuse(encode("x" * 9000), UNREADABLE, match="name would be 9000 bytes")
    refuse(encode(b"\xff\xfe"), UNREADABLE, match="not UTF-8")


def test_other_things_than_tensors(encode, refuse):
    refuse(encode("w", "Complex64"), UNREADABLE, "w", "unknown dtype 'Complex64'")
    refuse(encode("w", "x" * 100), UNREADABLE, "w", "type would be 100 bytes")
    refuse(b"\x0a\x05\x0a\x01m\x1a\x00", UNREADABLE, "m", "MapParameter")
    refuse(b"\x0a\x03\x0a\x01w", UNREADABLE, "w")
    refuse(b"\x0a\x00", UNREADABLE)
    refuse(b"\x0a" + b"\xff" * 10, UNREADABLE, match="more than 64 bits")
    refuse(b"\x0a\x80\x80\x80\x80\x10" + bytes(50), UNREADABLE, match="bytes long")
    refuse(encode("w") + b"\x12\x00", UNREADABLE)
    refuse(encode("w") + b"trailing", UNREADABLE)
    refuse(encode("text", "str", (0,), b"x\0\0\0"), UNREADABLE, match="no tensor")
    refuse(b"PK\x03\x04" + bytes(60), UNREADABLE, match="zip archive")
    refuse(b"\x80\x02}q\x00", UNREADABLE, match="pickle")
    refuse((100).to_bytes(8, "little") + b'{"a":1}' + bytes(200), UNREADABLE, match="rename it to .safetensors")


def test_dims_in_one_list(tmp_path, refuse):
    """protobuf allows this form of repeated numbers too."""

    def packed(dims, length):
        tensor = b"\x0a" + bytes([length]) + dims + b"\x12\x04Int8" + b"\x1a\x06" + bytes(6)
        return b"\x0a" + bytes([len(tensor) + 5]) + b"\x0a\x01w" + b"\x12" + bytes([len(tensor)]) + tensor

    path = _write(tmp_path / "packed.ckpt", packed(b"\x02\x03", 2))
    assert read_mindspore_ckpt(path).tensors[0].shape == (2, 3)
    refuse(packed(b"\x02\x03", 100), UNREADABLE, "w")
    refuse(packed(b"\x01" * 17, 17), UNREADABLE, "w", "more than 16 numbers")


def test_things_that_are_no_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.ckpt")
    (tmp_path / "folder.ckpt").mkdir()
    (tmp_path / "loop.ckpt").symlink_to("loop.ckpt")
    cases = ["pipe.ckpt", "folder.ckpt", "loop.ckpt", "missing.ckpt", "missing.safetensors", "nul\0.ckpt", "w.pt"]
    for name in cases:
        with pytest.raises(FormatError) as caught:
            open_tensors(tmp_path / name)
        assert caught.value.reason == UNREADABLE
    with pytest.raises(FormatError, match="not a regular file"):
        read_mindspore_ckpt("/dev/zero")


def test_permission_denied(made, tmp_path):
    path = _write(tmp_path / "secret.ckpt", (made / "plain.ckpt").read_bytes())
    path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(FormatError, match="permission denied") as caught:
            read_mindspore_ckpt(path)
    finally:
        if is_root:
            os.seteuid(0)
    assert caught.value.reason == UNREADABLE


def test_a_sparse_file_of_20_gb(tmp_path, encode):
    path = tmp_path / "sparse.ckpt"
    piece = 512 << 20
    with open(path, "wb") as file:
        for _ in range(40):
            header = encode("huge", dims=(40, piece // 4), content=b"", more=piece)
            file.write(header)
            file.seek(piece, os.SEEK_CUR)
        file.truncate()
    tracemalloc.start()
    began = time.monotonic()
    (tensor,) = read_mindspore_ckpt(path).tensors
    assert tensor.size_bytes == 20 * GB
    assert len(tensor.spans) == 40
    assert [len(piece) for piece in islice(iter_record_bytes(tensor, 1 << 20), 3)] == [1 << 20] * 3
    assert time.monotonic() - began < 2
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["zeros.ckpt", "zeros.safetensors", "strategy.ckpt"])
def test_20_gb_of_nothing(tmp_path, name):
    path = tmp_path / name
    path.touch()
    os.truncate(path, 20 * GB)
    tracemalloc.start()
    with pytest.raises(FormatError):
        read_strategy([path]) if name.startswith("strategy") else open_tensors(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_100_000_tensors(tmp_path, encode):
    names = [f"layers.{index}.weight" for index in range(100_000)]
    path = _write(tmp_path / "many.ckpt", b"".join(encode(name, dims=(2,), content=bytes(8)) for name in names))
    header, _ = encode_header((name, "F32", (2,)) for name in names)
    other = _write(tmp_path / "many.safetensors", header + bytes(800_000))
    began = time.monotonic()
    file = read_mindspore_ckpt(path)
    same = read_safetensors(other)
    assert time.monotonic() - began < 20
    assert [t.name for t in file.tensors] == names == [t.name for t in same.tensors]
    assert file.find("layers.99999.weight").size_bytes == 8


def test_too_many_tensors(tmp_path, encode, monkeypatch):
    monkeypatch.setattr("mindeval.formats.readers.mindspore_ckpt.MAX_TENSORS", 10)
    path = _write(tmp_path / "many.ckpt", b"".join(encode(f"w{index}") for index in range(11)))
    with pytest.raises(FormatError, match="more than 10 tensors"):
        read_mindspore_ckpt(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path, encode):
    """No SIGBUS, only errors, whatever the moment."""
    data = b"".join(encode(f"w{index}", dims=(1000,), content=bytes(4000)) for index in range(200))
    path = _write(tmp_path / "moving.ckpt", data)
    stop = threading.Event()

    def shake() -> None:
        while not stop.is_set():
            os.truncate(path, 5000)
            path.write_bytes(data)

    thread = threading.Thread(target=shake)
    thread.start()
    try:
        outcomes = set()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            try:
                for tensor in read_mindspore_ckpt(path).tensors:
                    b"".join(iter_record_bytes(tensor))
                outcomes.add("")
            except FormatError as error:
                outcomes.add(error.reason)
    finally:
        stop.set()
        thread.join()
    assert outcomes <= {"", UNREADABLE, TRUNCATED}


def test_packed_integers_are_refused(tmp_path):
    header, _ = encode_header([("w", "U8", (2,))], {"w": "Int4"})
    path = _write(tmp_path / "packed.safetensors", header + bytes(2))
    with pytest.raises(FormatError, match="4-bit") as caught:
        read_safetensors(path)
    assert caught.value.metadata["tensor"] == "w"


def _write(path, data):
    path.write_bytes(data)
    return path
