"""Opens one file of either format."""

from __future__ import annotations

import os

from mindeval.formats.readers.files import PathLike, unreadable
from mindeval.formats.readers.mindspore_ckpt import read_mindspore_ckpt
from mindeval.formats.readers.records import CheckpointFile
from mindeval.formats.readers.safetensors_file import read_safetensors


def open_tensors(path: PathLike) -> CheckpointFile:
    """Finds the tensors of a .ckpt or .safetensors file.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE (any other name ending included) or CHECKPOINT_TRUNCATED; metadata name the
            file and the tensor.
    """
    name = os.fspath(path)
    if name.endswith(".safetensors"):
        return read_safetensors(path)
    if name.endswith(".ckpt"):
        return read_mindspore_ckpt(path)
    raise unreadable(path, "neither .safetensors nor .ckpt; save the weights in one of these formats")
