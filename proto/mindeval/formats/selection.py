"""Which checkpoint a path stands for."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mindeval.formats.readers.files import PathLike, unreadable
from mindeval.formats.readers.layouts import INDEX_FILE, MONITOR_FOLDERS, Candidate, look, preferred_candidates
from mindeval.formats.ride_along import is_within

_RANK_FOLDER = re.compile(r"rank_\d{1,7}\Z")
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".h5", ".npz")


def find_checkpoint(path: PathLike, within: PathLike | None = None) -> Candidate:
    """The one checkpoint that a folder holds, or that a file is or belongs to.

    A file in a rank_N folder stands for the files of all ranks of its step. In a folder, weights as Hugging Face saves
    them come before anything else in it.

    Args:
        path: The folder or file.
        within: A folder that nothing outside of is looked at; None for no bound.

    Raises:
        FormatError: CHECKPOINT_UNREADABLE when there is none or more than one, or it cannot be read.
    """
    where = os.fspath(path)
    if not os.path.isdir(where):
        (single,) = look(where).candidates
        folder = Path(where).parent
        if _RANK_FOLDER.match(folder.name) and (within is None or is_within(folder.parent, within)):
            return _of_all_ranks(where, folder.parent, within) or single
        return single
    candidates = _candidates_of(Path(where), within)
    best = [c for c in candidates if c.kind == "hugging_face" and c.path == where]
    # With an index, the index says what the weights are.
    best.sort(key=lambda c: os.path.basename(c.files[0].path) != INDEX_FILE)
    if best:
        return best[0]
    candidates = list(preferred_candidates(candidates))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        examples = ", ".join(os.path.relpath(c.files[0].path, where) for c in candidates[:3])
        raise unreadable(
            where, f"it holds {len(candidates)} checkpoints ({examples}, ...) and no {INDEX_FILE}; name one of them"
        )
    other = next((name for name in sorted(os.listdir(where)) if name.endswith(_OTHER_FORMATS)), None)
    hint = f" ({other} is in another format; save the weights as safetensors)" if other else ""
    raise unreadable(where, f"it holds no .safetensors or .ckpt file{hint}")


def _of_all_ranks(file: str, folder: Path, within: PathLike | None) -> Candidate | None:
    for candidate in _candidates_of(folder, within):
        if any(os.path.samefile(known.path, file) for known in candidate.files):
            return candidate
    return None


def _candidates_of(folder: Path, within: PathLike | None) -> list[Candidate]:
    """The checkpoints in a folder; strategies lie beside the folders that CheckpointMonitor saves into."""
    parent = folder.parent
    if folder.name in MONITOR_FOLDERS and (within is None or is_within(parent, within)):
        found = [candidate for candidate in look(parent).candidates if candidate.path == str(folder)]
        if found:
            return found
        # Any model may lie in a folder of that name.
    return list(look(folder).candidates)
