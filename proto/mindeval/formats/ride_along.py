"""Which files belong to a checkpoint besides its weights: the model description and the tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mindeval.formats.errors import FormatError
from mindeval.formats.model import CONFIG_FILE, DESCRIPTION_FILE, TOKENIZER_FILE, GraphDescription
from mindeval.formats.readers.files import PathLike, os_error, read_small_file
from mindeval.formats.readers.layouts import Candidate

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
"""Files of a Hugging Face folder that belong to the model; all else in it (README, optimizer state) stays behind."""

_MAX_DESCRIPTION_BYTES = 16 << 20
# From rank_0/x.ckpt over checkpoint/ to the folder of the training's output.
_LEVELS_UP = 2


def ride_along_files(
    candidate: Candidate, named: PathLike, files: Mapping[str, PathLike] | None = None, within: PathLike | None = None
) -> dict[str, Path]:
    """What rides along with a checkpoint: local file by path in the checkpoint.

    Looked for beside the weights and in the folder that was named; for the ranks of a distributed training also up to
    two folders above them. The first folder with a model description counts.

    Args:
        candidate: The checkpoint.
        named: What the user called it.
        files: What rides along, when the caller knows.
        within: A folder that nothing outside of is looked at.

    Raises:
        FormatError: MODEL_UNSUPPORTED when there is no model description, MODEL_INVALID when there are two or the graph
            is missing.
    """
    if files is not None:
        if CONFIG_FILE not in files and DESCRIPTION_FILE not in files:
            raise _no_description(named)
        return {name: Path(local) for name, local in files.items()}
    for folder in _folders(candidate, named, within):
        found = _described(folder)
        if found is not None:
            return found
    raise _no_description(named)


def is_within(path: PathLike, folder: PathLike) -> bool:
    """Whether a path, with symbolic links followed, is a folder or lies below it."""
    real, real_folder = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return real == real_folder or real_folder in real.parents


def _folders(candidate: Candidate, named: PathLike, within: PathLike | None) -> Iterator[Path]:
    beside = Path(candidate.files[0].path).parent
    places = [beside]
    if Path(named).is_dir():
        places.insert(0, Path(named))
    if beside.name.startswith("rank_"):
        places += list(beside.parents)[:_LEVELS_UP]
    for place in dict.fromkeys(places):
        if within is None or is_within(place, within):
            yield place


def _described(folder: Path) -> dict[str, Path] | None:
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise os_error(folder, error) from None
    if DESCRIPTION_FILE in names and CONFIG_FILE in names:
        raise FormatError(
            "MODEL_INVALID",
            f"{folder}: it holds both {CONFIG_FILE} and {DESCRIPTION_FILE}; keep the one that describes the model",
            {"file": str(folder)},
        )
    found = {name: folder / name for name in RIDE_ALONG_FILES if name in names}
    if DESCRIPTION_FILE in names:
        description = GraphDescription.from_bytes(read_small_file(folder / DESCRIPTION_FILE, _MAX_DESCRIPTION_BYTES))
        if not (folder / description.graph).is_file():
            raise FormatError(
                "MODEL_INVALID",
                f"{folder / description.graph}: no such file, but {DESCRIPTION_FILE} names it as the graph; export it "
                "with mindspore.export",
                {"file": str(folder / description.graph)},
            )
        found[DESCRIPTION_FILE] = folder / DESCRIPTION_FILE
        found[description.graph] = folder / description.graph
        return found
    return found if CONFIG_FILE in names else None


def _no_description(path: PathLike) -> FormatError:
    return FormatError(
        "MODEL_UNSUPPORTED",
        f"{path}: nothing says what model the weights belong to; add {CONFIG_FILE} (a Hugging Face model), or "
        f"{DESCRIPTION_FILE} and the MindIR graph that mindspore.export writes",
        {"file": str(path)},
    )
