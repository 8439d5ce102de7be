"""What a push sends: tensors, the files that ride along, and what the local files were when they were opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mindeval.client._content import Content, PathLike, Stamp
from mindeval.formats.checkpoints import OpenCheckpoint, TensorContent, open_candidate
from mindeval.formats.errors import FormatError
from mindeval.formats.model import CONFIG_FILE, DESCRIPTION_FILE
from mindeval.formats.readers import Candidate
from mindeval.formats.selection import find_checkpoint

WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class PushSource:
    """A checkpoint that was opened: headers are checked, digests not computed yet.

    Attributes:
        tensors: Its tensors.
        files: What rides along, by path in the checkpoint.
        stamps: (size, modification time, inode) of every local file when it was opened.
    """

    tensors: Sequence[TensorContent]
    files: Mapping[str, Content]
    stamps: Mapping[str, Stamp] = field(default_factory=dict)

    @classmethod
    def of(cls, opened: OpenCheckpoint) -> PushSource:
        """What a reader found."""
        return cls(opened.tensors, opened.files, opened.stamps)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors and files, equal ones counted each time."""
        return sum(tensor.size_bytes for tensor in self.tensors) + sum(file.size_bytes for file in self.files.values())


def open_checkpoint(
    path: PathLike | Candidate,
    files: Mapping[str, PathLike] | None = None,
    model_files: PathLike | None = None,
) -> PushSource:
    """Opens a checkpoint and checks what its container has to say: checksums, and copies that should be equal.

    Args:
        path: A folder or file (see `mindeval.formats.checkpoints.open_local`), or what `readers.look` found.
        files: What rides along, by path in the checkpoint; what lies beside the weights when None.
        model_files: A folder with the model description and tokenizer, instead of what lies beside the weights.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE, CHECKPOINT_TRUNCATED, CHECKPOINT_CORRUPT, MODEL_UNSUPPORTED (no model
            description) or MODEL_INVALID; metadata name the file.
    """
    named = path.path if isinstance(path, Candidate) else os.fspath(path)
    candidate = path if isinstance(path, Candidate) else find_checkpoint(path)
    if model_files is not None:
        named = os.fspath(model_files)
        if not any(os.path.isfile(os.path.join(named, name)) for name in (CONFIG_FILE, DESCRIPTION_FILE)):
            raise FormatError(
                "MODEL_UNSUPPORTED",
                f"{named}: not a folder with {CONFIG_FILE} or {DESCRIPTION_FILE}",
                {"file": named},
            )
    opened = open_candidate(candidate, files, None, named)
    opened.verify()
    return PushSource.of(opened)
