"""Readers: a checkpoint on disk as tensors, and where their bytes lie. No MindSpore, no memory maps, bounded memory.

    tensors = open_tensors("rank_0/llama-3_10.ckpt").tensors            # .ckpt or .safetensors
    weights = select_weights(tensors)                                   # without the optimizer's state

    strategy = read_strategy(["strategy/ckpt_strategy_rank_0.ckpt"])    # slices of distributed training
    for tensor in assemble({0: "rank_0/a.ckpt", 1: "rank_1/a.ckpt"}, strategy):
        for piece in iter_bytes(tensor, chunk_bytes=1 << 20): ...

    before = look(folder); ...; after = look(folder)                    # what a training job has finished writing
    complete_candidates(before, after)

Everything that is read is taken for hostile: lengths, counts and shapes are checked before anything is allocated. Every
failure is a `FormatError` with the reason CHECKPOINT_UNREADABLE, CHECKPOINT_TRUNCATED or CHECKPOINT_CORRUPT and
metadata that name the file and the tensor.
"""

from mindeval.formats.readers.assembly import iter_bytes, iter_record_bytes
from mindeval.formats.readers.files import FilePool
from mindeval.formats.readers.layouts import (
    Candidate,
    CandidateFile,
    FolderLook,
    complete_candidates,
    look,
    preferred_candidates,
)
from mindeval.formats.readers.mindspore_ckpt import read_mindspore_ckpt, verify_crc
from mindeval.formats.readers.opening import open_tensors
from mindeval.formats.readers.records import ByteSpan, CheckpointFile, TensorRecord
from mindeval.formats.readers.safetensors_file import read_safetensors
from mindeval.formats.readers.slices import AssembledTensor, SlicePart, assemble, assemble_replicated, verify_replicas
from mindeval.formats.readers.strategy import ParameterLayout, Strategy, read_strategy
from mindeval.formats.readers.training_state import Progress, is_training_state, read_progress, select_weights

__all__ = [
    "AssembledTensor",
    "ByteSpan",
    "Candidate",
    "CandidateFile",
    "CheckpointFile",
    "FilePool",
    "FolderLook",
    "ParameterLayout",
    "Progress",
    "SlicePart",
    "Strategy",
    "TensorRecord",
    "assemble",
    "assemble_replicated",
    "complete_candidates",
    "is_training_state",
    "iter_bytes",
    "iter_record_bytes",
    "look",
    "open_tensors",
    "preferred_candidates",
    "read_mindspore_ckpt",
    "read_progress",
    "read_safetensors",
    "read_strategy",
    "select_weights",
    "verify_crc",
    "verify_replicas",
]
