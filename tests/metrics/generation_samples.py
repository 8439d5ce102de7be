"""Texts for the tests of generation: generated ones that break tokenizers, and real translations."""

# ruff: noqa: RUF001  (full-width marks are the subject here)

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mindeval.service.metrics import create

# Words, white space and marks that meet in real text, and what breaks tokenizers.
pieces = st.sampled_from(
    (
        *"abcde",
        *[
            "the",
            "cat",
            "1.5",
            "3,000",
            "U.S.",
            "it's",
            "-",
            "—",
            "(hi)",
            "...",
            ".",
            ",",
            "5.",
            "&quot;",
            "&amp;",
            "<skipped>",
            "中文",
            "。",
            "，",
            "Ａ",
            "é",
            "ß",
            "İ",
            "naïve",
            "שלום",
            "🙂",
            "$9",
        ],
        "e\u0301",
        "\u2009",
        "a-\nb",
        "\n",
    )
)
gaps = st.sampled_from(["", " ", "  ", "\t", "\u3000", "\n"])
texts = st.lists(st.tuples(pieces, gaps), max_size=14).map(lambda parts: "".join(a + b for a, b in parts))
references_of = st.lists(texts.filter(lambda text: bool(text.strip())), min_size=1, max_size=3)
samples_of = st.lists(st.tuples(texts, references_of), min_size=1, max_size=6)


def state_of(samples: list[tuple[str, list[str]]], **options: Any) -> Any:
    state = create("generation", options)
    state.update(
        sample_ids=[f"s{k}" for k in range(len(samples))],
        predictions=[prediction for prediction, _ in samples],
        references=[references for _, references in samples],
    )
    return state


def value(state: Any, name: str) -> float:
    return float(state.result([name])[name].value)


def streams(samples: list[tuple[str, list[str]]]) -> list[list[str | None]]:
    """References the way sacreBLEU wants them: one list a reference number, padded with None."""
    most = max(len(references) for _, references in samples)
    return [[refs[k] if k < len(refs) else None for _, refs in samples] for k in range(most)]


def wmt17(data: Path) -> list[tuple[str, list[str]]]:
    folder = data / "mt_wmt17_ende"
    hypotheses = (folder / "hyp.C-3MA.4959.txt").read_text(encoding="utf-8").splitlines()
    references = (folder / "ref.txt").read_text(encoding="utf-8").splitlines()
    assert len(hypotheses) == len(references) == 3004
    return [(hypothesis, [reference]) for hypothesis, reference in zip(hypotheses, references)]


def nmt(data: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Tokens of tensorflow/nmt's test data, with the empty tokens that its own script keeps."""
    folder = data / "mt_nmt_deen"
    read = [
        (folder / name).read_text(encoding="utf-8").splitlines() for name in ("deen_output.txt", "deen_ref_bpe.txt")
    ]
    left = [line.strip().replace("@@ ", "").split(" ") for line in read[0]]
    right = [line.strip().replace("@@ ", "").split(" ") for line in read[1]]
    assert len(left) == len(right) == 3000
    return left, right
