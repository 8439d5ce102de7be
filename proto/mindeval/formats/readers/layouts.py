"""What checkpoints a folder holds, and which of them a training job has finished writing.

Known folders, recognised by names alone:

- Hugging Face: model.safetensors, or model.safetensors.index.json and its shards; also in sub-folders such as
  checkpoint-500.
- MindSpore's ModelCheckpoint: PREFIX-EPOCH_STEP.ckpt or .safetensors, the step within the epoch; also inside rank_N.
- MindFormers' CheckpointMonitor: checkpoint/rank_N/PREFIX_rank_N-EPOCH_STEP.ckpt (with the optimizer's state),
  checkpoint_network/rank_N/PREFIX_rank_N-network-EPOCH_STEP.ckpt (weights only), checkpoint_trainable/rank_N/... (what
  is trained, such as an adapter), and strategy/ckpt_strategy_rank_N.ckpt.
- Any other .ckpt or .safetensors file: a checkpoint of that one file.

MindSpore writes NAME.tmp and renames it; some file systems and copies (rsync, a slow network) do not. So a checkpoint
counts as complete when nothing speaks against it (a .tmp of that name, an empty file, a rank or shard that is missing)
and two looks some time apart saw the same files: sizes, times and inodes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mindeval.formats.errors import FormatError
from mindeval.formats.readers.files import PathLike, check_contained, os_error, read_small_file, stamp_of, unreadable
from mindeval.formats.readers.records import Stamp

KINDS = ("hugging_face", "network", "full", "trainable", "file")
"""What a candidate holds, best for an evaluation first: weights as Hugging Face saves them; weights of MindFormers'
network folder; a ModelCheckpoint or CheckpointMonitor file, which may hold the optimizer's state too; trained
parameters only; a file that follows no rule."""

MONITOR_FOLDERS = {"checkpoint": "full", "checkpoint_network": "network", "checkpoint_trainable": "trainable"}
"""Kind of the checkpoints in each folder that MindFormers' CheckpointMonitor writes."""

INDEX_FILE = "model.safetensors.index.json"
MAX_ENTRIES = 100_000
_MAX_INDEX_BYTES = 64 << 20
_MAX_RANK = 1 << 20

_RANK_FOLDER = re.compile(r"rank_(\d{1,7})\Z")
_STEP_FOLDER = re.compile(r"(?:checkpoint|step|iter|global_step)[-_](\d{1,15})\Z")
_STEP_FILE = re.compile(r"(.+)-(\d{1,15})_(\d{1,15})\.(ckpt|safetensors)\Z", re.DOTALL)
_RANK_IN_PREFIX = re.compile(r"_rank_\d+(?=\Z|[-_])")
_MONITOR_ENDINGS = ("-network", "-trainable_params")
_STRATEGY_NAME = re.compile(r"(?:ckpt_strategy|.*_strategy|strategy|merged_ckpt_strategy)[^/]*\.ckpt\Z")


@dataclass(frozen=True)
class CandidateFile:
    """One file of a candidate.

    Attributes:
        path: The file.
        rank: The rank that wrote it; 0 when there are none.
        stamp: Size in bytes, modification time in ns and inode when it was looked at.
    """

    path: str
    rank: int
    stamp: Stamp


@dataclass(frozen=True)
class Candidate:
    """What may be a checkpoint.

    Attributes:
        kind: One of `KINDS`.
        path: The folder or file that it is found under.
        prefix: What its files are called before the step, without the rank.
        epoch: From the name; None when the name does not say.
        step: From the name: within the epoch for MindSpore's names, of the training for Hugging Face's folders.
        files: Its files, by rank and name.
        strategy_files: Where the slices are described, when there are several ranks.
        unfinished: What speaks against its being complete, in words; "" when nothing does.
    """

    kind: str
    path: str
    prefix: str
    epoch: int | None
    step: int | None
    files: tuple[CandidateFile, ...]
    strategy_files: tuple[str, ...] = ()
    unfinished: str = ""

    @property
    def key(self) -> tuple[str, str, str, int | None, int | None, str]:
        """What stays the same from one look to the next, and tells it from the others of a look."""
        ending = os.path.splitext(self.files[0].path)[1]
        return self.kind, self.path, self.prefix, self.epoch, self.step, ending

    @property
    def stamps(self) -> dict[str, Stamp]:
        """The state of its files, by path."""
        return {file.path: file.stamp for file in self.files}

    @property
    def ranks(self) -> dict[int, str]:
        """The file of each rank, as `assemble` takes them; of no use for several files of one rank."""
        return {file.rank: file.path for file in self.files}


@dataclass(frozen=True)
class FolderLook:
    """What a folder held at one moment, oldest step first."""

    path: str
    candidates: tuple[Candidate, ...]


def look(root: PathLike) -> FolderLook:
    """Looks for checkpoints in a folder, or at one file. Opens no file but the index of Hugging Face shards.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when the folder cannot be listed, holds more than 100,000 entries, or a
            symbolic link in it leads outside.
    """
    path = os.fspath(root)
    status = _stat(path)
    if stat.S_ISDIR(status.st_mode):
        found = list(_Scan(path).candidates())
    elif path.endswith((".ckpt", ".safetensors")):
        file = CandidateFile(path, 0, stamp_of(status))
        found = [_named(file, os.path.basename(path), path, "full")]
    else:
        raise unreadable(path, "neither a folder nor a .ckpt or .safetensors file")
    found.sort(key=lambda c: (c.epoch or 0, c.step or 0, KINDS.index(c.kind), c.path, c.prefix))
    return FolderLook(path, tuple(found))


def complete_candidates(before: FolderLook, after: FolderLook) -> tuple[Candidate, ...]:
    """The complete candidates of the later look: nothing speaks against them, and no file has changed since."""
    known = {candidate.key: candidate.stamps for candidate in before.candidates}
    return tuple(
        candidate
        for candidate in after.candidates
        if not candidate.unfinished and known.get(candidate.key) == candidate.stamps
    )


def preferred_candidates(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """One candidate for each epoch and step: the one whose kind is better for an evaluation (`KINDS`).

    Candidates without a step are all kept.
    """
    best: dict[object, Candidate] = {}
    for candidate in candidates:
        # MindFormers gives the files of one step different prefixes in its folders.
        is_stepped = candidate.step is not None
        key = (candidate.epoch, candidate.step, _base_prefix(candidate.prefix)) if is_stepped else candidate.key
        known = best.get(key)
        if known is None or KINDS.index(candidate.kind) < KINDS.index(known.kind):
            best[key] = candidate
    return tuple(best.values())


@dataclass(frozen=True)
class _Entry:
    name: str
    path: str
    status: os.stat_result

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_weights(self) -> bool:
        is_file = stat.S_ISREG(self.status.st_mode)
        return is_file and self.name.endswith((".ckpt", ".safetensors")) and not _STRATEGY_NAME.match(self.name)


class _Scan:
    """One walk over a folder and the sub-folders that have a known name."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._left = MAX_ENTRIES

    def candidates(self) -> Iterator[Candidate]:
        entries = self._list(self._root)
        folders = {entry.name: entry for entry in entries if entry.is_folder}
        strategies = self._strategies(entries, folders)
        yield from self._flat(self._root, entries, None)
        yield from self._ranked(self._root, entries, self._root_kind(), strategies)
        for name, entry in folders.items():
            if name in MONITOR_FOLDERS:
                yield from self._ranked(entry.path, self._list(entry.path), MONITOR_FOLDERS[name], strategies)
                continue
            match = _STEP_FOLDER.match(name)
            if match:
                yield from self._flat(entry.path, self._list(entry.path), int(match[1]))

    def _root_kind(self) -> str:
        name = os.path.basename(os.path.realpath(self._root))
        return MONITOR_FOLDERS.get(name, "full")

    def _flat(self, folder: str, entries: list[_Entry], step: int | None) -> Iterator[Candidate]:
        """The checkpoints whose files lie in the folder itself."""
        names = {entry.name: entry for entry in entries}
        taken: set[str] = set()
        if INDEX_FILE in names:
            candidate = self._shards(folder, names, step)
            taken = {os.path.basename(file.path) for file in candidate.files}
            yield candidate
        for entry in entries:
            if not entry.is_weights or entry.name in taken or _is_shard(entry.name):
                continue
            file = CandidateFile(entry.path, 0, stamp_of(entry.status))
            if entry.name == "model.safetensors":
                found = Candidate("hugging_face", folder, "model", None, step, (file,), unfinished=_doubts([file]))
            else:
                found = _named(file, entry.name, folder, "full")
                if step is not None and found.step is None:
                    found = replace(found, step=step)
            temporary = os.path.splitext(entry.name)[0] + ".tmp"
            if temporary in names and not found.unfinished:
                found = replace(found, unfinished=f"{temporary} is being written")
            yield found

    def _shards(self, folder: str, names: dict[str, _Entry], step: int | None) -> Candidate:
        index = names[INDEX_FILE]
        files = [CandidateFile(index.path, 0, stamp_of(index.status))]
        unfinished = ""
        try:
            shards = _shard_names(index.path)
        except FormatError as error:  # may be half written
            shards, unfinished = [], error.message
        for shard in shards:
            if shard in names and stat.S_ISREG(names[shard].status.st_mode):
                files.append(CandidateFile(names[shard].path, 0, stamp_of(names[shard].status)))
            else:
                unfinished = unfinished or f"the shard {shard} is missing"
        return Candidate(
            "hugging_face", folder, "model", None, step, tuple(files), unfinished=unfinished or _doubts(files)
        )

    def _ranked(
        self, folder: str, entries: list[_Entry], kind: str, strategies: tuple[str, ...]
    ) -> Iterator[Candidate]:
        """The checkpoints whose files lie in the folder's rank_N."""
        ranks: dict[int, str] = {}
        for entry in entries:
            match = _RANK_FOLDER.match(entry.name)
            if match and entry.is_folder and int(match[1]) <= _MAX_RANK:
                ranks[int(match[1])] = entry.path
        groups: dict[tuple[str, int | None, int | None, str], list[CandidateFile]] = {}
        temporary: dict[str, int] = {}
        for rank in sorted(ranks):
            for entry in self._list(ranks[rank]):
                if entry.name.endswith(".tmp"):
                    temporary.setdefault(_RANK_IN_PREFIX.sub("", entry.name[:-4]), rank)
                if entry.is_weights:
                    key = _parse_name(entry.name)
                    groups.setdefault(key, []).append(CandidateFile(entry.path, rank, stamp_of(entry.status)))
        count = max(ranks, default=-1) + 1
        for (prefix, epoch, step, ending), files in groups.items():
            stem = prefix if step is None else f"{prefix}-{epoch}_{step}"
            unfinished = ""
            missing = set(range(count)) - {file.rank for file in files}
            if stem in temporary:
                unfinished = f"rank {temporary[stem]} is still writing it"
            elif missing:
                unfinished = f"the file of rank {min(missing)} is missing ({len(files)} of {count} are there)"
            elif len(files) > count:
                unfinished = f"a rank has several files {stem}.{ending}"
            yield Candidate(
                kind, folder, prefix, epoch, step, tuple(files), strategies if count > 1 else (),
                unfinished or _doubts(files),
            )  # fmt: skip

    def _strategies(self, entries: list[_Entry], folders: dict[str, _Entry]) -> tuple[str, ...]:
        found = [e for e in entries if stat.S_ISREG(e.status.st_mode) and _STRATEGY_NAME.match(e.name)]
        if "strategy" in folders:
            found += [
                entry
                for entry in self._list(folders["strategy"].path)
                if stat.S_ISREG(entry.status.st_mode) and entry.name.endswith(".ckpt")
            ]
        merged = [entry.path for entry in found if "merged" in entry.name]
        return tuple(merged[:1] or sorted(entry.path for entry in found))

    def _list(self, folder: str) -> list[_Entry]:
        found: list[_Entry] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    if self._left < 0:
                        raise unreadable(self._root, f"it holds more than {MAX_ENTRIES} files and folders")
                    item = self._entry(entry)
                    if item is not None:
                        found.append(item)
        except OSError as error:
            raise os_error(folder, error) from None
        found.sort(key=lambda item: item.name)
        return found

    def _entry(self, entry: os.DirEntry[str]) -> _Entry | None:
        try:
            status = entry.stat()
        except FileNotFoundError:  # removed meanwhile, or a link to nothing
            return None
        except OSError as error:
            raise os_error(entry.path, error) from None
        if entry.is_symlink():
            is_known = entry.name.endswith((".ckpt", ".safetensors")) or entry.name == INDEX_FILE
            if not is_known and not stat.S_ISDIR(status.st_mode):
                return None
            check_contained(entry.path, self._root)
        return _Entry(entry.name, entry.path, status)


def _named(file: CandidateFile, name: str, folder: str, kind: str) -> Candidate:
    prefix, epoch, step, _ = _parse_name(name)
    if step is None:
        kind = "file"
    return Candidate(kind, folder, prefix, epoch, step, (file,), unfinished=_doubts([file]))


def _parse_name(name: str) -> tuple[str, int | None, int | None, str]:
    """Prefix without the rank, epoch, step within the epoch, and ending of a file's name."""
    match = _STEP_FILE.match(name)
    if match:
        return _RANK_IN_PREFIX.sub("", match[1]), int(match[2]), int(match[3]), match[4]
    stem, ending = name.rsplit(".", 1)
    return _RANK_IN_PREFIX.sub("", stem), None, None, ending


def _base_prefix(prefix: str) -> str:
    for ending in _MONITOR_ENDINGS:
        if prefix.endswith(ending):
            return prefix[: -len(ending)]
    return prefix


def _doubts(files: Iterable[CandidateFile]) -> str:
    empty = next((file.path for file in files if file.stamp[0] == 0), "")
    return f"{empty} is empty" if empty else ""


def _is_shard(name: str) -> bool:
    return re.match(r".+-\d{5,}-of-\d{5,}\.safetensors\Z", name) is not None


def _shard_names(index: str) -> list[str]:
    try:
        shards = set(json.loads(read_small_file(index, _MAX_INDEX_BYTES))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(index, f"not an index with a weight_map ({type(error).__name__})") from None
    for shard in shards:
        if not isinstance(shard, str) or shard != os.path.basename(shard) or shard in ("", ".", ".."):
            raise unreadable(index, f"{str(shard)[:80]!r} is not the name of a file in the same folder")
    return sorted(shards)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise os_error(path, error) from None
    except ValueError as error:
        raise unreadable(repr(path), str(error)) from None
