"""Documents of a dataset."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindeval.service.runtime.checkpoints.blobs import read_verified
from mindeval.service.runtime.datasets.readers import READERS, Text, Tokens
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import DatasetRequest
from mindeval.service.runtime.tokenization import TextEncoder

_WHITE_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Document:
    """One document as token ids.

    Attributes:
        sample: Its id: the file's path, with ":" and the line (from 1) or row (from 0) where a file has several.
        tokens: int64 [tokens], padding at both ends removed.
        scored: bool [tokens], False for padding inside; None when all may be scored.
        words: Pieces of a split on white space; 0 for a dataset of token ids.
        utf8_bytes: Bytes of the text; 0 for a dataset of token ids.
        pretokenized: Whether the dataset came as token ids.
    """

    sample: str
    tokens: npt.NDArray[np.int64]
    scored: npt.NDArray[np.bool_] | None
    words: int
    utf8_bytes: int
    pretokenized: bool


def count_words(text: str) -> int:
    """Pieces of a split on runs of white space, as lm-eval counts them: an empty piece at either end counts as well."""
    return len(_WHITE_SPACE.split(text))


def read_documents(dataset: DatasetRequest, encoder: TextEncoder | None, check: Callable[[], None]) -> list[Document]:
    """Reads, verifies and tokenises a whole dataset.

    Args:
        dataset: What to read.
        encoder: Encodes texts; None only for a dataset of token ids.
        check: Called between documents; raises to give up.

    Raises:
        RunnerError: BLOB_MISSING; DATASET_INVALID naming file and line, also for a blob with other bytes than its
            digest; DATASET_EMPTY.
    """
    documents: list[Document] = []
    for raw in _raw_documents(dataset):
        check()
        if isinstance(raw, Tokens):
            documents.append(_token_document(raw, dataset.padding_token))
            continue
        assert encoder is not None
        documents.append(
            Document(
                sample=raw.sample,
                tokens=encoder.encode(raw.text),
                scored=None,
                words=count_words(raw.text),
                utf8_bytes=len(raw.text.encode("utf-8")),
                pretokenized=False,
            )
        )
    if not documents:
        names = ", ".join(file.path for file in dataset.files) or "no files"
        raise RunnerError(
            "DATASET_EMPTY",
            f"the dataset holds no document ({names}); check its files and its format ({dataset.format})",
            {"dataset": dataset.version, "file": dataset.files[0].path if dataset.files else ""},
        )
    return documents


def _raw_documents(dataset: DatasetRequest) -> Iterator[Text | Tokens]:
    reader = READERS[dataset.format]
    for file in dataset.files:
        try:
            data = read_verified(file.location, file.digest, None, {"file": file.path}).tobytes()
        except RunnerError as error:
            if error.reason == "BLOB_MISSING":
                raise
            raise RunnerError(
                "DATASET_INVALID", error.message.replace("checkpoint", "dataset"), error.metadata
            ) from None
        yield from reader(data, file.path, dataset.text_field)


def _token_document(raw: Tokens, padding: int | None) -> Document:
    tokens = raw.tokens
    scored = None
    if padding is not None:
        kept = np.flatnonzero(tokens != padding)
        tokens = tokens[kept[0] : kept[-1] + 1] if kept.size else tokens[:0]
        inside = tokens != padding
        scored = None if inside.all() else inside
    return Document(raw.sample, tokens, scored, 0, 0, True)
