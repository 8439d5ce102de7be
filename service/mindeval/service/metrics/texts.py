"""Text as it comes from models and datasets: checks, lone surrogates, scripts, and normalisation for answers."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from mindeval.service.metrics.errors import MetricInputError

LANGUAGES = ("en", "zh", "mixed")

# Han, kana, CJK punctuation and full-width forms: what Chinese (and Japanese) text is written in.
_HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_KANA = "\u3040-\u30ff\u31f0-\u31ff"
CJK = re.compile(f"[{_HAN}{_KANA}]")
# A character of its own, or a run of word characters of any other script.
MIXED_TOKEN = re.compile(f"[{_HAN}{_KANA}]|(?:(?![{_HAN}{_KANA}])\\w)+")

_SPACES = re.compile(r"\s+")
_SURROGATES = re.compile("[\ud800-\udfff]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = {ord(mark): None for mark in string.punctuation}
# Punctuation of Chinese text beside ASCII's: CJK symbols, full-width forms, general punctuation, middle dots.
_CJK_PUNCTUATION = {
    **_ASCII_PUNCTUATION,
    **{
        code: None
        for first, last in (
            (0x2010, 0x2027),
            (0x2030, 0x205E),
            (0x3001, 0x3004),
            (0x3008, 0x301F),
            (0x3030, 0x3030),
            (0x30FB, 0x30FB),
            (0xFE30, 0xFE6B),
            (0xFF01, 0xFF0F),
            (0xFF1A, 0xFF20),
            (0xFF3B, 0xFF40),
            (0xFF5B, 0xFF65),
            (0xFFE0, 0xFFE6),
            (0xB7, 0xB7),
        )
        for code in range(first, last + 1)
    },
}


def clean_text(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, which no UTF-8 text could have carried anyway."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text


def is_blank(text: str) -> bool:
    """Whether a text is empty or white space only."""
    return not text or text.isspace()


def has_cjk(text: str) -> bool:
    """Whether a text holds a Han or kana character."""
    return not text.isascii() and CJK.search(text) is not None


def check_prediction(text: object, sample_id: str) -> str:
    """A prediction as clean text; raises MetricInputError (`invalid_text`) unless it is a str.

    None is refused too: a sample that failed has no prediction and must be reported as failed, not scored as empty.
    """
    if not isinstance(text, str):
        raise MetricInputError(
            f"the prediction is {type(text).__name__}, not text", reason="invalid_text", sample_id=sample_id
        )
    return clean_text(text)


def check_references(given: object, sample_id: str) -> list[str]:
    """The references of one sample as clean texts.

    Raises:
        MetricInputError: There is none, or one is not text (`invalid_text`), or one is blank (`empty_reference`).
    """
    references = [given] if isinstance(given, str) else given
    if not isinstance(references, Sequence) or isinstance(references, bytes) or not references:
        raise MetricInputError(
            f"references are {type(given).__name__}, not a text or a list of texts",
            reason="invalid_text",
            sample_id=sample_id,
        )
    cleaned = []
    for reference in references:
        if not isinstance(reference, str):
            raise MetricInputError(
                f"a reference is {type(reference).__name__}, not text", reason="invalid_text", sample_id=sample_id
            )
        if is_blank(reference):
            raise MetricInputError("a reference is empty", reason="empty_reference", sample_id=sample_id)
        cleaned.append(clean_text(reference))
    return cleaned


def answer_tokens(text: str, language: str) -> list[str]:
    """Tokens of a short answer, normalised as its language wants.

    `en`: lower case, ASCII punctuation and articles dropped, split on white space (SQuAD v1.1; accents stay).
    `zh`, `mixed`: lower case, ASCII and full-width punctuation dropped; each Han or kana character is a token, other
    word characters form runs.
    """
    lowered = text.lower()
    if language == "en":
        return _ARTICLES.sub(" ", lowered.translate(_ASCII_PUNCTUATION)).split()
    tokens: list[str] = MIXED_TOKEN.findall(lowered.translate(_CJK_PUNCTUATION))
    return tokens


@dataclass(frozen=True)
class TextCounts:
    """Sizes of a text: the denominators of word and byte perplexity, and its characters."""

    words: int
    characters: int
    utf8_bytes: int


def text_counts(text: str, language: str) -> TextCounts:
    """Count a text for perplexities.

    Words are the pieces of a split on runs of white space, empty ones at the ends included, as lm-eval counts them.
    In `zh` and `mixed`, where that means nothing, they are single Han and kana characters and runs of other word
    characters. Characters are code points that are not white space.
    """
    pieces = _SPACES.split(text) if language == "en" else MIXED_TOKEN.findall(text)
    return TextCounts(len(pieces), len("".join(text.split())), len(clean_text(text).encode("utf-8")))


def words(text: str, language: str) -> list[str]:
    """Words for lengths and diversity: pieces between white space, or single Han and kana characters.

    `en` splits on white space only; `zh` takes each character that is not white space; `mixed` takes Han and kana
    characters by themselves and other word characters in runs.
    """
    if language == "en":
        return text.split()
    if language == "zh":
        return list("".join(text.split()))
    tokens: list[str] = MIXED_TOKEN.findall(text)
    return tokens
