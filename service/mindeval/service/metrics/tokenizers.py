"""Tokenizers for BLEU and ROUGE, written as coders: text in, a line of short codes out, one code a token.

Equal tokens get equal codes within one coder, so n-grams of codes are n-grams of tokens. A line of codes is what a
compiled counter reads fastest, and most words are coded by one look-up. The tokens are those of sacreBLEU 2.x for
`13a`, `zh`, `char`, `intl` and `none`: its rules never look beyond the white space next to a word, so a word's
tokens depend only on the word and on whether white space stands on either side of it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from mindeval.service.metrics.errors import MetricSettingsError
from mindeval.service.metrics.texts import MIXED_TOKEN

BLEU_TOKENIZERS = ("13a", "zh", "char", "intl", "none")
ROUGE_TOKENIZERS = ("default", "char", "mixed", "jieba")

Tokenize = Callable[[str], list[str]]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_CACHED_WORDS = 1 << 19
# sacreBLEU's ranges of Chinese characters. Two of its bounds are five-digit escapes that Python reads as two
# characters, which makes U+2001-U+2A6D and U+2F81-U+2FA1 "Chinese" and leaves the supplementary planes out.
_ZH_CHARACTER = re.compile(
    "([\u2001-\u2a6d\u2e80-\u2eff\u2f00-\u2fdf\u2ff0-\u303f\u3100-\u312f\u31a0-\u31bf\u31c0-\u31ef\u3200-\u33ff"
    "\u3400-\u4db5\u4e00-\u9fbb\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9\ufe10-\ufe1f\ufe30-\ufe4f\uff00-\uffef])"
)


class _Codes(dict[str, str]):
    """Codes of words: those of a word's tokens, joined by spaces; computed at the first look-up."""

    def __init__(self, tokens: Tokenize, vocabulary: dict[str, str]) -> None:
        super().__init__()
        self._tokens = tokens
        self._vocabulary = vocabulary

    def __missing__(self, word: str) -> str:
        vocabulary = self._vocabulary
        line = " ".join([vocabulary.setdefault(token, _code(len(vocabulary))) for token in self._tokens(word)])
        self[word] = line
        return line


class _WholeWords(dict[str, str]):
    """Codes of words that are tokens."""

    def __missing__(self, word: str) -> str:
        self[word] = code = _code(len(self))
        return code


def _code(number: int) -> str:
    """The number in base 36: shorter than in base 10, and as much a word to a tokenizer that keeps a-z and 0-9."""
    digits = _DIGITS[number % 36]
    while number >= 36:
        number //= 36
        digits = _DIGITS[number % 36] + digits
    return digits


class Coder:
    """Codes texts under one tokenizer; lines of two coders must not be compared.

    Args:
        split: A text's words: pieces that the tokenizer treats independently.
        tokens: The tokens of a word; None when each word is a token.
        edges: Whether a text's first and last words have no white space on their outer side. Otherwise every word
            is tokenized as if it had.
        stripped: Whether white space at the start of a text is dropped before the rules see it.
    """

    def __init__(
        self, split: Tokenize, tokens: Tokenize | None = None, *, edges: bool = False, stripped: bool = True
    ) -> None:
        self._split = split
        self._stripped = stripped
        self._vocabulary: dict[str, str] = {}
        if tokens is None:
            words: dict[str, str] = _WholeWords()
            self._middle = self._first = self._last = self._alone = words
            return
        self._middle = _Codes(lambda word: tokens(f" {word} "), self._vocabulary)
        self._first = _Codes(lambda word: tokens(f"{word} "), self._vocabulary) if edges else self._middle
        self._last = _Codes(lambda word: tokens(f" {word}"), self._vocabulary) if edges else self._middle
        self._alone = _Codes(tokens, self._vocabulary) if edges else self._middle

    def line(self, text: str) -> str:
        """One line of codes; empty for a text without tokens."""
        words = self._split(text)
        if self._first is self._middle:
            return " ".join(map(self._middle.__getitem__, words))
        inside = not self._stripped and text[:1].isspace()
        if len(words) < 2:
            return (self._last if inside else self._alone)[words[0]] if words else ""
        first = self._middle if inside else self._first
        return " ".join((first[words[0]], *map(self._middle.__getitem__, words[1:-1]), self._last[words[-1]]))

    def trim(self) -> None:
        """Forget all codes when there are too many. Only between batches: codes of both sides must agree."""
        if len(self._middle) + len(self._vocabulary) > _CACHED_WORDS:
            self._vocabulary.clear()
            for codes in (self._middle, self._first, self._last, self._alone):
                codes.clear()


def bleu_coder(name: str, *, lowercase: bool = False) -> Coder:
    """A coder with sacreBLEU's tokens; `none` splits on white space.

    Args:
        name: One of `BLEU_TOKENIZERS`.
        lowercase: Whether texts are lowered first.
    """
    if name == "none":
        return Coder(_lowered(str.split, lowercase))
    if name == "char":
        return Coder(_lowered(lambda text: list("".join(text.split())), lowercase))
    if name == "intl":
        return Coder(
            _lowered(str.split, lowercase),
            _sacrebleu("tokenizer_intl", "TokenizerV14International"),
            edges=True,
            stripped=False,
        )
    western = _sacrebleu("tokenizer_re", "TokenizerRegexp")
    if name == "13a":
        return Coder(_lowered(_split_13a, lowercase), western)
    return Coder(_lowered(_split_zh, lowercase), western, edges=True)


def _sacrebleu(module: str, name: str) -> Tokenize:
    kind: Any = getattr(importlib.import_module(f"sacrebleu.tokenizers.{module}"), name)
    # The undecorated function: its cache of whole lines would only hold our words a second time.
    rewrite, instance = getattr(kind.__call__, "__wrapped__", kind.__call__), kind()
    return lambda word: str(rewrite(instance, word)).split()


def _lowered(split: Tokenize, lowercase: bool) -> Tokenize:
    return (lambda text: split(text.lower())) if lowercase else split


def _split_13a(text: str) -> list[str]:
    text = text.rstrip()
    if "<skipped>" in text:
        text = text.replace("<skipped>", "")
    if "\n" in text:
        text = text.replace("-\n", "").replace("\n", " ")
    if "&" in text:
        text = text.replace("&quot;", '"').replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    return text.split()


def _split_zh(text: str) -> list[str]:
    return _ZH_CHARACTER.sub(r" \1 ", text).split()


class RougeCoder:
    """Turns text into text on which rouge-score's own tokenizer, which keeps a-z and 0-9, sees the wanted tokens.

    Line ends are kept, because ROUGE-Lsum takes them as ends of sentences.

    Args:
        name: `char`: each character that is not white space; `mixed`: each Han or kana character, and runs of other
            word characters; `jieba`: the words of the segmenter of that name. All lower case.
    """

    def __init__(self, name: str) -> None:
        self._tokens = None if name == "char" else _rouge_tokens(name)
        self._codes = _WholeWords()
        self._characters = _CharacterCodes()

    def text(self, text: str) -> str:
        """Codes of the tokens, line by line."""
        if self._tokens is None:
            return text.lower().translate(self._characters)
        return "\n".join(
            " ".join(map(self._codes.__getitem__, self._tokens(line))) for line in text.lower().split("\n")
        )

    def trim(self) -> None:
        """Forget all codes when there are too many; only between batches."""
        if len(self._codes) > _CACHED_WORDS:
            self._codes = _WholeWords()


class _CharacterCodes(dict[int, str]):
    """A table for `str.translate`: a code and a space for each character, nothing for white space but line ends."""

    def __missing__(self, point: int) -> str:
        character = chr(point)
        kept = character if character == "\n" else ""
        self[point] = code = kept if character.isspace() else f"{_code(len(self))} "
        return code


def _rouge_tokens(name: str) -> Tokenize:
    if name == "mixed":
        return MIXED_TOKEN.findall
    if name != "jieba":
        raise MetricSettingsError(f"{name!r} needs no coder", field="rouge_tokenizer")
    try:
        jieba: Any = importlib.import_module("jieba")
    except ImportError:
        raise MetricSettingsError("jieba is not installed", field="rouge_tokenizer", reason="not_installed") from None
    return lambda line: [word for word in jieba.lcut(line) if not word.isspace()]
