"""A folder that a training job saves checkpoints into: which are new and complete, and which were pushed before."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindeval.client._content import PathLike
from mindeval.formats.errors import FormatError
from mindeval.formats.readers import (
    Candidate,
    FolderLook,
    Progress,
    complete_candidates,
    look,
    open_tensors,
    preferred_candidates,
    read_progress,
)

_STATE_VERSION = 1
_MAX_STATE_BYTES = 64 << 20
# An adapter by itself is no model.
_PUSHED_KINDS = ("hugging_face", "network", "full", "file")


@dataclass(frozen=True)
class NewCheckpoint:
    """A complete checkpoint that was not pushed yet.

    Attributes:
        candidate: Its files.
        step: Optimizer steps done, as far as the files or their names tell; None otherwise.
        epoch: Epochs done; None likewise.
    """

    candidate: Candidate
    step: int | None
    epoch: int | None

    @property
    def title(self) -> str:
        """What to call it in a message."""
        file = self.candidate.files[0].path
        return os.path.relpath(file, self.candidate.path) if len(self.candidate.files) == 1 else _title(self.candidate)


class PushedBefore:
    """What was pushed, in a small JSON file, so that a restart does not push it again.

    Forgetting costs no more than looking at the files again: a push sends only what the service lacks.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file; a missing or unreadable one counts as empty."""
        self._path = path
        self._stamps: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if path.stat().st_size <= _MAX_STATE_BYTES:
                raw = json.loads(path.read_bytes())
                if isinstance(raw, dict) and raw.get("mindeval_watch") == _STATE_VERSION:
                    self._stamps = raw["pushed"] if isinstance(raw.get("pushed"), dict) else {}

    def __contains__(self, candidate: Candidate) -> bool:
        return self._stamps.get(_key(candidate)) == _stamps(candidate)

    def add(self, candidate: Candidate) -> None:
        """Notes a checkpoint and writes the file.

        Raises:
            OSError: When it cannot be written.
        """
        self._stamps[_key(candidate)] = _stamps(candidate)
        self._write()

    def keep_only(self, candidates: Iterable[Candidate]) -> None:
        """Forgets what is gone from the folder, so that the file stays small."""
        there = {_key(candidate) for candidate in candidates}
        self._stamps = {key: stamps for key, stamps in self._stamps.items() if key in there}

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.write_text(json.dumps({"mindeval_watch": _STATE_VERSION, "pushed": self._stamps}))
            os.replace(temporary, self._path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


class WatchedFolder:
    """Looks at a folder again and again. What failed is not given out again until its files change."""

    def __init__(self, path: PathLike, before: PushedBefore, steps_per_epoch: int | None = None) -> None:
        """Prepares the looks.

        Args:
            path: The folder; need not exist yet.
            before: What was pushed already.
            steps_per_epoch: For names that count the steps within an epoch; None for the largest such count seen.
        """
        self.path = os.path.abspath(os.fspath(path))
        self._before = before
        self._steps_per_epoch = steps_per_epoch
        self._last: FolderLook | None = None
        self._failed: dict[str, Any] = {}

    def poll(self) -> list[NewCheckpoint]:
        """The checkpoints that are complete since, oldest first: two polls saw the same files.

        Raises:
            FormatError: CHECKPOINT_UNREADABLE when the folder cannot be read.
        """
        if not os.path.exists(self.path):
            self._last = None
            return []
        now = look(self.path)
        last, self._last = self._last, now
        if last is None:
            return []
        complete = {candidate.key for candidate in complete_candidates(last, now)}
        self._before.keep_only(now.candidates)
        return [
            NewCheckpoint(candidate, *self._progress(candidate, now))
            # The better kind of a step is waited for, when it is there but not complete yet.
            for candidate in preferred_candidates(c for c in now.candidates if c.kind in _PUSHED_KINDS)
            if candidate.key in complete
            and candidate not in self._before
            and self._failed.get(_key(candidate)) != _stamps(candidate)
        ]

    def pushed(self, checkpoint: NewCheckpoint) -> None:
        """Notes that one need not be given out again, ever."""
        self._before.add(checkpoint.candidate)

    def failed(self, checkpoint: NewCheckpoint) -> None:
        """Notes that one cannot be pushed as it is."""
        self._failed[_key(checkpoint.candidate)] = _stamps(checkpoint.candidate)

    def _progress(self, candidate: Candidate, now: FolderLook) -> tuple[int | None, int | None]:
        said = self._said(candidate, now)
        epoch = candidate.epoch if said.epoch is None else said.epoch
        if said.step is not None or candidate.step is None:
            return said.step, epoch
        if not candidate.epoch:
            return candidate.step, epoch
        steps = self._steps_per_epoch or max(
            c.step for c in now.candidates if c.step is not None and c.epoch is not None
        )
        return (candidate.epoch - 1) * steps + candidate.step, epoch

    def _said(self, candidate: Candidate, now: FolderLook) -> Progress:
        """The numbers that the trainer saved, here or in the file of the same step with the optimizer's state."""
        same = [
            c for c in now.candidates if (c.epoch, c.step) == (candidate.epoch, candidate.step) and c.step is not None
        ]
        for one in [candidate, *(c for c in same if c.kind == "full")]:
            path = one.files[-1].path
            if path.endswith((".ckpt", ".safetensors")):
                with contextlib.suppress(FormatError):
                    progress = read_progress(open_tensors(path).extras)
                    if progress.step is not None:
                        return progress
        return Progress(None, None)


def state_path(folder: str, endpoint: str, project: str) -> Path:
    """Where the state of a watch is kept: in the user's cache, by folder, service and project."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256("\0".join((os.path.realpath(folder), endpoint, project)).encode()).hexdigest()[:24]
    return Path(cache) / "mindeval" / "watch" / f"{name}.json"


def _title(candidate: Candidate) -> str:
    where = f"{candidate.prefix}"
    if candidate.step is not None:
        where += f"-{candidate.epoch}_{candidate.step}" if candidate.epoch is not None else f" {candidate.step}"
    return f"{where} ({len(candidate.files)} files)"


def _key(candidate: Candidate) -> str:
    return json.dumps(candidate.key)


def _stamps(candidate: Candidate) -> dict[str, list[int]]:
    return {path: list(stamp) for path, stamp in candidate.stamps.items()}
