"""The Llama adapter: scores windows with the compiled cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt

from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.models.adapter import ModelAdapter, ModelSpec, TokenScores, Window
from mindeval.service.runtime.models.batching import Batch, bucketed_batches, length_ladder, padded_rows
from mindeval.service.runtime.models.llama.cells import (
    EmbeddingCell,
    HeadCell,
    LayerCell,
    SelectCell,
    causal_mask,
    rotary_tables,
    rotation_matrix,
)
from mindeval.service.runtime.models.llama.config import LlamaConfig
from mindeval.service.runtime.models.llama.weights import LlamaWeights, check_checkpoint, read_weights
from mindeval.service.runtime.models.scoring import RankCell, ScoreCell, host, to_scores

# Queries that attend together. Long inputs take longer chunks, at most 16 of them: each is a part of the graph.
_CHUNK = 128
_MAX_CHUNKS = 16
# Logits of one call of the head, in numbers: 128 MB of float32.
_HEAD_NUMBERS = 1 << 25
_HEAD_ROWS = (64, 512)


class LlamaAdapter(ModelAdapter):
    """A Llama-architecture decoder.

    Windows are padded on the right to one of a few lengths. In a causal network a position sees nothing after itself,
    so padding never reaches a scored position.
    """

    def __init__(self, config: LlamaConfig, spec: ModelSpec, dtype: ms.Type) -> None:
        super().__init__(spec)
        self._config = config
        self._dtype = dtype
        self._weights: LlamaWeights | None = None
        self._layers: dict[tuple[int, int], LayerCell] = {}
        self._kept_constants: tuple[tuple[int, int], tuple[ms.Tensor, ...]] | None = None
        self._embed, self._select = EmbeddingCell(), SelectCell()
        self._head, self._score, self._rank = HeadCell(config), ScoreCell(), RankCell(config.vocab_size)
        self._compiled: set[tuple[Any, ...]] = set()
        self._rotation = self._constant(rotation_matrix(config.head_dim))
        self._ones = self._constant(np.ones((1, config.hidden_size), dtype=np.float32))
        largest = max(_HEAD_ROWS[0], min(_HEAD_ROWS[1], _HEAD_NUMBERS // config.vocab_size))
        self._head_rows = [1 << power for power in range(6, largest.bit_length())]

    def _load(self, checkpoint: Checkpoint, on_progress: Callable[[int, int], None], check: Callable[[], None]) -> None:
        check_checkpoint(self._config, checkpoint)
        # The old weights go before the new ones come, so that two models never lie in memory together.
        self._weights = None
        self._weights = read_weights(self._config, checkpoint, self._dtype, on_progress, check)

    def plan(self, lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
        """Buckets of a short ladder of lengths; see `batching`."""
        ladder = length_ladder(max(lengths, default=1), _padded_length)
        return bucketed_batches(lengths, ladder, batch_tokens)

    def score(self, windows: Sequence[Window], length: int, *, top5: bool) -> list[TokenScores]:
        """Scores one batch."""
        tokens = np.zeros((padded_rows(len(windows)), length), dtype=np.int32)
        for row, window in enumerate(windows):
            tokens[row, : window.inputs.size] = window.inputs
        hidden = self._forward(tokens)
        rows = np.concatenate([row * length + window.positions for row, window in enumerate(windows)])
        targets = np.concatenate([window.targets for window in windows])
        scores = self._score_rows(hidden, rows.astype(np.int32), targets.astype(np.int32), top5)
        return scores.split([window.targets.size for window in windows])

    def _forward(self, tokens: npt.NDArray[np.int32]) -> ms.Tensor:
        assert self._weights is not None
        cell = self._layer(*tokens.shape)
        constants = self._constants(*tokens.shape)
        hidden = self._run(self._embed, ms.Tensor(tokens.ravel()), self._weights.embedding)
        for layer in self._weights.layers:
            hidden = self._run(cell, hidden, *constants, self._rotation, self._ones, *layer)
        return hidden

    def _score_rows(
        self, hidden: ms.Tensor, rows: npt.NDArray[np.int32], targets: npt.NDArray[np.int32], top5: bool
    ) -> TokenScores:
        assert self._weights is not None
        parts: list[TokenScores] = []
        begin = 0
        while begin < rows.size:
            left = rows.size - begin
            size = next((step for step in self._head_rows if step >= left), self._head_rows[-1])
            count = min(size, left)
            # Rows that fill the shape up score position 0 of the batch once more, and are dropped.
            chosen, wanted = np.zeros(size, dtype=np.int32), np.zeros((size, 1), dtype=np.int32)
            chosen[:count] = rows[begin : begin + count]
            wanted[:count, 0] = targets[begin : begin + count]
            picked = self._run(self._select, hidden, ms.Tensor(chosen))
            logits = self._run(self._head, picked, self._weights.norm, self._weights.head)
            labels = ms.Tensor(wanted)
            log_probability, index = (host(t)[:count] for t in self._run(self._score, logits, labels))
            rank = host(self._run(self._rank, logits, labels))[:count] if top5 else None
            parts.append(to_scores(log_probability, index, targets[begin : begin + count], rank))
            begin += count
        return TokenScores.join(parts)

    def _run(self, cell: Any, *inputs: ms.Tensor) -> Any:
        key = (id(cell), tuple((tensor.shape, tensor.dtype) for tensor in inputs))
        if key not in self._compiled:
            self.compiles.compile(cell, *inputs)
            self._compiled.add(key)
        return cell(*inputs)

    def _layer(self, batch: int, length: int) -> LayerCell:
        if (batch, length) not in self._layers:
            chunk = min(_chunk(length), length)
            self._layers[batch, length] = LayerCell(self._config, batch, length, chunk)
        return self._layers[batch, length]

    def _constants(self, batch: int, length: int) -> tuple[ms.Tensor, ...]:
        """Mask and rotary tables in full size. They are large and quickly made: only the last shape's are kept."""
        if self._kept_constants is None or self._kept_constants[0] != (batch, length):
            self._kept_constants = None
            config = self._config
            mask = causal_mask(batch * config.kv_heads, config.heads // config.kv_heads, min(_chunk(length), length))
            arrays = [mask, *rotary_tables(config, batch, length, config.heads)]
            arrays += rotary_tables(config, batch, length, config.kv_heads)
            self._kept_constants = (batch, length), tuple(self._constant(array) for array in arrays)
        return self._kept_constants[1]

    def _constant(self, array: npt.NDArray[np.float32]) -> ms.Tensor:
        tensor = ms.Tensor.from_numpy(array)
        return tensor if self._dtype == ms.float32 else tensor.astype(self._dtype)


def _chunk(length: int) -> int:
    return _CHUNK * max(1, -(-length // (_CHUNK * _MAX_CHUNKS)))


def _padded_length(length: int) -> int:
    """The length in whole chunks; a short one is a single chunk of its own length."""
    chunk = _chunk(length)
    return length if length <= chunk else -(-length // chunk) * chunk
