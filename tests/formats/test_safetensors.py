"""Headers are read with suspicion and written as the reference library reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from mindeval.formats.errors import FormatError
from mindeval.formats.safetensors import MAX_HEADER_BYTES, encode_header, parse_header


def blob(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def parse(data: bytes) -> object:
    return parse_header(data, len(data), "w.safetensors")


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    tensors = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7, dtype=np.int64),
        "e": np.empty((0, 4), np.float16),
    }
    save_file(tensors, str(tmp_path / "w.safetensors"), metadata={"format": "np"})
    data = (tmp_path / "w.safetensors").read_bytes()
    header = parse_header(data, len(data), "w")
    assert header.metadata == {"format": "np"}
    assert {slot.name for slot in header.tensors} == set(tensors)
    for slot in header.tensors:
        assert data[slot.begin : slot.end] == tensors[slot.name].tobytes()
        assert slot.shape == tensors[slot.name].shape


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    first, second = np.arange(5, dtype=np.float32), np.ones((2, 2), np.int32)
    head, spans = encode_header([("zwei/二", "I32", (2, 2)), ("eins", "F32", (5,))], {"k": "v"})
    assert len(head) % 8 == 0
    path = tmp_path / "w.safetensors"
    path.write_bytes(head + second.tobytes() + first.tobytes())
    loaded = load_file(str(path))
    np.testing.assert_array_equal(loaded["eins"], first)
    np.testing.assert_array_equal(loaded["zwei/二"], second)
    assert spans["zwei/二"] == (len(head), len(head) + 16)
    assert spans["eins"] == (len(head) + 16, len(head) + 36)


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD = {
    "empty file": (b"", "CHECKPOINT_TRUNCATED"),
    "half a length": (b"\x10\0\0", "CHECKPOINT_TRUNCATED"),
    "header beyond the end": ((1000).to_bytes(8, "little") + b"{}", "CHECKPOINT_TRUNCATED"),
    "absurd header length": ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "CHECKPOINT_UNREADABLE"),
    "largest header length": (b"\xff" * 8 + b"{}", "CHECKPOINT_UNREADABLE"),
    "not JSON": (blob(b"{"), "CHECKPOINT_UNREADABLE"),
    "not UTF-8": (blob(b"\xff\xfe"), "CHECKPOINT_UNREADABLE"),
    "not an object": (blob([]), "CHECKPOINT_UNREADABLE"),
    "deep nesting": (blob(b"[" * 200_000), "CHECKPOINT_UNREADABLE"),
    "metadata of numbers": (blob({"__metadata__": {"a": 1}}), "CHECKPOINT_UNREADABLE"),
    "duplicate name": (blob(b'{"a":1,"a":2}'), "CHECKPOINT_UNREADABLE"),
    "entry is a list": (blob({"a": []}), "CHECKPOINT_UNREADABLE"),
    "unknown dtype": (blob({"a": {**F32, "dtype": "F31"}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "negative size": (blob({"a": {**F32, "shape": [-2]}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "boolean size": (blob({"a": {**F32, "shape": [True]}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "absurd size": (blob({"a": {**F32, "shape": [2**60, 2**60]}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "too many dimensions": (blob({"a": {**F32, "shape": [1] * 17}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "offsets do not fit the shape": (blob({"a": {**F32, "data_offsets": [0, 4]}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "offsets backwards": (blob({"a": {**F32, "data_offsets": [8, 0]}}, bytes(8)), "CHECKPOINT_UNREADABLE"),
    "overlap": (blob({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, bytes(12)), "CHECKPOINT_UNREADABLE"),
    "gap": (blob({"a": F32, "b": {**F32, "data_offsets": [12, 20]}}, bytes(20)), "CHECKPOINT_UNREADABLE"),
    "bytes left over": (blob({"a": F32}, bytes(9)), "CHECKPOINT_UNREADABLE"),
    "cut data": (blob({"a": F32}, bytes(7)), "CHECKPOINT_TRUNCATED"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_headers_are_refused_with_the_file_named(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(data)
    assert caught.value.reason == reason
    assert caught.value.metadata["file"] == "w.safetensors"
    assert "w.safetensors" in caught.value.message


def test_the_tensor_at_fault_is_named() -> None:
    with pytest.raises(FormatError) as caught:
        parse(blob({"a": F32, "b": {**F32, "data_offsets": [8, 16]}}, bytes(12)))
    assert caught.value.metadata == {"file": "w.safetensors", "tensor": "b"}


@given(st.binary(max_size=200))
def test_random_bytes_never_crash(data: bytes) -> None:
    try:
        parse(data)
    except FormatError:
        pass


@given(data=st.data())
def test_a_flipped_header_bit_is_refused_or_still_consistent(data: st.DataObject) -> None:
    head, _ = encode_header([("weight", "F32", (3, 2)), ("bias", "F16", (4,))])
    whole = bytearray(head + bytes(32))
    position = data.draw(st.integers(0, len(head) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        header = parse_header(bytes(whole), len(whole), "w")
    except FormatError as error:
        assert error.reason in ("CHECKPOINT_UNREADABLE", "CHECKPOINT_TRUNCATED")
    else:
        assert all(slot.end <= len(whole) for slot in header.tensors)
