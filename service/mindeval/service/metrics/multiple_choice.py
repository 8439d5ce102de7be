"""Multiple choice by the log-probability of each continuation, as lm-eval 0.4 scores it. Exact over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.errors import MetricInputError
from mindeval.service.metrics.estimators import Constant, Estimator, Mean
from mindeval.service.metrics.exact import FloatArray, content_digest, text_bytes
from mindeval.service.metrics.settings import Settings, check_int
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState

NAMES = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")


@dataclass(frozen=True)
class MultipleChoiceSettings(Settings):
    """What changes the scores, recorded with them.

    Attributes:
        max_length: Tokens of context and continuation that the model sees.
        shots: Examples before the question.
        delimiter: What stands between context and continuation; trailing spaces of a context move there.
    """

    max_length: int | None = None
    shots: int | None = None
    delimiter: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_length is not None:
            check_int("max_length", self.max_length, low=1)
        if self.shots is not None:
            check_int("shots", self.shots, low=0)


class MultipleChoiceState(TableState):
    """For each question, whether the likeliest continuation was the right one, under four ways to compare them.

    Metrics: `acc` compares summed log-probabilities; `acc_norm` divides them by the characters of the continuation;
    `acc_bytes` by its UTF-8 bytes; `acc_mutual_info` subtracts the log-probability without the context. Of equal
    continuations the first is chosen, as by argmax.

    Flags: `non_finite` (a log-probability was NaN or infinite; the question counts as wrong, see
    `non_finite_samples`); `no_unconditional` (log-probabilities without context were not given for every question).
    """

    family: ClassVar[str] = "multiple_choice"
    settings_type = MultipleChoiceSettings

    def _columns(self) -> Sequence[Column]:
        return (*(Column(name, "int64") for name in NAMES), Column("non_finite", "int64"), Column("content", "uint64"))

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        choice_logprobs: Sequence[Sequence[float] | npt.NDArray[Any]],
        choices: Sequence[Sequence[str]],
        labels: Sequence[int] | npt.NDArray[Any],
        unconditional_logprobs: Sequence[Sequence[float] | npt.NDArray[Any]] | None = None,
        groups: Sequence[str] | None = None,
    ) -> None:
        """Add questions.

        Args:
            sample_ids: n ids.
            choice_logprobs: For each question the summed log-probability of each continuation, in nats.
            choices: For each question the continuations as the dataset gives them, without the delimiter.
            labels: For each question the position of the right choice.
            unconditional_logprobs: As `choice_logprobs`, of the continuations alone.
            groups: n names of clusters of dependent questions, such as the passage that they are about.

        Raises:
            MetricInputError: Lengths differ (`length_mismatch`), a continuation is empty or a value has a wrong type
                (`invalid_value`), a label is out of range (`unknown_label`), or a question repeats with other content
                (`conflicting_repeat`).
        """
        ids = id_list(sample_ids)
        check_lengths(
            len(ids),
            choice_logprobs=choice_logprobs,
            choices=choices,
            labels=labels,
            unconditional_logprobs=unconditional_logprobs,
            groups=groups,
        )
        rows: list[tuple[int, ...]] = []
        for k, own in enumerate(ids):
            texts = _texts(choices[k], own)
            scores = _logprobs(choice_logprobs[k], len(texts), own)
            alone = None if unconditional_logprobs is None else _logprobs(unconditional_logprobs[k], len(texts), own)
            rows.append(_score(scores, texts, _label(labels[k], len(texts), own), alone))
        names = [column.name for column in self._table.columns]
        arrays: dict[str, npt.NDArray[Any]] = {
            name: np.array([row[k] for row in rows], dtype=np.uint64 if name == "content" else np.int64)
            for k, name in enumerate(names)
        }
        self._table.add(ids, arrays, group_list(groups))

    def default_names(self) -> tuple[str, ...]:
        """All, without `acc_mutual_info` when nothing was given for it."""
        given = bool((self._table.rows()["acc_mutual_info"] >= 0).any())
        return NAMES if given else NAMES[:-1]

    def non_finite_samples(self) -> list[str]:
        """Ids of questions with a NaN or infinite log-probability."""
        rows = self._table.rows()
        return [rows.ids[k] for k in np.flatnonzero(rows["non_finite"]).tolist()]

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        flags = ("non_finite",) if rows["non_finite"].any() else ()
        return {
            name: Constant(len(rows), math.nan, flags=(*flags, "no_unconditional"))
            if (rows[name] < 0).any()
            else Mean(len(rows), rows[name], flags=flags)
            for name in names
        }


def _score(scores: FloatArray, texts: list[str], label: int, alone: FloatArray | None) -> tuple[int, ...]:
    encoded = [text_bytes(text) for text in texts]
    finite = bool(np.isfinite(scores).all()) and (alone is None or bool(np.isfinite(alone).all()))
    content = content_digest(
        (
            scores.astype("<f8").tobytes(),
            b"" if alone is None else alone.astype("<f8").tobytes(),
            label.to_bytes(8, "little"),
            *encoded,
        )
    )
    if not finite:
        return 0, 0, 0, -1 if alone is None else 0, 1, content
    characters = np.array([len(text) for text in texts], dtype=np.float64)
    size = np.array([len(raw) for raw in encoded], dtype=np.float64)
    hits = [int(values.argmax()) == label for values in (scores, scores / characters, scores / size)]
    mutual = -1 if alone is None else int(int((scores - alone).argmax()) == label)
    return int(hits[0]), int(hits[1]), int(hits[2]), mutual, 0, content


def _texts(given: object, sample_id: str) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise MetricInputError("choices are not a list of texts", reason="invalid_value", sample_id=sample_id)
    if not all(isinstance(text, str) and text for text in given):
        raise MetricInputError("a choice is empty or not text", reason="invalid_value", sample_id=sample_id)
    return list(given)


def _logprobs(given: object, size: int, sample_id: str) -> FloatArray:
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise MetricInputError(
            "log-probabilities are not numbers", reason="invalid_value", sample_id=sample_id
        ) from None
    if values.shape != (size,):
        raise MetricInputError(
            f"log-probabilities of shape {values.shape} for {size} choices",
            reason="length_mismatch",
            sample_id=sample_id,
        )
    return values


def _label(given: object, size: int, sample_id: str) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 0 <= given < size:
        raise MetricInputError(
            f"label {given!r} is not a position among {size} choices", reason="unknown_label", sample_id=sample_id
        )
    return int(given)
