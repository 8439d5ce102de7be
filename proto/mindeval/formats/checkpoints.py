"""A checkpoint on disk, whatever its container: its weights, where their bytes lie, and the files that ride along.

    opened = open_local("output/checkpoint_network")       # or one file, or a Hugging Face folder
    opened.verify()                                        # checksums and copies, where the container has them
    for tensor in opened.tensors:
        for begin, end in tensor.piece_ranges():           # the blobs of a manifest
            for chunk in tensor.iter_bytes(begin, end): ...

Packaging does not matter: one file or shards, .safetensors or .ckpt, whole or in the slices of many ranks, any order of
tensors, any name of the file: the same weights are the same tensors. What belongs to the training and not to the model
(`readers.is_training_state`) is left out.

Nothing but headers is read when a checkpoint is opened. What a file was then is kept in `stamps`: compare it when all
bytes were read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from mindeval.formats.manifest import PIECE_BYTES
from mindeval.formats.readers.assembly import CHUNK_BYTES, iter_bytes
from mindeval.formats.readers.files import FilePool, PathLike, open_regular, stamp_of, unreadable
from mindeval.formats.readers.layouts import Candidate
from mindeval.formats.readers.mindspore_ckpt import verify_crc
from mindeval.formats.readers.opening import open_tensors
from mindeval.formats.readers.parts import AssembledTensor
from mindeval.formats.readers.records import ByteSpan, CheckpointFile, Stamp, TensorRecord
from mindeval.formats.readers.slices import assemble, assemble_replicated, verify_replicas
from mindeval.formats.readers.strategy import read_strategy
from mindeval.formats.readers.training_state import select_weights
from mindeval.formats.ride_along import ride_along_files
from mindeval.formats.selection import find_checkpoint

__all__ = ["OpenCheckpoint", "TensorContent", "open_candidate", "open_local", "open_weights"]


@dataclass(frozen=True)
class TensorContent:
    """A tensor of the model, and its bytes (row-major, little-endian).

    Attributes:
        name: Its name.
        dtype: Name of its dtype as in safetensors, such as "BF16".
        shape: Its shape.
        size_bytes: Length of its bytes.
        source: Where they lie: in spans of files, or in slices of several ranks.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    source: TensorRecord | AssembledTensor

    @classmethod
    def of(cls, source: TensorRecord | AssembledTensor) -> TensorContent:
        """The tensor that a reader found."""
        return cls(source.name, source.dtype, source.shape, source.size_bytes, source)

    def piece_ranges(self) -> list[tuple[int, int]]:
        """The bytes [begin, end) of each blob that a manifest stores it in (`PIECE_BYTES` at a time); at least one."""
        starts = range(0, max(self.size_bytes, 1), PIECE_BYTES)
        return [(begin, min(begin + PIECE_BYTES, self.size_bytes)) for begin in starts]

    def spans(self, begin: int = 0, end: int | None = None) -> tuple[ByteSpan, ...] | None:
        """The pieces of files that hold its bytes [begin, end), in order; None when slices must be put together."""
        if isinstance(self.source, AssembledTensor):
            return None
        end = self.size_bytes if end is None else end
        found, position = [], 0
        for span in self.source.spans:
            low, high = max(begin - position, 0), min(end - position, span.size_bytes)
            if low < high:
                found.append(ByteSpan(span.path, span.begin + low, span.begin + high))
            position += span.size_bytes
        return tuple(found)

    def iter_bytes(
        self, begin: int = 0, end: int | None = None, chunk_bytes: int = CHUNK_BYTES, pool: FilePool | None = None
    ) -> Iterator[bytes]:
        """Its bytes [begin, end), in order; takes about three times `chunk_bytes` of memory.

        Args:
            begin: First byte.
            end: Behind the last byte; None for all.
            chunk_bytes: Length of a chunk, at most.
            pool: Open files to share over several tensors of one thread; None for files of its own.

        Raises:
            FormatError: CHECKPOINT_TRUNCATED when a file is shorter by now, CHECKPOINT_UNREADABLE when it cannot be
                read; metadata name the file and the tensor.
        """
        end = self.size_bytes if end is None else end
        if isinstance(self.source, AssembledTensor):
            yield from iter_bytes(self.source, chunk_bytes, pool, begin, end)
            return
        with nullcontext(pool) if pool is not None else FilePool() as files:
            for span in self.spans(begin, end) or ():
                for offset in range(span.begin, span.end, chunk_bytes):
                    chunk = bytearray(min(chunk_bytes, span.end - offset))
                    files.read_into(span.path, offset, memoryview(chunk), self.name)
                    yield bytes(chunk)


@dataclass(frozen=True)
class OpenCheckpoint:
    """A checkpoint whose headers are checked, and whose tensors are not read yet.

    Attributes:
        tensors: The weights.
        files: What rides along (model description, tokenizer): the whole local file, by path in the checkpoint.
        stamps: What every local file was when it was opened, by path.
        containers: The opened files, for their checksums.
        copied: Tensors that several ranks hold and nothing but their equality says that they are whole.
    """

    tensors: tuple[TensorContent, ...]
    files: Mapping[str, ByteSpan]
    stamps: Mapping[str, Stamp]
    containers: tuple[CheckpointFile, ...] = ()
    copied: tuple[AssembledTensor, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors and files."""
        return sum(tensor.size_bytes for tensor in self.tensors) + sum(span.size_bytes for span in self.files.values())

    def verify(self, on_piece: Callable[[], None] | None = None) -> None:
        """Checks what the container itself has to say: a .ckpt's checksum, copies of ranks without a strategy.

        Reads the files that it concerns once, a piece at a time; most checkpoints have nothing to check.

        Args:
            on_piece: Called before each piece; may raise to end it.

        Raises:
            FormatError: CHECKPOINT_CORRUPT, CHECKPOINT_UNREADABLE when ranks disagree, CHECKPOINT_TRUNCATED.
        """
        for container in self.containers:
            verify_crc(container, on_piece)
        verify_replicas(self.copied, on_piece)


def open_local(
    path: PathLike, files: Mapping[str, PathLike] | None = None, within: PathLike | None = None
) -> OpenCheckpoint:
    """Opens a checkpoint: a folder (Hugging Face, or ranks as MindSpore saves them), or one file.

    A file in a rank_N folder stands for the files of all ranks of that step. A folder that holds several checkpoints is
    refused: name one of them.

    Args:
        path: The folder or file.
        files: What rides along, by path in the checkpoint; None for what lies beside the weights.
        within: A folder that nothing outside of is looked at; None for no bound.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE, CHECKPOINT_TRUNCATED, MODEL_UNSUPPORTED (no model description) or
            MODEL_INVALID; metadata name the file.
    """
    return open_candidate(find_checkpoint(path, within), files, within, path)


def open_candidate(
    candidate: Candidate,
    files: Mapping[str, PathLike] | None = None,
    within: PathLike | None = None,
    named: PathLike | None = None,
) -> OpenCheckpoint:
    """Opens what `readers.look` found.

    Args:
        candidate: A complete one.
        files: As for `open_local`.
        within: As for `open_local`.
        named: What the user called it, for messages; also looked in for files that ride along.

    Raises:
        FormatError: As `open_local`; CHECKPOINT_UNREADABLE when it is not complete.
    """
    if candidate.unfinished:
        raise unreadable(candidate.path, f"it is not complete: {candidate.unfinished}")
    riding = ride_along_files(candidate, named if named is not None else candidate.path, files, within)
    stamps = {file.path: file.stamp for file in candidate.files}
    if len({file.rank for file in candidate.files}) > 1:
        return _open_ranks(candidate, riding, stamps)
    weights = [file.path for file in candidate.files if file.path.endswith((".safetensors", ".ckpt"))]
    return _open_files(weights, riding, stamps)


def open_weights(path: PathLike) -> OpenCheckpoint:
    """Opens one file of weights, whatever lies beside it.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED; metadata name the file and the tensor.
    """
    return _open_files([os.fspath(path)], {}, {})


def _open_files(paths: Iterable[str], riding: Mapping[str, Path], stamps: dict[str, Stamp]) -> OpenCheckpoint:
    containers: list[CheckpointFile] = []
    homes: dict[str, str] = {}
    for path in paths:
        container = open_tensors(path)
        for tensor in container.tensors:
            if tensor.name in homes:
                raise unreadable(path, f"it is in {os.path.basename(homes[tensor.name])} as well", tensor.name)
            homes[tensor.name] = path
        stamps[path] = container.stamp
        containers.append(container)
    weights = select_weights(tensor for container in containers for tensor in container.tensors)
    contents = _file_contents(riding, stamps)
    return OpenCheckpoint(tuple(map(TensorContent.of, weights)), contents, stamps, tuple(containers))


def _open_ranks(candidate: Candidate, riding: Mapping[str, Path], stamps: dict[str, Stamp]) -> OpenCheckpoint:
    if candidate.strategy_files:
        for path in candidate.strategy_files:
            with open_regular(path) as (_, status):
                stamps[path] = stamp_of(status)
        strategy = read_strategy(candidate.strategy_files)
        tensors, copied = assemble(candidate.ranks, strategy), []
    else:
        copied = assemble_replicated(candidate.ranks)
        tensors = copied
    contents = _file_contents(riding, stamps)
    return OpenCheckpoint(tuple(map(TensorContent.of, tensors)), contents, stamps, (), tuple(copied))


def _file_contents(riding: Mapping[str, Path], stamps: dict[str, Stamp]) -> dict[str, ByteSpan]:
    contents: dict[str, ByteSpan] = {}
    for name, local in riding.items():
        with open_regular(local) as (_, status):
            stamps[str(local)] = stamp_of(status)
            contents[name] = ByteSpan(str(local), 0, status.st_size)
    return contents
