"""A checkpoint: its manifest, and where its blobs lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from mindeval.formats.manifest import Manifest, TensorEntry
from mindeval.service.runtime.checkpoints.blobs import read_pieces, read_verified
from mindeval.service.runtime.checkpoints.tensors import decode
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import BlobLocation


class Checkpoint:
    """Tensors by name and files by path, verified as they are read.

    Attributes:
        digest: The checkpoint's identity, the digest of its manifest.
        manifest: What it contains.
        tensors: Entries by name.
    """

    def __init__(self, digest: str, manifest: Manifest, blobs: Mapping[str, BlobLocation]) -> None:
        self.digest = digest
        self.manifest = manifest
        self.tensors: dict[str, TensorEntry] = {entry.name: entry for entry in manifest.tensors}
        self._blobs = blobs

    @classmethod
    def open(cls, location: BlobLocation, digest: str, blobs: Mapping[str, BlobLocation]) -> Checkpoint:
        """Reads and verifies the manifest; tensors and files are read later.

        Args:
            location: Where the manifest lies.
            digest: Digest of the manifest.
            blobs: Where each blob lies, by digest.

        Raises:
            RunnerError: BLOB_MISSING or CHECKPOINT_CORRUPT.
            FormatError: MANIFEST_INVALID.
        """
        data = read_verified(location, digest, None, {"file": "manifest"})
        return cls(digest, Manifest.from_bytes(data.tobytes()), blobs)

    def file(self, path: str) -> bytes | None:
        """Content of a file that rides along, None when the checkpoint has none of that path.

        Raises:
            RunnerError: BLOB_MISSING, CHECKPOINT_TRUNCATED or CHECKPOINT_CORRUPT.
        """
        entry = self.manifest.file(path)
        if entry is None:
            return None
        return read_verified(
            self._location(entry.digest, {"file": path}), entry.digest, entry.size_bytes, {"file": path}
        ).tobytes()

    def file_digest(self, path: str) -> str:
        """Digest of a file that rides along; "" when there is none."""
        entry = self.manifest.file(path)
        return "" if entry is None else entry.digest

    def read(self, name: str) -> npt.NDArray[Any]:
        """A tensor, in memory of the caller's own.

        Returns:
            float32 for every float dtype, else the tensor's own dtype.

        Raises:
            RunnerError: BLOB_MISSING, CHECKPOINT_TRUNCATED, CHECKPOINT_CORRUPT, NON_FINITE_WEIGHT or TENSOR_MISMATCH.
        """
        entry = self.tensors[name]
        what = {"tensor": name}
        pieces = [(self._location(digest, what), digest, size) for digest, size in entry.blobs()]
        return decode(entry, read_pieces(pieces, what))

    def _location(self, digest: str, what: Mapping[str, str]) -> BlobLocation:
        location = self._blobs.get(digest)
        if location is None:
            label = " ".join(f"{key} {value!r}" for key, value in what.items())
            raise RunnerError(
                "BLOB_MISSING", f"no blob {digest} for {label}; push it again", {**what, "digest": digest}
            )
        return location
