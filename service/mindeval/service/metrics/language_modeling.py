"""Language modelling: loss, perplexities per token, word and byte, bits per byte, and token accuracies.

The unit that counts once is a scored window of a document, named by (document id, window index). Each window keeps
its exactly rounded NLL sum and its counts, so totals are the same bits however windows were batched or sharded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths
from mindeval.service.metrics.errors import MetricInputError, MetricSettingsError
from mindeval.service.metrics.estimators import Constant, Estimator, Ratio
from mindeval.service.metrics.exact import content_digest, exact_sum
from mindeval.service.metrics.settings import Settings, check_int
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import Clustering, TableState


@dataclass(frozen=True)
class LanguageModelingSettings(Settings):
    """What changes a perplexity, recorded with it; the state itself computes the same for all of them.

    Attributes:
        ignore_index: The label that is not scored.
        max_length: Tokens in a window.
        stride: Tokens by which windows advance.
        prefix: What stands before the first token: `bos`, `eos`, `none`.
        add_special_tokens: Whether the tokenizer adds its special tokens to the text.
    """

    ignore_index: int = -100
    max_length: int | None = None
    stride: int | None = None
    prefix: str | None = None
    add_special_tokens: bool | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        check_int("ignore_index", self.ignore_index)
        for name in ("max_length", "stride"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), low=1)
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise MetricSettingsError(f"must be text, not {self.prefix!r}", field="prefix")
        if self.add_special_tokens is not None and not isinstance(self.add_special_tokens, bool):
            raise MetricSettingsError("must be true or false", field="add_special_tokens")


class LanguageModelingState(TableState):
    """Sums over scored windows; exact over windows.

    Metrics (natural logarithms; sums over all scored tokens):
        loss: sum NLL / tokens, in nats per token.
        ppl, token_ppl: exp(loss). Both names are the same number; the second has its unit in the name.
        word_ppl, byte_ppl: exp(sum NLL / words), exp(sum NLL / UTF-8 bytes).
        bits_per_byte: sum NLL / bytes / ln 2.
        token_accuracy, top5_accuracy: share of tokens whose label is the argmax, or among the five likeliest.

    Flags: `empty` (no window); `non_finite` (a scored token had a NaN or infinite NLL: the loss and all that follow
    from it are nan, see `non_finite_samples`); `overflow` (exp overflowed: inf, the loss is still reported);
    `no_words`, `no_bytes`, `no_top5` (the value is nan because the denominator, or the input, was never given).

    Standard errors linearise the ratio over documents, or over windows when there is only one document. A document
    has its own words and bytes; a window has not, so those of the one document are taken as spread over its windows
    in proportion to the scored tokens, and `bits_per_byte` has the relative error of `loss`.
    """

    family: ClassVar[str] = "language_modeling"
    version: ClassVar[int] = 1
    settings_type = LanguageModelingSettings

    def _columns(self) -> Sequence[Column]:
        integers = ("tokens", "correct", "top5", "words", "utf8_bytes", "non_finite")
        return (Column("nll", "float64"), *(Column(name, "int64") for name in integers), Column("content", "uint64"))

    def update(
        self,
        *,
        document_ids: Sequence[str],
        window_indices: Sequence[int],
        token_nll: Sequence[npt.NDArray[Any]],
        token_correct: Sequence[npt.NDArray[Any]],
        token_top5: Sequence[npt.NDArray[Any]] | None = None,
        words: Sequence[int],
        utf8_bytes: Sequence[int],
    ) -> None:
        """Add scored windows; all arguments have one entry a window.

        A window that was already added is ignored when its content is the same. Padding must not be among the
        scored tokens.

        Args:
            document_ids: The document of each window.
            window_indices: The window's number in its document, from 0.
            token_nll: Float arrays of shape (tokens,): NLL in nats of each scored token.
            token_correct: Bool arrays of shape (tokens,): whether the argmax was the label.
            token_top5: Bool arrays of shape (tokens,): whether the label was among the five likeliest.
            words: Words of the whole document on its window 0, and 0 on its other windows.
            utf8_bytes: UTF-8 bytes of the whole document on its window 0, and 0 on its other windows.

        Raises:
            MetricInputError: Lengths differ (`length_mismatch`), a value has the wrong type or sign
                (`invalid_value`), or a window repeats with other content (`conflicting_repeat`).
        """
        check_lengths(len(document_ids), document_ids=document_ids)
        size = len(document_ids)
        given = {
            "window_indices": window_indices,
            "token_nll": token_nll,
            "token_correct": token_correct,
            "token_top5": token_top5,
            "words": words,
            "utf8_bytes": utf8_bytes,
        }
        for name, values in given.items():
            if values is not None and len(values) != size:
                raise MetricInputError(f"{name} has {len(values)} entries for {size} windows", reason="length_mismatch")
        ids: list[str] = []
        rows: list[tuple[int, ...]] = []
        sums: list[float] = []
        for k, document in enumerate(document_ids):
            if not isinstance(document, str) or not document:
                raise MetricInputError(f"document id {document!r} is not a non-empty text", reason="invalid_sample_id")
            sample_id = window_id(document, window_indices[k])
            nll = np.asarray(token_nll[k])
            if nll.dtype.kind != "f" or nll.ndim != 1:
                raise MetricInputError(
                    f"token_nll is {nll.dtype} of shape {nll.shape}, not a float vector",
                    reason="invalid_value",
                    sample_id=sample_id,
                )
            correct = _hits(token_correct[k], nll.size, "token_correct", sample_id)
            top5 = None if token_top5 is None else _hits(token_top5[k], nll.size, "token_top5", sample_id)
            total, non_finite = _window_sum(nll.astype(np.float64))
            sums.append(total)
            ids.append(sample_id)
            rows.append(
                (
                    nll.size,
                    int(correct.sum()),
                    -1 if top5 is None else int(top5.sum()),
                    _count(words[k], "words", sample_id),
                    _count(utf8_bytes[k], "utf8_bytes", sample_id),
                    non_finite,
                    content_digest(
                        (
                            nll.astype("<f8").tobytes(),
                            np.packbits(correct).tobytes(),
                            b"" if top5 is None else np.packbits(top5).tobytes(),
                        )
                    ),
                )
            )
        names = [column.name for column in self._table.columns if column.name != "nll"]
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.array([row[k] for row in rows], dtype=np.uint64 if name == "content" else np.int64)
            for k, name in enumerate(names)
        }
        arrays["nll"] = np.array(sums, dtype=np.float64)
        self._table.add(ids, arrays, list(document_ids))

    def counts(self) -> dict[str, int]:
        """Documents, windows, tokens, words and bytes that were scored, each once."""
        rows = self._table.rows()
        return {
            "documents": len(set(rows.groups)),
            "windows": len(rows),
            "tokens": int(rows["tokens"].sum()),
            "words": int(rows["words"].sum()),
            "bytes": int(rows["utf8_bytes"].sum()),
        }

    def non_finite_samples(self) -> dict[str, int]:
        """How many tokens had a NaN or infinite NLL, by sample id `document#window`, for windows that have any."""
        rows = self._table.rows()
        return {i: n for i, n in zip(rows.ids, rows["non_finite"].tolist()) if n}

    def clustering(self, rows: Rows) -> Clustering:
        """Documents, or windows when there is only one document."""
        codes = rows.clusters()
        if codes is None or int(codes.max()) == 0:
            # One document says nothing about the spread between documents; its windows say something.
            return Clustering(None, "window")
        return Clustering(codes, "document")

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        # Words and bytes are recorded on a document's first window: as a window's own they would be all or nothing.
        exposure = rows["tokens"] if self.clustering(rows).codes is None else None
        return {name: _estimator(rows, name, exposure) for name in names}


def window_id(document_id: str, window_index: int) -> str:
    """The sample id of a window: `document#index`.

    Raises:
        MetricInputError: The index is not an integer of at least 0 (`invalid_value`).
    """
    return f"{document_id}#{_count(window_index, 'window_index', document_id)}"


_DENOMINATORS = {"word_ppl": "words", "byte_ppl": "utf8_bytes", "bits_per_byte": "utf8_bytes"}
_NUMERATORS = {"token_accuracy": "correct", "top5_accuracy": "top5"}
_MISSING = {"words": "no_words", "utf8_bytes": "no_bytes", "tokens": "no_tokens"}


def _estimator(rows: Rows, name: str, exposure: npt.NDArray[Any] | None) -> Estimator:
    denominator = _DENOMINATORS.get(name, "tokens")
    numerator = _NUMERATORS.get(name, "nll")
    count = int(rows[denominator].sum())
    flags = []
    if numerator == "nll" and rows["non_finite"].any():
        flags.append("non_finite")
    if not count and len(rows):
        flags.append(_MISSING[denominator])
    if numerator == "top5" and bool((rows["top5"] < 0).any()):
        # A share over some of the windows would look like a share over all of them.
        return Constant(count, math.nan, flags=(*flags, "no_top5"))
    return Ratio(
        count,
        rows[numerator],
        rows[denominator],
        scale=1.0 / math.log(2.0) if name == "bits_per_byte" else 1.0,
        link="exp" if name.endswith("ppl") else "identity",
        exposure=exposure if denominator != "tokens" else None,
        flags=tuple(flags),
    )


def _window_sum(nll: npt.NDArray[np.float64]) -> tuple[float, int]:
    non_finite = int(nll.size - np.isfinite(nll).sum())
    return (math.nan if non_finite else exact_sum(nll)), non_finite


def _hits(values: object, size: int, name: str, sample_id: str) -> npt.NDArray[np.bool_]:
    hits = np.asarray(values)
    if hits.shape != (size,):
        raise MetricInputError(
            f"{name} has shape {hits.shape} for {size} tokens", reason="length_mismatch", sample_id=sample_id
        )
    if size and hits.dtype != np.bool_:
        raise MetricInputError(f"{name} is {hits.dtype}, not bool", reason="invalid_value", sample_id=sample_id)
    return hits.astype(np.bool_)


def _count(value: object, name: str, sample_id: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise MetricInputError(
            f"{name} is {value!r}, not a count of at least 0", reason="invalid_value", sample_id=sample_id
        )
    return int(value)
