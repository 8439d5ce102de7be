"""Checkpoint manifests: a checkpoint is what its tensors and files contain, not how they are packed.

A manifest is canonical JSON (UTF-8, keys sorted, no white space; tensors sorted by name, files by path), so equal
content has equal bytes and one digest, which names the checkpoint:

    {"files":[{"digest":"blake3:..","path":"config.json","size":683}],
     "mindeval_manifest":1,
     "tensors":[{"digest":"blake3:..","dtype":"F32","name":"lm_head.weight","shape":[257,64],"size":65792}]}

A tensor's digest is that of its bytes (row-major, little-endian). A tensor larger than `PIECE_BYTES` is stored in
pieces of that size (the last may be shorter): its entry has `"pieces":["blake3:..",..]`, and its digest is that of the
pieces' digests, joined as raw bytes, so that one pass over the tensor gives both. Digests refer to blobs of the same
project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindeval.formats.digest import digest_bytes, digest_hex, is_digest
from mindeval.formats.errors import FormatError
from mindeval.formats.safetensors import ITEM_SIZE, MAX_DIMENSIONS, MAX_TENSORS, tensor_size_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = 1
PIECE_BYTES = 64 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILES = 1_000
MAX_NAME_LENGTH = 1_024


@dataclass(frozen=True, order=True)
class TensorEntry:
    """One tensor: name, dtype name (as in safetensors), shape, size in bytes, digest; digests of its pieces if large.

    Build a large one with `TensorEntry.of_pieces`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    digest: str
    pieces: tuple[str, ...] = ()

    @classmethod
    def of_pieces(cls, name: str, dtype: str, shape: tuple[int, ...], size_bytes: int, pieces: tuple[str, ...]) -> Self:
        """The entry of a tensor whose bytes have these digests, `PIECE_BYTES` at a time (one digest if it is small)."""
        if size_bytes <= PIECE_BYTES:
            (digest,) = pieces
            return cls(name, dtype, shape, size_bytes, digest)
        return cls(name, dtype, shape, size_bytes, joined_digest(pieces), pieces)

    def blobs(self) -> list[tuple[str, int]]:
        """Digest and size in bytes of the blobs that hold its bytes, in order."""
        if not self.pieces:
            return [(self.digest, self.size_bytes)]
        sizes = [PIECE_BYTES] * (len(self.pieces) - 1)
        return list(zip(self.pieces, [*sizes, self.size_bytes - sum(sizes)]))


@dataclass(frozen=True, order=True)
class FileEntry:
    """One file that rides along (model description, tokenizer): relative path, size in bytes, digest."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """Tensors by name and files by path. Build one with `Manifest.of`, which sorts and checks."""

    tensors: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]

    @classmethod
    def of(cls, tensors: Iterable[TensorEntry], files: Iterable[FileEntry] = ()) -> Manifest:
        """Builds a manifest.

        Raises:
            FormatError: MANIFEST_INVALID when a name stands twice or an entry contradicts itself.
        """
        manifest = cls(tuple(sorted(tensors)), tuple(sorted(files)))
        manifest._check()
        return manifest

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Reads a manifest from outside.

        Raises:
            FormatError: MANIFEST_INVALID; metadata name the field.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise _invalid(f"{len(data)} bytes; at most {MAX_MANIFEST_BYTES} are read")
        try:
            raw = json.loads(data.decode("utf-8"))
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise _invalid(f"not JSON ({error})") from None
        if not isinstance(raw, dict) or raw.keys() != {"mindeval_manifest", "tensors", "files"}:
            raise _invalid("expected an object with mindeval_manifest, tensors and files")
        if raw["mindeval_manifest"] != VERSION:
            raise _invalid(f"version {raw['mindeval_manifest']!r}; this release reads version {VERSION}")
        manifest = cls(
            tuple(_tensor(entry, f"tensors[{i}]") for i, entry in enumerate(_list(raw["tensors"], "tensors"))),
            tuple(_file(entry, f"files[{i}]") for i, entry in enumerate(_list(raw["files"], "files"))),
        )
        manifest._check()
        if manifest.to_bytes() != data:
            raise _invalid("not in canonical form (keys and entries sorted, no white space)")
        return manifest

    def to_bytes(self) -> bytes:
        """The canonical form."""
        return json.dumps(
            {
                "mindeval_manifest": VERSION,
                "tensors": [
                    {
                        "name": t.name,
                        "dtype": t.dtype,
                        "shape": list(t.shape),
                        "size": t.size_bytes,
                        "digest": t.digest,
                        **({"pieces": list(t.pieces)} if t.pieces else {}),
                    }
                    for t in self.tensors
                ],
                "files": [{"path": f.path, "size": f.size_bytes, "digest": f.digest} for f in self.files],
            },
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
        ).encode("utf-8")

    @property
    def digest(self) -> str:
        """Name of the checkpoint."""
        return digest_bytes(self.to_bytes())

    def blobs(self) -> dict[str, int]:
        """Size in bytes of every blob that the checkpoint needs, by digest."""
        sizes = {digest: size for tensor in self.tensors for digest, size in tensor.blobs()}
        sizes.update((file.digest, file.size_bytes) for file in self.files)
        return sizes

    def file(self, path: str) -> FileEntry | None:
        """The file of that path, if there is one."""
        return next((entry for entry in self.files if entry.path == path), None)

    def _check(self) -> None:
        if len(self.tensors) > MAX_TENSORS or len(self.files) > MAX_FILES:
            raise _invalid(f"more than {MAX_TENSORS} tensors or {MAX_FILES} files")
        _check_sorted([tensor.name for tensor in self.tensors], "tensors")
        _check_sorted([file.path for file in self.files], "files")
        sizes: dict[str, int] = {}
        for digest, size in [(t.digest, t.size_bytes) for t in self.tensors] + [
            (f.digest, f.size_bytes) for f in self.files
        ]:
            # One digest with two sizes is a lie about at least one of them.
            if sizes.setdefault(digest, size) != size:
                raise _invalid(f"{digest} stands with two sizes")


def joined_digest(pieces: Iterable[str]) -> str:
    """Digest of a tensor in pieces: over the pieces' digests as raw bytes, one after the other."""
    return digest_bytes(b"".join(bytes.fromhex(digest_hex(piece)) for piece in pieces))


def _tensor(raw: Any, field: str) -> TensorEntry:
    keys = {"name", "dtype", "shape", "size", "digest"}
    _check_keys(raw, keys | {"pieces"} if isinstance(raw, Mapping) and "pieces" in raw else keys, field)
    _check_text(raw["name"], f"{field}.name")
    if not isinstance(raw["dtype"], str) or raw["dtype"] not in ITEM_SIZE:
        raise _invalid(f"{field}.dtype is unknown", field)
    shape = _list(raw["shape"], f"{field}.shape")
    if len(shape) > MAX_DIMENSIONS:
        raise _invalid(f"{field}.shape has more than {MAX_DIMENSIONS} dimensions", field)
    for dim in shape:
        _check_size(dim, f"{field}.shape")
    _check_size(raw["size"], f"{field}.size")
    if raw["size"] != tensor_size_bytes(raw["dtype"], shape):
        raise _invalid(f"{field}.size is not what its dtype and shape need", field)
    _check_entry_digest(raw["digest"], field)
    pieces = _list(raw.get("pieces", []), f"{field}.pieces")
    for piece in pieces:
        _check_entry_digest(piece, f"{field}.pieces")
    needed = -(-raw["size"] // PIECE_BYTES) if raw["size"] > PIECE_BYTES else 0
    if len(pieces) != needed or (pieces and joined_digest(pieces) != raw["digest"]):
        raise _invalid(f"{field}.pieces must be {needed} digests whose own digest is the tensor's", field)
    return TensorEntry(raw["name"], raw["dtype"], tuple(shape), raw["size"], raw["digest"], tuple(pieces))


def _file(raw: Any, field: str) -> FileEntry:
    _check_keys(raw, {"path", "size", "digest"}, field)
    _check_text(raw["path"], f"{field}.path")
    parts = raw["path"].split("/")
    if "\\" in raw["path"] or any(part in ("", ".", "..") for part in parts):
        raise _invalid(f"{field}.path must be relative, without '.', '..' or backslashes", field)
    _check_size(raw["size"], f"{field}.size")
    _check_entry_digest(raw["digest"], field)
    return FileEntry(raw["path"], raw["size"], raw["digest"])


def _check_keys(raw: Any, keys: set[str], field: str) -> None:
    if not isinstance(raw, Mapping) or raw.keys() != keys:
        raise _invalid(f"{field} must have exactly {', '.join(sorted(keys))}", field)


def _check_text(value: Any, field: str) -> None:
    if not isinstance(value, str) or not value or len(value) > MAX_NAME_LENGTH or "\0" in value:
        raise _invalid(f"{field} must be 1 to {MAX_NAME_LENGTH} characters", field)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _invalid(f"{field} is not valid Unicode", field) from None


def _check_size(value: Any, field: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise _invalid(f"{field} must be a whole number from 0 to 2^53", field)


def _check_entry_digest(value: Any, field: str) -> None:
    if not isinstance(value, str) or not is_digest(value):
        raise _invalid(f"{field}.digest is malformed", field)


def _check_sorted(names: list[str], field: str) -> None:
    for before, after in zip(names, names[1:]):
        if before >= after:
            what = f"{after!r} stands twice" if before == after else f"not sorted at {after!r}"
            raise _invalid(f"{field}: {what}", field)


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise _invalid(f"{field} must be a list", field)
    return value


def _invalid(what: str, field: str = "") -> FormatError:
    return FormatError("MANIFEST_INVALID", f"checkpoint manifest: {what}", {"field": field} if field else {})
