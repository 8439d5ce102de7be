"""Metrics of generated text: BLEU, ROUGE, chrF, TER, answers, diversity. Exact over samples.

Texts are turned into per-sample statistics when they arrive and are not kept; the corpus values are functions of the
sums of those statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mindeval.service.metrics import bleu, character_f, rouge
from mindeval.service.metrics.answers import answer_scores
from mindeval.service.metrics.batches import check_lengths, group_list, id_list
from mindeval.service.metrics.catalog import FAMILY_METRICS
from mindeval.service.metrics.errors import MetricSettingsError, MetricStateError
from mindeval.service.metrics.estimators import Estimator, Mean, Ratio, Statistic
from mindeval.service.metrics.exact import FloatArray, text_digests
from mindeval.service.metrics.settings import Settings, check_bool, check_choice, check_int, check_number
from mindeval.service.metrics.table import Column, Rows
from mindeval.service.metrics.tabular import TableState
from mindeval.service.metrics.texts import LANGUAGES, check_prediction, check_references, has_cjk, is_blank, words
from mindeval.service.metrics.tokenizers import BLEU_TOKENIZERS, ROUGE_TOKENIZERS, RougeCoder, bleu_coder
from mindeval.service.metrics.uncertainty import Bootstrap

_BY_LANGUAGE = {
    "bleu_tokenizer": {"en": "13a", "zh": "zh", "mixed": "zh"},
    "nltk_tokenizer": {"en": "none", "zh": "char", "mixed": "zh"},
    "rouge_tokenizer": {"en": "default", "zh": "char", "mixed": "mixed"},
}
_ROUGE_PARTS = ("precision", "recall", "f")


@dataclass(frozen=True)
class GenerationSettings(Settings):
    """Settings of generation; those that are None follow the language.

    Attributes:
        language: The language that the dataset declares: `en`, `zh`, or `mixed` (Chinese and others in one text).
        metrics: The metrics to collect; None for all but `ter`, which is slow.
        bleu_tokenizer: sacreBLEU's name; by language `13a`, `zh`, `zh`.
        bleu_smoothing: `exp`, `floor`, `add-k` or `none`.
        bleu_smoothing_value: The parameter of `floor` and `add-k`.
        bleu_effective_order: Whether BLEU leaves out n-gram orders that do not occur.
        lowercase: Whether BLEU and chrF ignore case.
        nltk_tokenizer: What `bleu_nltk` splits with; by language `none` (white space), `char`, `zh`.
        nltk_smoothing: nltk's `method0` to `method4`.
        rouge_tokenizer: `default` (rouge-score's), `char`, `mixed` or `jieba`; by language `default`, `char`, `mixed`.
        rouge_stemmer: Whether the default tokenizer stems.
        chrf_word_order: 0 for chrF, 2 for chrF++.
        chrf_beta: Weight of recall.
        chrf_eps_smoothing: Mean of the orders' F-scores with 1e-16 for what is missing, instead of the F-score of
            mean precision and recall over the orders present.
        ter_normalized: Tercom's normalisation.
        ter_no_punct: Drop punctuation.
        ter_asian_support: Split CJK characters; with one of the two above.
        ter_case_sensitive: Keep case.
        answer_separator: What stands between the spans of an answer, in predictions and references; None: an answer is
            one text.
        repetition_order: n of the n-grams that `repetition` looks at.
        bootstrap_replicates: Resamples behind standard errors of corpus scores.
        bootstrap_seed: Their seed.
    """

    language: str = "en"
    metrics: tuple[str, ...] | None = None
    bleu_tokenizer: str | None = None
    bleu_smoothing: str = "exp"
    bleu_smoothing_value: float | None = None
    bleu_effective_order: bool = False
    lowercase: bool = False
    nltk_tokenizer: str | None = None
    nltk_smoothing: str = "method0"
    rouge_tokenizer: str | None = None
    rouge_stemmer: bool = False
    chrf_word_order: int = 0
    chrf_beta: float = 2
    chrf_eps_smoothing: bool = False
    ter_normalized: bool = False
    ter_no_punct: bool = False
    ter_asian_support: bool = False
    ter_case_sensitive: bool = False
    answer_separator: str | None = None
    repetition_order: int = 4
    bootstrap_replicates: int = 1000
    bootstrap_seed: int = 0

    def __post_init__(self) -> None:
        """Check the values and settle those that follow the language."""
        check_choice("language", self.language, LANGUAGES)
        for name, choices in _BY_LANGUAGE.items():
            if getattr(self, name) is None:
                # A frozen dataclass: the resolved name belongs into the signature, so it is set once, here.
                object.__setattr__(self, name, choices[self.language])
        check_choice("bleu_tokenizer", self.bleu_tokenizer, BLEU_TOKENIZERS)
        check_choice("nltk_tokenizer", self.nltk_tokenizer, BLEU_TOKENIZERS)
        check_choice("rouge_tokenizer", self.rouge_tokenizer, ROUGE_TOKENIZERS)
        check_choice("bleu_smoothing", self.bleu_smoothing, bleu.SMOOTHING)
        check_choice("nltk_smoothing", self.nltk_smoothing, bleu.NLTK_SMOOTHING)
        if self.bleu_smoothing_value is not None:
            check_number("bleu_smoothing_value", self.bleu_smoothing_value, low=0)
        for name in ("bleu_effective_order", "lowercase", "rouge_stemmer", "ter_normalized", "ter_no_punct"):
            check_bool(name, getattr(self, name))
        for name in ("ter_asian_support", "ter_case_sensitive", "chrf_eps_smoothing"):
            check_bool(name, getattr(self, name))
        if self.rouge_stemmer and self.rouge_tokenizer != "default":
            raise MetricSettingsError("only the default tokenizer stems", field="rouge_stemmer")
        check_int("chrf_word_order", self.chrf_word_order, low=0, high=9)
        check_number("chrf_beta", self.chrf_beta, low=0)
        if self.answer_separator is not None and (
            not isinstance(self.answer_separator, str) or not self.answer_separator.strip()
        ):
            raise MetricSettingsError("must be a text that is not blank", field="answer_separator")
        check_int("repetition_order", self.repetition_order, low=1)
        check_int("bootstrap_replicates", self.bootstrap_replicates, low=2, high=100_000)
        check_int("bootstrap_seed", self.bootstrap_seed, low=0)
        if self.metrics is not None:
            if not isinstance(self.metrics, tuple) or not self.metrics:
                raise MetricSettingsError("must be a non-empty list of names", field="metrics")
            for name in self.metrics:
                if name not in FAMILY_METRICS["generation"]:
                    raise MetricSettingsError(f"unknown metric {name!r}", field="metrics")

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that are collected."""
        if self.metrics is not None:
            return self.metrics
        return tuple(name for name in FAMILY_METRICS["generation"] if name != "ter")

    @property
    def groups(self) -> frozenset[str]:
        """The groups of statistics that those metrics need."""
        return frozenset(_group(name) for name in self.names)


class GenerationState(TableState):
    """Statistics of predictions against one or more references.

    Metrics:
        bleu: sacreBLEU's corpus BLEU, 0-100. `bleu_nltk`: nltk's corpus_bleu, BLEU-4, 0-1.
        rouge1, rouge2, rougeL, rougeLsum: mean over samples of the F of the best reference, 0-1; `_precision` and
            `_recall` give the other two.
        chrf, ter: sacreBLEU's, 0-100.
        exact_match, f1: of answers, 0-1, the best over references (SQuAD v1.1 in English; in Chinese characters and
            words, without full-width punctuation). With `answer_separator`, of answers of several spans.
        distinct_1, distinct_2: mean over samples of distinct n-grams / n-grams of the prediction. Not of the pooled
            texts: that share falls with the number of texts, so it compares only checkpoints with equally many.
        repetition: mean over samples of the share of n-grams that occurred before.
        length_ratio: words of predictions / words of the closest references.

    Flags: `empty_predictions` (some predictions are blank; they score 0); `cjk_with_ascii_tokenizer` (a text holds
    Chinese or Japanese characters, which the tokenizer drops or does not split: the value means little).
    """

    family: ClassVar[str] = "generation"
    settings_type = GenerationSettings
    settings: GenerationSettings

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        chosen, groups = self.settings, self.settings.groups
        self._bleu = bleu_coder(str(chosen.bleu_tokenizer), lowercase=chosen.lowercase) if "bleu" in groups else None
        self._nltk = bleu_coder(str(chosen.nltk_tokenizer)) if "bleu_nltk" in groups else None
        plain = chosen.rouge_tokenizer == "default" or "rouge" not in groups
        self._rouge = None if plain else RougeCoder(str(chosen.rouge_tokenizer))

    def _columns(self) -> Sequence[Column]:
        widths = {
            "bleu": Column("bleu", "int64", bleu.WIDTH),
            "bleu_nltk": Column("bleu_nltk", "int64", bleu.WIDTH),
            "rouge": Column("rouge", "float64", rouge.WIDTH),
            "chrf": Column("chrf", "int64", 3 * (character_f.CHARACTER_ORDER + self.settings.chrf_word_order)),
            "ter": Column("ter", "float64", 2),
            "answers": Column("answers", "float64", 2),
            "diversity": Column("diversity", "float64", 5),
        }
        chosen = [column for group, column in widths.items() if group in self.settings.groups]
        return (Column("content", "uint64"), Column("empty", "uint8"), Column("cjk", "uint8"), *chosen)

    def update(
        self,
        *,
        sample_ids: Sequence[str],
        predictions: Sequence[str],
        references: Sequence[str | Sequence[str]],
        groups: Sequence[str] | None = None,
    ) -> None:
        """Add samples.

        Args:
            sample_ids: n ids.
            predictions: n texts; a blank one scores 0 and is counted. Lone surrogates are scored as U+FFFD.
            references: n texts, or n non-empty lists of texts.
            groups: n names of clusters of dependent samples.

        Raises:
            MetricInputError: Lengths differ (`length_mismatch`), something is not text (`invalid_text`), a reference
                is blank (`empty_reference`), a text is too long for TER (`text_too_long`), or a sample repeats with
                other content (`conflicting_repeat`).
        """
        ids = id_list(sample_ids)
        check_lengths(len(ids), predictions=predictions, references=references, groups=groups)
        texts = [check_prediction(text, own) for text, own in zip(predictions, ids)]
        against = [check_references(given, own) for given, own in zip(references, ids)]
        samples = [(text, *given) for text, given in zip(texts, against)]
        arrays: dict[str, npt.NDArray[Any]] = {
            "content": text_digests(samples),
            "empty": np.array([is_blank(text) for text in texts], np.uint8),
            "cjk": np.array([any(map(has_cjk, sample)) for sample in samples], np.uint8),
            **self._statistics(ids, texts, against),
        }
        self._table.add(ids, arrays, group_list(groups))

    def counts(self) -> dict[str, int]:
        """Samples, and those with a blank prediction."""
        rows = self._table.rows()
        return {"samples": len(rows), "empty_predictions": int(rows["empty"].sum())}

    def default_names(self) -> tuple[str, ...]:
        """The metrics that the settings collect."""
        return self.settings.names

    def bootstrap(self) -> Bootstrap:
        """The resampling that the settings ask for."""
        return Bootstrap(self.settings.bootstrap_replicates, self.settings.bootstrap_seed)

    def _statistics(self, ids: list[str], texts: list[str], against: list[list[str]]) -> dict[str, npt.NDArray[Any]]:
        chosen = self.settings
        arrays: dict[str, npt.NDArray[Any]] = {}
        if self._bleu is not None:
            arrays["bleu"] = bleu.bleu_counts(self._bleu, texts, against)
        if self._nltk is not None:
            arrays["bleu_nltk"] = bleu.at_least_one(bleu.bleu_counts(self._nltk, texts, against))
        if "rouge" in chosen.groups:
            arrays["rouge"] = rouge.rouge_scores(self._rouge, chosen.rouge_stemmer, texts, against)
        if "chrf" in chosen.groups:
            arrays["chrf"] = character_f.chrf_counts(
                texts,
                against,
                word_order=chosen.chrf_word_order,
                lowercase=chosen.lowercase,
                score=partial(character_f.chrf, beta=chosen.chrf_beta, smooth=chosen.chrf_eps_smoothing),
            )
        if "ter" in chosen.groups:
            options = (chosen.ter_normalized, chosen.ter_no_punct, chosen.ter_asian_support, chosen.ter_case_sensitive)
            arrays["ter"] = character_f.ter_counts(ids, texts, against, options)
        if "answers" in chosen.groups:
            scores = [
                answer_scores(text, given, chosen.language, chosen.answer_separator)
                for text, given in zip(texts, against)
            ]
            arrays["answers"] = np.array(scores, np.float64).reshape(-1, 2)
        if "diversity" in chosen.groups:
            found = [
                diversity(text, given, chosen.language, chosen.repetition_order) for text, given in zip(texts, against)
            ]
            arrays["diversity"] = np.array(found, np.float64).reshape(-1, 5)
        return arrays

    def _estimators(self, rows: Rows, names: Sequence[str]) -> dict[str, Estimator]:
        for name in names:
            if _group(name) not in self.settings.groups:
                raise MetricStateError(
                    f"{name} was not collected; name it in the setting `metrics`", reason="not_collected"
                )
        flags = ("empty_predictions",) if rows["empty"].any() else ()
        cjk = bool(rows["cjk"].any())
        return {name: self._estimator(rows, name, (*flags, *self._warnings(name, cjk))) for name in names}

    def _warnings(self, name: str, cjk: bool) -> tuple[str, ...]:
        ascii_only = {
            "bleu": self.settings.bleu_tokenizer in ("13a", "intl", "none"),
            "bleu_nltk": self.settings.nltk_tokenizer in ("13a", "intl", "none"),
            "rouge": self.settings.rouge_tokenizer == "default",
            "answers": self.settings.language == "en",
            "diversity": self.settings.language == "en",
        }
        return ("cjk_with_ascii_tokenizer",) if cjk and ascii_only.get(_group(name), False) else ()

    def _estimator(self, rows: Rows, name: str, flags: tuple[str, ...]) -> Estimator:
        chosen, count, group = self.settings, len(rows), _group(name)
        if group == "rouge":
            kind, _, part = name.partition("_")
            column = 3 * rouge.TYPES.index(kind) + _ROUGE_PARTS.index(part or "f")
            return Mean(count, rows["rouge"][:, column], flags=flags)
        if group == "answers":
            return Mean(count, rows["answers"][:, int(name == "f1")], flags=flags)
        if name == "length_ratio":
            return Ratio(count, rows["diversity"][:, 3], rows["diversity"][:, 4], flags=flags)
        if group == "diversity":
            column = ("distinct_1", "distinct_2", "repetition").index(name)
            return Mean(count, rows["diversity"][:, column], flags=flags)
        functions: dict[str, Callable[[FloatArray], float]] = {
            "bleu": partial(
                bleu.sacre_bleu,
                smoothing=chosen.bleu_smoothing,
                smoothing_value=chosen.bleu_smoothing_value,
                effective_order=chosen.bleu_effective_order,
            ),
            "bleu_nltk": partial(bleu.nltk_bleu, smoothing=chosen.nltk_smoothing),
            "chrf": partial(character_f.chrf, beta=chosen.chrf_beta, smooth=chosen.chrf_eps_smoothing),
            "ter": character_f.ter,
        }
        return Statistic(count, rows[group].astype(np.float64), functions[group], flags=flags)


def diversity(
    prediction: str, references: Sequence[str], language: str, order: int
) -> tuple[float, float, float, float, float]:
    """Distinct-1, distinct-2, repetition, words of the prediction, and words of the closest reference.

    A prediction without n-grams of a length has nothing distinct and nothing repeated: 0.
    """
    tokens = words(prediction, language)
    repeated = 1.0 - _distinct(tokens, order) if len(tokens) >= order else 0.0
    closest = min((abs(len(tokens) - size), size) for size in (len(words(text, language)) for text in references))[1]
    return _distinct(tokens, 1), _distinct(tokens, 2), repeated, float(len(tokens)), float(closest)


def _distinct(tokens: list[str], order: int) -> float:
    total = len(tokens) - order + 1
    return len(set(zip(*(tokens[k:] for k in range(order))))) / total if total > 0 else 0.0


def _group(name: str) -> str:
    if name.startswith("rouge"):
        return "rouge"
    if name in ("exact_match", "f1"):
        return "answers"
    return name if name in ("bleu", "bleu_nltk", "chrf", "ter") else "diversity"
