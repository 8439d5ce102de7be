"""Resource names, model descriptions, digests and frames."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from mindeval.formats import frames, names
from mindeval.formats.digest import Hasher, check_digest, digest_bytes, digest_file
from mindeval.formats.errors import FormatError
from mindeval.formats.model import GraphDescription

HEX = "ab" * 32


@pytest.mark.parametrize(
    ("name", "collection"),
    [
        ("projects/p/runs/Llama-7B_v2.1", "runs"),
        (f"projects/p/suites/s/versions/{HEX}", "suites"),
        ("projects/p/evaluations/0", "evaluations"),
    ],
)
def test_names_round_trip(name: str, collection: str) -> None:
    assert str(names.parse(name, collection, "name")) == name


@pytest.mark.parametrize(
    ("name", "collection"),
    [
        ("", "runs"),
        ("projects/p", "runs"),
        ("projects/p/runs/", "runs"),
        ("projects/p/runs/..", "runs"),
        ("projects/../runs/r", "runs"),
        ("projects/p/runs/r/", "runs"),
        ("projects/p/runs/a b", "runs"),
        ("projects/p/runs/r\n", "runs"),
        ("projects/p/runs/" + "x" * 64, "runs"),
        ("projects/p/suites/s", "runs"),
        (f"projects/p/runs/r/versions/{HEX}", "runs"),
        (f"projects/p/suites/s/versions/{HEX.upper()}", "suites"),
        (f"projects/p/suites/s/v/{HEX}", "suites"),
    ],
)
def test_malformed_names_are_refused_with_the_field(name: str, collection: str) -> None:
    with pytest.raises(FormatError) as caught:
        names.parse(name, collection, "spec.run")
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.metadata == {"field": "spec.run"}


def test_digests_agree_however_the_bytes_come(tmp_path: Path) -> None:
    # The value is the published BLAKE3 digest of the empty input.
    assert digest_bytes(b"") == "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    data = bytes(range(256)) * 9000
    hasher = Hasher()
    hasher.update(data[:1000])
    hasher.update(memoryview(data)[1000:])
    (tmp_path / "f").write_bytes(data)
    assert hasher.digest() == digest_bytes(data) == digest_file(tmp_path / "f")
    (tmp_path / "empty").touch()
    assert digest_file(tmp_path / "empty") == digest_bytes(b"")


@pytest.mark.parametrize("text", ["", "blake3:", "sha256:" + HEX, "blake3:" + HEX + "\n", "blake3:" + HEX.upper()])
def test_malformed_digests_are_refused(text: str) -> None:
    with pytest.raises(FormatError):
        check_digest(text, "digest")


def test_model_description_round_trips() -> None:
    description = GraphDescription(vocab_size=257, max_length=128, tokenizer="bytes", prefix_token_id=256)
    assert GraphDescription.from_bytes(description.to_bytes()) == description


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"[]", ""),
        (b"{", ""),
        (b"{}", "mindeval_model"),
        (b'{"mindeval_model":1}', "vocab_size"),
        (b'{"mindeval_model":1,"vocab_size":0,"max_length":1}', "vocab_size"),
        (b'{"mindeval_model":1,"vocab_size":true,"max_length":1}', "vocab_size"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"prefix_token_id":9}', "prefix_token_id"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"tokenizer":{"type":"bytes"}}', "vocab_size"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"tokenizer":"bytes"}', "tokenizer"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"x":1}', "x"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"graph":"../m"}', "graph"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"prefix_token_id":true}', "prefix_token_id"),
        (b'{"mindeval_model":1,"vocab_size":9,"max_length":1,"tokenizer":{"type":[]}}', "tokenizer.type"),
    ],
)
def test_bad_model_descriptions_name_the_field(data: bytes, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        GraphDescription.from_bytes(data)
    assert caught.value.reason == "MODEL_INVALID"
    assert caught.value.metadata.get("field", "") == field


def test_frames_cross_a_socket() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(frames.encode({"type": "a", "value": float("inf")}))
        left.sendall(frames.encode({"type": "b"}))
        assert frames.receive(right) == {"type": "a", "value": float("inf")}
        assert frames.receive(right) == {"type": "b"}
        left.close()
        assert frames.receive(right) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        struct.pack(">I", 9) + b"{}",
        struct.pack(">I", frames.MAX_FRAME_BYTES + 1),
        struct.pack(">I", 2) + b"[]",
    ],
)
def test_broken_frames_are_errors(data: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data)
        left.close()
        with pytest.raises(frames.FrameError):
            frames.receive(right)


async def test_frames_from_a_stream() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frames.encode({"type": "a"}) + b"\0")
    reader.feed_eof()
    assert await frames.read(reader) == {"type": "a"}
    with pytest.raises(frames.FrameError):
        await frames.read(reader)
