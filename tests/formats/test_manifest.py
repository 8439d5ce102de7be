"""A manifest names content: equal content, equal bytes; anything doubtful is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindeval.formats.digest import digest_bytes
from mindeval.formats.errors import FormatError
from mindeval.formats.manifest import PIECE_BYTES, FileEntry, Manifest, TensorEntry, joined_digest

DIGEST = digest_bytes(b"x")
names = st.text(min_size=1, max_size=20).filter(lambda s: "\0" not in s and _encodes(s))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    tensors = []
    for name in draw(st.lists(names, max_size=6, unique=True)):
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        size = 4
        for dim in shape:
            size *= dim
        tensors.append(TensorEntry(name, "F32", shape, size, digest_bytes(name.encode() + bytes([size % 251]))))
    return Manifest.of(tensors, [FileEntry("config.json", 3, digest_bytes(b"abc"))])


@given(manifests(), st.randoms())
def test_bytes_do_not_depend_on_the_order_of_entries(manifest: Manifest, random: Any) -> None:
    shuffled = list(manifest.tensors)
    random.shuffle(shuffled)
    assert Manifest.of(shuffled, manifest.files).to_bytes() == manifest.to_bytes()
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


TENSOR = {"name": "w", "dtype": "F32", "shape": [2], "size": 8, "digest": DIGEST}
FILE = {"path": "config.json", "size": 1, "digest": digest_bytes(b"f")}


def raw(**changes: Any) -> dict[str, Any]:
    return {"files": [FILE], "mindeval_manifest": 1, "tensors": [TENSOR], **changes}


def encode(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_the_plain_case_is_read() -> None:
    assert Manifest.from_bytes(encode(raw())).tensors[0].shape == (2,)


BAD = {
    "not JSON": b"{",
    "not UTF-8": b"\xff",
    "deep": b"[" * 100_000,
    "not canonical": json.dumps(raw()).encode(),
    "other version": encode(raw(mindeval_manifest=2)),
    "extra key": encode(raw(more=1)),
    "tensors no list": encode(raw(tensors={})),
    "size lies": encode(raw(tensors=[{**TENSOR, "size": 9}])),
    "negative size": encode(raw(files=[{**FILE, "size": -1}])),
    "float size": encode(raw(files=[{**FILE, "size": 1.0}])),
    "huge dimension": encode(raw(tensors=[{**TENSOR, "shape": [2**53]}])),
    "unknown dtype": encode(raw(tensors=[{**TENSOR, "dtype": "F31"}])),
    "bad digest": encode(raw(tensors=[{**TENSOR, "digest": "md5:00"}])),
    "upper-case digest": encode(raw(tensors=[{**TENSOR, "digest": DIGEST.upper()}])),
    "name twice": encode(raw(tensors=[TENSOR, TENSOR])),
    "not sorted": encode(raw(tensors=[{**TENSOR, "name": "b"}, {**TENSOR, "name": "a"}])),
    "parent path": encode(raw(files=[{**FILE, "path": "../config.json"}])),
    "absolute path": encode(raw(files=[{**FILE, "path": "/etc/passwd"}])),
    "backslash": encode(raw(files=[{**FILE, "path": "a\\b"}])),
    "empty name": encode(raw(tensors=[{**TENSOR, "name": ""}])),
    "one digest, two sizes": encode(raw(files=[{**FILE, "digest": DIGEST}])),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_bad_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        Manifest.from_bytes(data)
    assert caught.value.reason == "MANIFEST_INVALID"


@given(st.binary(max_size=300))
def test_random_bytes_never_crash(data: bytes) -> None:
    with pytest.raises(FormatError):
        Manifest.from_bytes(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5).filter(_encodes),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(TENSOR) + list(FILE)), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(field=st.sampled_from(["files", "tensors", "mindeval_manifest"]), value=json_values)
def test_odd_json_never_crashes(field: str, value: Any) -> None:
    try:
        manifest = Manifest.from_bytes(encode(raw(**{field: value})))
    except FormatError:
        return
    assert manifest.to_bytes() == encode(raw(**{field: value}))


@given(field=st.sampled_from(list(TENSOR)), value=json_values)
def test_odd_tensor_fields_never_crash(field: str, value: Any) -> None:
    try:
        manifest = Manifest.from_bytes(encode(raw(tensors=[{**TENSOR, field: value}])))
    except FormatError:
        return
    assert all(isinstance(tensor.name, str) and tensor.size_bytes >= 0 for tensor in manifest.tensors)


def test_large_tensors_come_in_pieces() -> None:
    size = 2 * PIECE_BYTES + 4
    pieces = tuple(digest_bytes(bytes([i])) for i in range(3))
    entry = TensorEntry.of_pieces("big", "F32", (size // 4,), size, pieces)
    assert entry.blobs() == list(zip(pieces, [PIECE_BYTES, PIECE_BYTES, 4]))
    manifest = Manifest.of([entry])
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert manifest.blobs() == dict(entry.blobs())
    small = TensorEntry.of_pieces("small", "F32", (2,), 8, (DIGEST,))
    assert (small.digest, small.pieces) == (DIGEST, ())


@pytest.mark.parametrize("change", ["none", "few", "swapped", "small"])
def test_pieces_that_do_not_make_the_tensor_are_refused(change: str) -> None:
    size = PIECE_BYTES + 4
    pieces = [digest_bytes(bytes([i])) for i in range(2)]
    entry = {"name": "w", "dtype": "F32", "shape": [size // 4], "size": size, "digest": joined_digest(pieces)}
    entry["pieces"] = {"none": [], "few": pieces[:1], "swapped": pieces[::-1], "small": pieces}[change]
    if change == "small":
        entry |= {"shape": [2], "size": 8}
    with pytest.raises(FormatError):
        Manifest.from_bytes(encode(raw(tensors=[entry])))
