"""The language_modeling task: every token of every document is scored once, in rolling windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindeval.service.metrics import create
from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.errors import RunnerError
from mindeval.service.runtime.messages import TaskRequest
from mindeval.service.runtime.models.adapter import ModelAdapter, ModelSpec, TokenScores
from mindeval.service.runtime.task_settings import LanguageModelingSettings
from mindeval.service.runtime.tasks.prepared import Entry, Prepared, PreparedDatasets
from mindeval.service.runtime.tokenization import encoder_for


@dataclass(frozen=True)
class TaskOutcome:
    """What a task computed.

    Attributes:
        state: The metric state, `MetricState.to_dict()`.
        expected_count: Documents of the dataset.
        scored_count: Documents scored.
    """

    state: dict[str, Any]
    expected_count: int
    scored_count: int


def run_language_modeling(
    task: TaskRequest,
    settings: LanguageModelingSettings,
    adapter: ModelAdapter,
    checkpoint: Checkpoint,
    datasets: PreparedDatasets,
    on_progress: Callable[[int, int], None],
    check: Callable[[], None],
) -> TaskOutcome:
    """Scores a dataset.

    Args:
        task: What to score.
        settings: Its settings, read.
        adapter: The model with its weights in place.
        checkpoint: Where the tokenizer is.
        datasets: Windows of datasets seen before.
        on_progress: Called with (tokens scored, tokens in all) before the first and after every batch.
        check: Called between batches and documents; raises to give up.

    Raises:
        RunnerError: INVALID_FIELD when a setting does not fit the model; what reading the dataset raises.
    """
    spec = adapter.spec
    max_length = _max_length(settings, spec)
    prefix = spec.prefix_token_id if settings.prefix == "auto" else None
    prepared = _prepare(task, checkpoint, datasets, spec, prefix, max_length, check)
    state = create(
        "language_modeling",
        {
            "max_length": max_length,
            "stride": max_length,
            "prefix": "none" if prefix is None else spec.prefix,
            "add_special_tokens": False,
        },
    )
    top5 = not task.metrics or "top5_accuracy" in task.metrics
    on_progress(0, prepared.tokens)
    done = 0
    _add(state, [entry for entry in prepared.entries if not entry.window.targets.size], None, top5)
    entries = [entry for entry in prepared.entries if entry.window.targets.size]
    for batch in adapter.plan([entry.window.inputs.size for entry in entries], settings.batch_tokens):
        check()
        members = [entries[index] for index in batch.members]
        scores = adapter.score([entry.window for entry in members], batch.length, top5=top5)
        _add(state, members, scores, top5)
        done += sum(entry.window.targets.size for entry in members)
        on_progress(done, prepared.tokens)
    return TaskOutcome(state.to_dict(), prepared.documents, prepared.documents)


def _prepare(
    task: TaskRequest,
    checkpoint: Checkpoint,
    datasets: PreparedDatasets,
    spec: ModelSpec,
    prefix: int | None,
    max_length: int,
    check: Callable[[], None],
) -> Prepared:
    encoder = None if task.dataset.format == "tokens_npy" else encoder_for(spec.tokenizer, checkpoint)
    return datasets.get(task.dataset, spec, encoder, prefix=prefix, max_length=max_length, check=check)


def _max_length(settings: LanguageModelingSettings, spec: ModelSpec) -> int:
    if settings.max_length is None:
        return spec.max_length
    if settings.max_length > spec.max_length:
        raise RunnerError(
            "INVALID_FIELD",
            f"settings.max_length is {settings.max_length}, and the model takes at most {spec.max_length} tokens",
            {"field": "settings.max_length", "model_max_length": str(spec.max_length)},
        )
    return settings.max_length


def _add(state: Any, entries: list[Entry], scores: list[TokenScores] | None, top5: bool) -> None:
    if not entries:
        return
    if scores is None:
        scores = [TokenScores.nothing() for _ in entries]
    state.update(
        document_ids=[entry.sample for entry in entries],
        window_indices=[entry.index for entry in entries],
        token_nll=[score.nll for score in scores],
        token_correct=[score.correct for score in scores],
        token_top5=[score.top5 for score in scores] if top5 else None,
        words=[entry.words for entry in entries],
        utf8_bytes=[entry.utf8_bytes for entry in entries],
    )
