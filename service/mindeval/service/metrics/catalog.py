"""The names: which metrics each family reports, which direction is better, which family a task type uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mindeval.service.metrics.errors import MetricStateError

_HIGHER, _LOWER, _NEITHER = True, False, None

# Direction by metric name. A name means the same in every family, so one table serves all.
_LANGUAGE_MODELING: dict[str, bool | None] = {
    "loss": _LOWER,
    "ppl": _LOWER,
    "token_ppl": _LOWER,
    "word_ppl": _LOWER,
    "byte_ppl": _LOWER,
    "bits_per_byte": _LOWER,
    "token_accuracy": _HIGHER,
    "top5_accuracy": _HIGHER,
}

_CLASSIFICATION: dict[str, bool | None] = {
    "accuracy": _HIGHER,
    **{
        f"{kind}{suffix}": _HIGHER
        for suffix in ("", "_binary", "_micro", "_macro", "_weighted")
        for kind in ("precision", "recall", "f1")
    },
    "matthews_corrcoef": _HIGHER,
    "cohen_kappa": _HIGHER,
    "roc_auc": _HIGHER,
    "log_loss": _LOWER,
    "brier": _LOWER,
    "ece": _LOWER,
}

_MULTILABEL: dict[str, bool | None] = {
    "accuracy": _HIGHER,
    "hamming_loss": _LOWER,
    **{
        f"{kind}{suffix}": _HIGHER
        for suffix in ("", "_micro", "_macro", "_weighted")
        for kind in ("precision", "recall", "f1")
    },
    "roc_auc": _HIGHER,
}

_IMAGE_TEXT: dict[str, bool | None] = {
    **{
        f"{way}_{kind}": _LOWER if kind.endswith("rank") else _HIGHER
        for way in ("text_to_image", "image_to_text")
        for kind in ("recall@1", "recall@5", "recall@10", "mean_rank", "median_rank")
    },
    "cosine": _HIGHER,
    "clip_score": _HIGHER,
}

_MULTIPLE_CHOICE: dict[str, bool | None] = {
    "acc": _HIGHER,
    "acc_norm": _HIGHER,
    "acc_bytes": _HIGHER,
    "acc_mutual_info": _HIGHER,
}

_GENERATION: dict[str, bool | None] = {
    "bleu": _HIGHER,
    "bleu_nltk": _HIGHER,
    **{
        f"{kind}{suffix}": _HIGHER
        for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")
        for suffix in ("", "_precision", "_recall")
    },
    "chrf": _HIGHER,
    "ter": _LOWER,
    "exact_match": _HIGHER,
    "f1": _HIGHER,
    "distinct_1": _NEITHER,
    "distinct_2": _NEITHER,
    "repetition": _NEITHER,
    "length_ratio": _NEITHER,
}

_TABLES: dict[str, dict[str, bool | None]] = {
    "language_modeling": _LANGUAGE_MODELING,
    "multiple_choice": _MULTIPLE_CHOICE,
    "classification": _CLASSIFICATION,
    "classification_bounded": _CLASSIFICATION,
    "multilabel_classification": _MULTILABEL,
    "generation": _GENERATION,
    "image_text": _IMAGE_TEXT,
    "image_text_matching": {"image_text_matching_accuracy": _HIGHER},
    "image_quality": {"psnr": _HIGHER, "ssim": _HIGHER},
    "frechet": {"frechet_distance": _LOWER},
}

FAMILY_DIRECTIONS: Mapping[str, Mapping[str, bool | None]] = MappingProxyType(
    {family: MappingProxyType(table) for family, table in _TABLES.items()}
)
FAMILY_METRICS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {family: tuple(table) for family, table in _TABLES.items()}
)
_DIRECTIONS: Mapping[str, bool | None] = MappingProxyType(
    {name: direction for table in _TABLES.values() for name, direction in table.items()}
)

# Task types as suites name them.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "language_modeling": "language_modeling",
        "perplexity": "language_modeling",
        "multiple_choice": "multiple_choice",
        "classification": "classification",
        "classification_bounded": "classification_bounded",
        "multilabel_classification": "multilabel_classification",
        "generation": "generation",
        "translation": "generation",
        "summarization": "generation",
        "question_answering": "generation",
        "image_text": "image_text",
        "image_text_retrieval": "image_text",
        "image_text_matching": "image_text_matching",
        "image_quality": "image_quality",
        "image_generation": "frechet",
    }
)


def family_of(task_type: str) -> str:
    """The family of metrics that a task of this type produces.

    Raises:
        MetricStateError: The task type is unknown (`unknown_task_type`).
    """
    if task_type not in FAMILIES:
        raise MetricStateError(
            f"no task type {task_type!r}; there are {', '.join(FAMILIES)}", reason="unknown_task_type"
        )
    return FAMILIES[task_type]


def higher_is_better(name: str) -> bool | None:
    """True or False by the metric's direction; None when neither direction is better, or the name is unknown."""
    return _DIRECTIONS.get(name)
