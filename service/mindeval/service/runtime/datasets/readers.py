"""One reader for each dataset format (registry.proto): the bytes of a file to documents."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.service.runtime.errors import RunnerError


@dataclass(frozen=True)
class Text:
    """A document as text, with its sample id."""

    sample: str
    text: str


@dataclass(frozen=True)
class Tokens:
    """A document as token ids, int64 [tokens], with its sample id."""

    sample: str
    tokens: npt.NDArray[np.int64]


def read_text(data: bytes, path: str, text_field: str) -> Iterator[Text]:
    """A file is one document, taken as it is; a file of white space only has none."""
    text = _decode(data, path)
    if text.strip():
        yield Text(path, text)


def read_text_lines(data: bytes, path: str, text_field: str) -> Iterator[Text]:
    """A line that is not blank is one document, without its line end ("\\n" or "\\r\\n")."""
    for number, line in _lines(data, path):
        yield Text(f"{path}:{number}", line)


def read_jsonl(data: bytes, path: str, text_field: str) -> Iterator[Text]:
    """A line that is not blank is a JSON object; `text_field` holds the document.

    Raises:
        RunnerError: DATASET_INVALID for a line that is no JSON object, or has no text of that name.
    """
    for number, line in _lines(data, path):
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _invalid(path, number, f"is not JSON ({error})") from None
        if not isinstance(record, dict):
            raise _invalid(path, number, "is not a JSON object")
        if text_field not in record:
            has = ", ".join(sorted(record)[:10]) or "no fields"
            raise _invalid(path, number, f"has no field {text_field!r} (it has {has}); set the dataset's text_field")
        text = record[text_field]
        if not isinstance(text, str):
            raise _invalid(path, number, f"has a {type(text).__name__} in field {text_field!r}, not text")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _invalid(path, number, f"has half of a surrogate pair in field {text_field!r}") from None
        yield Text(f"{path}:{number}", text)


def read_tokens_npy(data: bytes, path: str, text_field: str) -> Iterator[Tokens]:
    """A .npy file of integers: [documents, tokens], or [tokens] for a single document.

    Raises:
        RunnerError: DATASET_INVALID.
    """
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise _invalid(path, None, f"is not a .npy file ({error})") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive"
        raise _invalid(path, None, f"holds {found}, not integers [documents, tokens] or [tokens]")
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise _invalid(path, None, "holds a token id of 2^63 or more")
    if array.ndim == 1:
        if array.size:
            yield Tokens(path, array.astype(np.int64))
        return
    for row, tokens in enumerate(array.astype(np.int64)):
        yield Tokens(f"{path}:{row}", tokens)


READERS: Mapping[str, Callable[[bytes, str, str], Iterator[Text] | Iterator[Tokens]]] = MappingProxyType(
    {"text": read_text, "text_lines": read_text_lines, "jsonl": read_jsonl, "tokens_npy": read_tokens_npy}
)
"""Reader of each format: (bytes of a file, its path, text_field) to its documents."""


def _lines(data: bytes, path: str) -> Iterator[tuple[int, str]]:
    # Split on the newline byte alone: str.splitlines would also break lines at U+2028 and form feeds, and the numbers
    # would not be an editor's.
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise _invalid(path, number, f"is not UTF-8 (byte {error.start} of the line)") from None
        if text.strip():
            yield number, text


def _decode(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _invalid(path, line, f"is not UTF-8 (byte {error.start} of the file)") from None


def _invalid(path: str, line: int | None, what: str) -> RunnerError:
    where = path if line is None else f"{path}:{line}"
    metadata = {"file": path} if line is None else {"file": path, "line": str(line), "sample": where}
    return RunnerError("DATASET_INVALID", f"{where} {what}", metadata)
