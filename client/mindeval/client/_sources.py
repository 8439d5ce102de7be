"""Checkpoints on disk: what tensors and files they hold, where their bytes lie, and what their digests are.

Packaging does not matter: one file or shards, any order of tensors, any name of the file give the same manifest.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindeval.client._content import (
    Content,
    PathLike,
    Span,
    Stamp,
    check_unchanged,
    file_contents,
    hash_contents,
    os_error,
    stamp_of,
    stat_of,
    unreadable,
)
from mindeval.formats import safetensors
from mindeval.formats.errors import FormatError
from mindeval.formats.manifest import FileEntry, Manifest, TensorEntry
from mindeval.formats.model import CONFIG_FILE, DESCRIPTION_FILE, TOKENIZER_FILE, GraphDescription

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# Files of a Hugging Face folder that belong to the model; all else in it (README, optimizer state) stays behind.
RIDE_ALONG_FILES = (
    CONFIG_FILE,
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "preprocessor_config.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
_MAX_DESCRIPTION_BYTES = 16 << 20


@dataclass(frozen=True)
class TensorSource:
    """A tensor and where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    span: Span


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint that was opened: headers are checked, digests not computed yet.

    Attributes:
        tensors: Its tensors.
        files: What rides along, by path in the checkpoint.
        stamps: (size, modification time, inode) of every local file when it was opened.
    """

    tensors: tuple[TensorSource, ...]
    files: Mapping[str, Content]
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


@dataclass(frozen=True)
class HashedCheckpoint:
    """A checkpoint with its manifest, and the content of each blob by digest."""

    source: CheckpointSource
    manifest: Manifest
    contents: Mapping[str, Content]


def open_checkpoint(path: PathLike, files: Mapping[str, PathLike] | None = None) -> CheckpointSource:
    """Opens a checkpoint: a folder, or one .safetensors file.

    A folder holds config.json (Hugging Face) or mindeval_model.json with its graph, and its weights as
    model.safetensors, as shards with model.safetensors.index.json, or as the only .safetensors file in it.

    Args:
        path: The folder or file.
        files: For a file: what rides along, by path in the checkpoint. What lies beside the file when None.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE, CHECKPOINT_TRUNCATED, MODEL_UNSUPPORTED (no model description) or
            MODEL_INVALID; metadata name the file.
    """
    where = Path(path)
    is_folder = stat.S_ISDIR(stat_of(where).st_mode)
    stamps: dict[str, Stamp] = {}
    weights = _weights_of_folder(where) if is_folder else [_checked_weights_file(where)]
    if files is None:
        found = _ride_along(where if is_folder else where.parent, where)
    else:
        found = {name: Path(local) for name, local in files.items()}
        if CONFIG_FILE not in found and DESCRIPTION_FILE not in found:
            raise _no_description(where)
    tensors = _read_headers(weights, stamps)
    return CheckpointSource(tuple(tensors), file_contents(found, stamps), stamps)


def open_weights(path: PathLike) -> CheckpointSource:
    """Opens one .safetensors file, whatever its name, without the files that belong to it.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE or CHECKPOINT_TRUNCATED; metadata name the file.
    """
    stamps: dict[str, Stamp] = {}
    return CheckpointSource(tuple(_read_headers([Path(path)], stamps)), {}, stamps)


def hash_checkpoint(source: CheckpointSource, threads: int | None = None) -> HashedCheckpoint:
    """Computes the digest of every tensor and file, and the manifest.

    Args:
        source: The opened checkpoint.
        threads: How many to use; None for one a core, at most four.

    Raises:
        CheckpointChanged: When a file changed meanwhile.
        FormatError: CHECKPOINT_UNREADABLE when it cannot be read, MANIFEST_INVALID.
    """
    files = list(source.files.items())
    contents: list[Content] = [*(tensor.span for tensor in source.tensors), *(content for _, content in files)]
    found = hash_contents(contents, threads)
    check_unchanged(source.stamps)
    manifest = Manifest.of(
        [
            TensorEntry(tensor.name, tensor.dtype, tensor.shape, tensor.span.size_bytes, digest)
            for tensor, digest in zip(source.tensors, found)
        ],
        [
            FileEntry(name, content.size_bytes, digest)
            for (name, content), digest in zip(files, found[len(source.tensors) :])
        ],
    )
    return HashedCheckpoint(source, manifest, dict(zip(found, contents)))


def _weights_of_folder(folder: Path) -> list[Path]:
    names = _names(folder)
    if INDEX_FILE in names:
        return _shards(folder, names)
    if WEIGHTS_FILE in names:
        return [folder / WEIGHTS_FILE]
    found = sorted(name for name in names if name.endswith(".safetensors"))
    if len(found) == 1:
        return [folder / found[0]]
    if found:
        raise unreadable(
            folder, f"it holds {len(found)} .safetensors files ({', '.join(found[:3])}, ...) and no {INDEX_FILE}"
        )
    other = next((name for name in sorted(names) if name.endswith((".ckpt", ".bin", ".pt", ".pth"))), None)
    hint = f" ({other} is in another format; save the weights as safetensors)" if other else ""
    raise unreadable(folder, f"it holds no .safetensors file{hint}")


def _shards(folder: Path, names: set[str]) -> list[Path]:
    index = folder / INDEX_FILE
    try:
        weight_map = json.loads(_read_small(index))["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(index, f"not an index with a weight_map ({type(error).__name__}: {error})") from None
    for shard in shards:
        if not isinstance(shard, str) or shard != os.path.basename(shard) or shard in ("", ".", ".."):
            raise unreadable(index, f"{shard!r} is not the name of a file in the same folder")
        if shard not in names:
            raise unreadable(folder / shard, f"no such file, but {INDEX_FILE} names it; copy the missing shard")
    return [folder / shard for shard in shards]


def _checked_weights_file(path: Path) -> Path:
    if path.suffix == ".safetensors":
        return path
    if path.suffix == ".ckpt":
        hint = "save it with mindspore.save_checkpoint(network, 'model.safetensors', format='safetensors')"
    else:
        hint = "a checkpoint is a folder or a .safetensors file"
    raise unreadable(path, f"not in a format that can be pushed; {hint}")


def _ride_along(folder: Path, named: Path) -> dict[str, Path]:
    names = _names(folder)
    if DESCRIPTION_FILE in names and CONFIG_FILE in names:
        raise FormatError(
            "MODEL_INVALID",
            f"{folder}: it holds both {CONFIG_FILE} and {DESCRIPTION_FILE}; keep the one that describes the model",
            {"file": str(folder)},
        )
    found = {name: folder / name for name in RIDE_ALONG_FILES if name in names}
    if DESCRIPTION_FILE in names:
        description = GraphDescription.from_bytes(_read_small(folder / DESCRIPTION_FILE))
        if description.graph not in names:
            raise FormatError(
                "MODEL_INVALID",
                f"{folder / description.graph}: no such file, but {DESCRIPTION_FILE} names it as the graph; export it "
                "with mindspore.export",
                {"file": str(folder / description.graph)},
            )
        found[DESCRIPTION_FILE] = folder / DESCRIPTION_FILE
        found[description.graph] = folder / description.graph
    elif CONFIG_FILE not in names:
        raise _no_description(named)
    return found


def _read_headers(paths: Iterable[Path], stamps: dict[str, Stamp]) -> Iterator[TensorSource]:
    homes: dict[str, Path] = {}
    for path in paths:
        header = _read_header(path, stamps)
        for slot in header.tensors:
            if slot.name in homes:
                raise unreadable(path, f"tensor {slot.name!r} is in {homes[slot.name].name} as well")
            homes[slot.name] = path
            yield TensorSource(slot.name, slot.dtype, slot.shape, Span(str(path), slot.begin, slot.end))


def _read_header(path: Path, stamps: dict[str, Stamp]) -> safetensors.Header:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise unreadable(path, "not a regular file")
            stamps[str(path)] = stamp_of(status)
            prefix = file.read(8)
            length = safetensors.header_length(prefix, status.st_size, str(path))
            prefix += file.read(length)
    except OSError as error:
        raise os_error(path, error) from None
    return safetensors.parse_header(prefix, status.st_size, str(path))


def _read_small(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_DESCRIPTION_BYTES + 1)
    except OSError as error:
        raise os_error(path, error) from None
    if len(data) > _MAX_DESCRIPTION_BYTES:
        raise unreadable(path, f"larger than {_MAX_DESCRIPTION_BYTES >> 20} MiB")
    return data


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError as error:
        raise os_error(folder, error) from None


def _no_description(path: Path) -> FormatError:
    return FormatError(
        "MODEL_UNSUPPORTED",
        f"{path}: nothing says what model the weights belong to; add {CONFIG_FILE} (a Hugging Face model), or "
        f"{DESCRIPTION_FILE} and the MindIR graph that mindspore.export writes",
        {"file": str(path)},
    )
