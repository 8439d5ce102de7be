from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.models import byte_level_tokenizer, checkpoint_manifest, write_tiny_llama

from mindeval.formats.digest import digest_bytes
from mindeval.formats.manifest import Manifest, TensorEntry
from mindeval.service.runtime.checkpoints.blobs import read_verified
from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.checkpoints.matching import check_tensors
from mindeval.service.runtime.checkpoints.tensors import decode
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import BlobLocation
from mindeval.service.runtime.tokenization import encoder_for


def entry(name: str, dtype: str, shape: tuple[int, ...]) -> TensorEntry:
    return TensorEntry(name, dtype, shape, 0, "blake3:" + "0" * 64)


def locations(blobs: dict[str, Path]) -> dict[str, BlobLocation]:
    return {digest: BlobLocation(str(path), 0, path.stat().st_size) for digest, path in blobs.items()}


def as_bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), dtype=np.uint8).copy()


def test_bfloat16_and_float16_are_widened_exactly() -> None:
    values = np.array([1.0, -2.5, 3.0e38, 1e-40, 0.0], dtype=np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    wide = decode(entry("w", "BF16", (5,)), as_bytes(upper))
    np.testing.assert_array_equal(wide.view(np.uint32), upper.astype(np.uint32) << 16)
    half = np.array([[0.1, -65504.0]], dtype=np.float16)
    np.testing.assert_array_equal(decode(entry("w", "F16", (1, 2)), as_bytes(half)), half.astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_a_weight_that_is_not_finite_is_named(value: float, dtype: str) -> None:
    array = np.array([1.0, value, 2.0], dtype=np.float32)
    if dtype == "BF16":
        array = (array.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype != "F32":
        array = array.astype({"F16": np.float16, "F64": np.float64}[dtype])
    with pytest.raises(RunnerError) as caught:
        decode(entry("layer.w", dtype, (3,)), as_bytes(array))
    assert (caught.value.reason, caught.value.metadata) == ("NON_FINITE_WEIGHT", {"tensor": "layer.w", "count": "1"})


def test_large_finite_weights_are_not_mistaken_for_infinite_ones() -> None:
    array = np.full(1000, 3e38, dtype=np.float32)
    np.testing.assert_array_equal(decode(entry("w", "F32", (1000,)), as_bytes(array)), array)


def test_a_blob_is_read_only_whole_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(b"some bytes")
    digest = digest_bytes(b"some bytes")
    for offset, content in ((0, b"some bytes"), (0, b"some bytes and a neighbour"), (7, b"before some bytes after")):
        path.write_bytes(content)
        location = BlobLocation(str(path), offset, 10)
        assert read_verified(location, digest, 10, {}).tobytes() == b"some bytes"
        assert read_verified(location, digest, None, {}).tobytes() == b"some bytes"
    for offset, size, content, reason in (
        (0, 10, b"some byte", "CHECKPOINT_TRUNCATED"),
        (5, 10, b"1234", "CHECKPOINT_TRUNCATED"),
        (5, 10, b"12345some byte", "CHECKPOINT_TRUNCATED"),
        (0, 10, b"some Bytes", "CHECKPOINT_CORRUPT"),
        (1, 10, b"some bytes!", "CHECKPOINT_CORRUPT"),
        (0, 11, b"some bytes!", "CHECKPOINT_CORRUPT"),
    ):
        path.write_bytes(content)
        with pytest.raises(RunnerError) as caught:
            read_verified(BlobLocation(str(path), offset, size), digest, 10, {"tensor": "w"})
        assert caught.value.reason == reason
        assert caught.value.metadata == {"tensor": "w", "digest": digest, "blob": "blob"}
    with pytest.raises(RunnerError, match="push it again") as caught:
        read_verified(BlobLocation(str(tmp_path / "absent"), 0, 10), digest, 10, {})
    assert caught.value.reason == "BLOB_MISSING"


def test_the_memory_is_ours_and_not_the_files(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(100))
    data = read_verified(BlobLocation(str(path), 0, 100), digest_bytes(bytes(100)), 100, {})
    path.write_bytes(b"")
    assert not data.any()
    assert data.flags.owndata
    assert data.flags.writeable


def test_tensors_must_be_just_the_models() -> None:
    expected = {"a": (2, 3), "b": (4,)}
    found = {"a": entry("a", "F16", (2, 3)), "b": entry("b", "F32", (4,)), "moments.a": entry("moments.a", "F32", (9,))}
    check_tensors(expected, found)
    for changed, reason, tensor in (
        ({"b": None}, "TENSOR_MISSING", "b"),
        ({"c": entry("c", "F32", (1,))}, "TENSOR_UNEXPECTED", "c"),
        ({"a": entry("a", "F32", (3, 2))}, "TENSOR_MISMATCH", "a"),
        ({"a": entry("a", "F32", (2, 3, 1))}, "TENSOR_MISMATCH", "a"),
        ({"b": entry("b", "I32", (4,))}, "TENSOR_MISMATCH", "b"),
    ):
        tensors = {name: value for name, value in {**found, **changed}.items() if value is not None}
        with pytest.raises(RunnerError) as caught:
            check_tensors(expected, tensors)
        assert (caught.value.reason, caught.value.metadata["tensor"]) == (reason, tensor)


def test_tokenizers(tmp_path: Path) -> None:
    manifest, blobs = checkpoint_manifest(write_tiny_llama(tmp_path / "model"), tmp_path / "blobs")
    checkpoint = Checkpoint(manifest.digest, manifest, locations(blobs))
    text = "Tokens, 三 <bos>\n  é"
    encoder = encoder_for("tokenizer.json", checkpoint)
    assert encoder.encode("三").tolist() == byte_level_tokenizer().encode("三", add_special_tokens=False).ids
    assert encoder.encode("三").size == 3
    assert encoder_for("bytes", checkpoint).encode(text).tolist() == list(text.encode())
    for kind in ("none", "tokenizer.json"):
        with pytest.raises(RunnerError) as caught:
            encoder_for(kind, Checkpoint("", Manifest((), ()), {}))
        assert caught.value.reason == "TOKENIZER_INVALID"


def test_truncation_in_a_tokenizer_file_is_ignored(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(folder / "tokenizer.json"))
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    checkpoint = Checkpoint(manifest.digest, manifest, locations(blobs))
    assert encoder_for("tokenizer.json", checkpoint).encode("0123456789").size == 10


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", json.dumps({"model": {"type": "BPE"}}).encode()])
def test_an_unreadable_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / "tokenizer.json").write_bytes(content)
    manifest, blobs = checkpoint_manifest(folder, tmp_path / "blobs")
    checkpoint = Checkpoint(manifest.digest, manifest, locations(blobs))
    with pytest.raises(RunnerError) as caught:
        encoder_for("tokenizer.json", checkpoint)
    assert (caught.value.reason, caught.value.metadata["file"]) == ("TOKENIZER_INVALID", "tokenizer.json")
