"""Full tensors out of the slices that the ranks of a distributed training save, described and not yet read.

Which rank holds which slice follows from the layout (see `strategy`), checked against MindSpore's own merge:

- The coordinates of a rank in the device matrix give, through the tensor map, the slice along each axis.
- Ranks with equal slices are replicas, in the order of their numbers. With an optimizer shard of n ranks, the k-th
  replica holds the (k mod n)-th part of the first axis of the slice.
- Stage s of a pipeline has the ranks from s * stage_devices. A parameter of several stages (a tied embedding) is taken
  from the first, and the others are replicas.
- With remove_redundancy, a slice is in the file of one of its replicas only; so any of them will do.
- A tensor that the strategy does not name is whole on every rank that has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from mindeval.formats.digest import Hasher
from mindeval.formats.errors import FormatError
from mindeval.formats.readers.assembly import iter_record_bytes
from mindeval.formats.readers.files import FilePool, PathLike, unreadable
from mindeval.formats.readers.grid import SliceGrid
from mindeval.formats.readers.opening import open_tensors
from mindeval.formats.readers.parts import AssembledTensor, SlicePart
from mindeval.formats.readers.records import CheckpointFile, TensorRecord
from mindeval.formats.readers.strategy import ParameterLayout, Strategy
from mindeval.formats.readers.training_state import is_training_state

__all__ = ["AssembledTensor", "SlicePart", "assemble", "assemble_replicated", "verify_replicas"]

_COMPARE_BYTES = 1 << 20


def assemble(
    files: Mapping[int, PathLike], strategy: Strategy, names: Iterable[str] | None = None
) -> list[AssembledTensor]:
    """Describes full tensors as assemblies of slices.

    Reads the headers of the files, no tensor. Files of ranks may be left out when replicas hold all that they hold.

    Args:
        files: By rank, its .ckpt or .safetensors file; all of one step.
        strategy: How the training sliced its parameters.
        names: Which tensors; None for those of the model (`is_training_state`), in the order of the files. What the
            strategy names and no file holds counts as not saved, unless a file that could hold it is not given.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED; metadata name the rank, the file and the tensor.
    """
    for rank in files:
        if not 0 <= rank < strategy.ranks:
            raise _rank_error(rank, files[rank], f"the strategy {strategy.path} is of {strategy.ranks} ranks")
    opened = _open_all(files)
    wanted = _wanted(opened, names)
    if names is None:
        wanted += _lost(opened, strategy, wanted)
    grids: dict[ParameterLayout, SliceGrid] = {}
    return [_assemble_one(name, opened, strategy, grids) for name in wanted]


def assemble_replicated(files: Mapping[int, PathLike], names: Iterable[str] | None = None) -> list[AssembledTensor]:
    """As `assemble`, for a training that slices nothing (data parallel), which writes no strategy file.

    Nothing in the files says that they hold whole tensors: call `verify_replicas` on the result.

    Raises:
        FormatError: As `assemble`.
    """
    opened = _open_all(files)
    return [_whole(name, _holders(name, opened)) for name in _wanted(opened, names)]


def verify_replicas(tensors: Iterable[AssembledTensor], on_piece: Callable[[], None] | None = None) -> None:
    """Compares all copies of each slice by digest; reads every byte of all ranks, a piece at a time.

    Args:
        tensors: What `assemble` or `assemble_replicated` returned.
        on_piece: Called before each piece; may raise to end it.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when two ranks disagree; metadata name the rank, the file and the tensor.
    """
    with FilePool() as pool:
        for tensor in tensors:
            digests = {part.offsets: _digest(part.record, pool, on_piece) for part in tensor.parts if tensor.replicas}
            first = {part.offsets: part for part in tensor.parts}
            for copy in tensor.replicas:
                if _digest(copy.record, pool, on_piece) != digests[copy.offsets]:
                    other = first[copy.offsets]
                    raise _rank_error(
                        copy.rank,
                        copy.record.path,
                        f"its bytes differ from those of rank {other.rank} ({other.record.path}), which should be "
                        "equal; the files are not of one step, or the strategy is of another training",
                        tensor.name,
                    )


def _open_all(files: Mapping[int, PathLike]) -> dict[int, CheckpointFile]:
    opened: dict[int, CheckpointFile] = {}
    for rank in sorted(files):
        try:
            opened[rank] = open_tensors(files[rank])
        except FormatError as error:
            error.metadata["rank"] = str(rank)
            raise
    return opened


def _wanted(opened: Mapping[int, CheckpointFile], names: Iterable[str] | None) -> list[str]:
    if names is not None:
        return list(dict.fromkeys(names))
    found = dict.fromkeys(tensor.name for file in opened.values() for tensor in file.tensors)
    return [name for name in found if not is_training_state(name, found)]


def _lost(opened: Mapping[int, CheckpointFile], strategy: Strategy, wanted: list[str]) -> list[str]:
    """The model's tensors that only a file that is not given can hold, such as those of a whole pipeline stage."""
    known = {*strategy.layouts, *wanted}
    given = dict.fromkeys(range(strategy.stages), 0)
    for rank in opened:
        given[rank // strategy.stage_devices] += 1
    found = {tensor.name for file in opened.values() for tensor in file.tensors}
    return [
        name
        for name, stages in strategy.layouts.items()
        if name not in found
        and not is_training_state(name, known)
        and any(given[stage] < strategy.stage_devices for stage in stages)
    ]


def _holders(name: str, opened: Mapping[int, CheckpointFile]) -> dict[int, TensorRecord]:
    found = {rank: file.find(name) for rank, file in opened.items()}
    return {rank: record for rank, record in found.items() if record is not None}


def _assemble_one(
    name: str, opened: Mapping[int, CheckpointFile], strategy: Strategy, grids: dict[ParameterLayout, SliceGrid]
) -> AssembledTensor:
    holders = _holders(name, opened)
    layouts = strategy.layouts.get(name)
    if layouts is None:
        return _whole(name, holders)
    parts: list[SlicePart] = []
    replicas: list[SlicePart] = []
    full: tuple[str, tuple[int, ...]] = ("", ())
    stage_ranks = {s: range(s * strategy.stage_devices, (s + 1) * strategy.stage_devices) for s in sorted(layouts)}
    if not holders:
        raise _missing(name, next(iter(stage_ranks.values())), opened, strategy.path)
    for stage, ranks in stage_ranks.items():
        layout = layouts[stage]
        local = {rank: record for rank, record in holders.items() if rank in ranks}
        if not local:
            continue
        if layout not in grids:
            try:
                grids[layout] = SliceGrid(layout)
            except ValueError as error:
                raise unreadable(strategy.path, str(error), name) from None
        found, copies, this = _stage_parts(name, grids[layout], ranks, local, opened, strategy.path)
        if not parts:
            parts, full = found, this
            replicas = copies
        # A stage that slices a tied parameter otherwise holds no replicas of these slices.
        elif this == full and {part.offsets: part.sizes for part in found} == {p.offsets: p.sizes for p in parts}:
            replicas += found + copies
    return AssembledTensor(name, full[0], full[1], tuple(parts), tuple(replicas))


def _stage_parts(
    name: str,
    grid: SliceGrid,
    ranks: range,
    local: Mapping[int, TensorRecord],
    opened: Mapping[int, CheckpointFile],
    strategy_path: str,
) -> tuple[list[SlicePart], list[SlicePart], tuple[str, tuple[int, ...]]]:
    """The parts and their copies that one stage holds, and the dtype and shape of the whole."""
    example = _checked_alike(name, local)
    shape = example.shape
    if grid.size == 1:
        # A layout of nothing but -1 need not have the dimensions of the tensor.
        copies = [SlicePart(rank, record, (0,) * len(shape), shape) for rank, record in local.items()]
        return copies[:1], copies[1:], (example.dtype, shape)
    if len(shape) != len(grid.counts):
        rank = next(iter(local))
        raise _rank_error(
            rank,
            opened[rank].path,
            f"its slice has {len(shape)} dimensions, its layout in {strategy_path} has {len(grid.counts)}",
            name,
        )
    parts: dict[tuple[int, ...], SlicePart] = {}
    replicas: list[SlicePart] = []
    for rank, record in local.items():
        place = grid.place(rank - ranks.start)
        part = SlicePart(rank, record, tuple(index * size for index, size in zip(place, shape)), shape)
        if parts.setdefault(place, part) is not part:
            replicas.append(part)
    if len(parts) < grid.size:
        missing = grid.first_missing(set(parts))
        candidates = [rank for rank in ranks if grid.place(rank - ranks.start) == missing]
        raise _missing(name, candidates, opened, strategy_path)
    full = tuple(count * size for count, size in zip(grid.counts, shape))
    return list(parts.values()), replicas, (example.dtype, full)


def _whole(name: str, holders: Mapping[int, TensorRecord]) -> AssembledTensor:
    if not holders:
        raise FormatError("CHECKPOINT_UNREADABLE", f"tensor {name!r}: no rank's file holds it", {"tensor": name})
    record = _checked_alike(name, holders)
    copies = [SlicePart(rank, held, (0,) * len(held.shape), held.shape) for rank, held in holders.items()]
    return AssembledTensor(name, record.dtype, record.shape, (copies[0],), tuple(copies[1:]))


def _checked_alike(name: str, records: Mapping[int, TensorRecord]) -> TensorRecord:
    (first_rank, first), *others = records.items()
    for rank, record in others:
        if (record.dtype, record.shape) != (first.dtype, first.shape):
            raise _rank_error(
                rank,
                record.path,
                f"it is {record.dtype} {list(record.shape)}, "
                f"but {first.dtype} {list(first.shape)} on rank {first_rank}",
                name,
            )
    return first


def _missing(name: str, ranks: Iterable[int], opened: Mapping[int, CheckpointFile], strategy_path: str) -> FormatError:
    candidates = list(ranks)
    rank = next((rank for rank in candidates if rank not in opened), candidates[0])
    several = f" (or of one of the ranks {candidates[:8]})" if len(candidates) > 1 else ""
    if rank in opened:
        return _rank_error(
            rank, opened[rank].path, f"the file lacks it, and so do those of the ranks {candidates[:8]}", name
        )
    return _rank_error(rank, strategy_path, f"a slice is missing: the file of rank {rank}{several} is not there", name)


def _rank_error(rank: int, path: PathLike, what: str, tensor: str = "") -> FormatError:
    error = unreadable(os.fspath(path), f"rank {rank}: {what}", tensor)
    error.metadata["rank"] = str(rank)
    return error


def _digest(record: TensorRecord, pool: FilePool, on_piece: Callable[[], None] | None) -> str:
    hasher = Hasher()
    pieces: Iterator[bytes] = iter_record_bytes(record, _COMPARE_BYTES, pool)
    for piece in pieces:
        if on_piece is not None:
            on_piece()
        hasher.update(piece)
    return hasher.digest()
