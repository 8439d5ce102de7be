"""Datasets cut into windows, kept for the next checkpoint that is scored on them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mindeval.service.runtime.datasets.documents import Document, read_documents
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import DatasetRequest
from mindeval.service.runtime.models.adapter import ModelSpec, Window
from mindeval.service.runtime.tasks.windows import rolling_windows
from mindeval.service.runtime.tokenization import TextEncoder

# Bounds the memory of kept datasets: inputs are int32, and a dataset without overlap takes about 12 bytes a token.
_KEPT_TOKENS = 32_000_000


@dataclass(frozen=True)
class Entry:
    """A window of a document, and what of the document is counted on it.

    Attributes:
        sample: The document.
        index: The window's number in the document, from 0.
        window: What to score; it may hold nothing to score.
        words: Words of the whole document on window 0, else 0.
        utf8_bytes: Likewise.
    """

    sample: str
    index: int
    window: Window
    words: int
    utf8_bytes: int


@dataclass(frozen=True)
class Prepared:
    """A dataset ready to be scored.

    Attributes:
        entries: All windows in order, at least one for each document.
        documents: How many documents.
        tokens: How many tokens will be scored, at least one.
    """

    entries: tuple[Entry, ...]
    documents: int
    tokens: int


class PreparedDatasets:
    """Keeps prepared datasets, the least recently used dropped, within a bound of tokens."""

    def __init__(self, kept_tokens: int = _KEPT_TOKENS) -> None:
        self._kept_tokens = kept_tokens
        self._kept: OrderedDict[tuple[object, ...], Prepared] = OrderedDict()

    def get(
        self,
        dataset: DatasetRequest,
        spec: ModelSpec,
        encoder: TextEncoder | None,
        *,
        prefix: int | None,
        max_length: int,
        check: Callable[[], None],
    ) -> Prepared:
        """A dataset's windows.

        Args:
            dataset: What to read; its digests are part of the key.
            spec: The model's vocabulary bounds the token ids.
            encoder: The text encoder, None for a dataset of token ids.
            prefix: Token before each document; None for none.
            max_length: Longest input.
            check: Raises to give up.

        Raises:
            RunnerError: What `read_documents` raises; TOKEN_OUT_OF_VOCABULARY; DATASET_EMPTY when no token is scored.
        """
        signature = "" if encoder is None else encoder.signature
        key = (dataset, spec.vocab_size, signature, prefix, max_length)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        prepared = _prepare(read_documents(dataset, encoder, check), dataset, spec, prefix, max_length)
        self._kept[key] = prepared
        while len(self._kept) > 1 and sum(kept.tokens for kept in self._kept.values()) > self._kept_tokens:
            self._kept.popitem(last=False)
        return prepared


def _prepare(
    documents: list[Document], dataset: DatasetRequest, spec: ModelSpec, prefix: int | None, max_length: int
) -> Prepared:
    entries: list[Entry] = []
    tokens = 0
    for document in documents:
        _check_vocabulary(document, spec.vocab_size)
        windows = list(_windows(document, prefix, max_length)) or [_NOTHING]
        for index, window in enumerate(windows):
            first = index == 0
            entries.append(
                Entry(
                    document.sample,
                    index,
                    window,
                    document.words if first else 0,
                    document.utf8_bytes if first else 0,
                )
            )
            tokens += window.targets.size
    if not tokens:
        raise RunnerError(
            "DATASET_EMPTY",
            f"none of the dataset's {len(documents)} documents has a token to score; check its files, and its "
            "padding_token",
            {"dataset": dataset.version, "file": dataset.files[0].path},
        )
    return Prepared(tuple(entries), len(documents), tokens)


_NOTHING = Window(*(np.zeros(0, dtype=np.int32),) * 3)


def _windows(document: Document, prefix: int | None, max_length: int) -> list[Window]:
    # Token ids that were prepared elsewhere may begin with the prefix token already; it is never doubled.
    doubled = document.pretokenized and prefix is not None and document.tokens[:1].tolist() == [prefix]
    return list(
        rolling_windows(
            document.tokens, prefix=None if doubled else prefix, max_length=max_length, scored=document.scored
        )
    )


def _check_vocabulary(document: Document, vocab_size: int) -> None:
    outside = np.flatnonzero((document.tokens < 0) | (document.tokens >= vocab_size))
    if not outside.size:
        return
    position = int(outside[0])
    token = int(document.tokens[position])
    raise RunnerError(
        "TOKEN_OUT_OF_VOCABULARY",
        f"sample {document.sample!r} has token id {token} at position {position}; the model's vocabulary is 0 to "
        f"{vocab_size - 1}; use the tokenizer that belongs to the model, or declare the id as padding_token",
        {
            "sample": document.sample,
            "token": str(token),
            "position": str(position),
            "vocabulary_size": str(vocab_size),
        },
    )
