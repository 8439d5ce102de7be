"""The graphs of a Llama decoder: embedding, one layer, head.

One compiled layer serves all layers, because weights are inputs of the graph and not its parameters: compiling takes
the same time for 2 layers and for 80, and a checkpoint is swapped without touching a graph. All shapes are static;
dynamic ones ran at half the speed on the CPU target.

The forms below were chosen by measuring kernels of the CPU target, where equivalent forms differ by 50 times in
speed. Slow there, and avoided: slicing or splitting the last axis, `Transpose`, and elementwise operations that
broadcast. Fast: MatMul, gathering whole rows, elementwise operations on equal shapes. So heads are separated from
positions by gathering rows of head_dim values, and everything that would be broadcast is made in full size once.

With B windows of L tokens, T = B*L, N query and K key/value heads of width D, G = N/K, chunks of C queries:
    rows of q [T*N, D] → [L/C * B*K, G*C, D]: chunk-major, so that a chunk is a contiguous slice; the group of query
    heads that share a key head is folded into the rows, so keys and values are never repeated.
A chunk of queries meets the keys before it without a mask, and its own C keys with one.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import nn, ops

from mindeval.service.runtime.models.llama.config import LlamaConfig

# Large and finite: adding it to a score makes exp() exactly 0, and a row can never become inf - inf.
_MASKED = -1.0e30


class EmbeddingCell(nn.Cell):  # type: ignore[misc]
    """Token ids int32 [T], table [V, H] → [T, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.gather = ops.Gather()

    def construct(self, tokens: Any, table: Any) -> Any:
        """Looks rows up."""
        return self.gather(table, tokens, 0)


class LayerCell(nn.Cell):  # type: ignore[misc]
    """One decoder layer for B windows of L tokens: [B*L, H] → [B*L, H].

    RMSNorm weights and the factor 1/sqrt(head_dim) are folded into the projections that follow (`weights.py`).
    """

    def __init__(self, config: LlamaConfig, batch: int, length: int, chunk: int) -> None:
        super().__init__()
        self.batch_kv = batch * config.kv_heads
        self.group = config.heads // config.kv_heads
        self.chunk = chunk
        self.chunks = length // chunk
        self.width = config.head_dim
        self.heads = config.heads
        self.epsilon = config.epsilon
        self.attention_bias = config.attention_bias
        self.mlp_bias = config.mlp_bias
        self.hidden = config.hidden_size
        self.project = ops.MatMul(transpose_b=True)
        self.matmul = ops.MatMul()
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.mix = ops.BatchMatMul()
        self.softmax = ops.Softmax(-1)
        self.sum = ops.ReduceSum(False)
        self.rsqrt = ops.Rsqrt()
        self.gather = ops.Gather()
        self.reshape = ops.Reshape()
        self.join_keys = ops.Concat(-1)
        self.join_chunks = ops.Concat(0)
        self.bias_add = ops.BiasAdd()
        rows = _Rows(config, batch, length, chunk)
        self.query_rows = ms.Tensor(rows.queries())
        self.output_rows = ms.Tensor(rows.outputs())
        # Entry i: the keys of chunk i, and those of all chunks before it.
        self.own_rows = [ms.Tensor(rows.keys(i * chunk, (i + 1) * chunk)) for i in range(self.chunks)]
        self.before_rows = [ms.Tensor(rows.keys(0, max(i, 1) * chunk)) for i in range(self.chunks)]

    def construct(
        self, x: Any, mask: Any, cos_q: Any, sin_q: Any, cos_k: Any, sin_k: Any, rotation: Any, ones: Any,
        wq: Any, wk: Any, wv: Any, wo: Any, w_gate: Any, w_up: Any, w_down: Any,
        bq: Any, bk: Any, bv: Any, bo: Any, b_gate: Any, b_up: Any, b_down: Any,
    ) -> Any:  # fmt: skip
        """Attention and feed-forward, each added to the residual stream."""
        h = self._normalise(x, ones)
        q = self.project(h, wq)
        k = self.project(h, wk)
        v = self.project(h, wv)
        if self.attention_bias:
            q = self.bias_add(q, bq)
            k = self.bias_add(k, bk)
            v = self.bias_add(v, bv)
        q = self.reshape(q, (-1, self.width))
        k = self.reshape(k, (-1, self.width))
        v = self.reshape(v, (-1, self.width))
        q = q * cos_q + self.matmul(q, rotation) * sin_q
        k = k * cos_k + self.matmul(k, rotation) * sin_k
        q = self.reshape(self.gather(q, self.query_rows, 0), (-1, self.group * self.chunk, self.width))
        mixed: Any = ()
        for i in range(self.chunks):
            queries = q[i * self.batch_kv : (i + 1) * self.batch_kv]
            keys = self.reshape(self.gather(k, self.own_rows[i], 0), (self.batch_kv, -1, self.width))
            values = self.reshape(self.gather(v, self.own_rows[i], 0), (self.batch_kv, -1, self.width))
            scores = self.scores(queries, keys) + mask
            if i > 0:
                keys_before = self.reshape(self.gather(k, self.before_rows[i], 0), (self.batch_kv, -1, self.width))
                values_before = self.reshape(self.gather(v, self.before_rows[i], 0), (self.batch_kv, -1, self.width))
                scores = self.join_keys((self.scores(queries, keys_before), scores))
                values = ops.concat((values_before, values), 1)
            mixed = (*mixed, self.mix(self.softmax(scores), values))
        o = self.join_chunks(mixed) if self.chunks > 1 else mixed[0]
        o = self.gather(self.reshape(o, (-1, self.width)), self.output_rows, 0)
        o = self.project(self.reshape(o, (-1, self.heads * self.width)), wo)
        if self.attention_bias:
            o = self.bias_add(o, bo)
        x = x + o
        h = self._normalise(x, ones)
        gate = self.project(h, w_gate)
        up = self.project(h, w_up)
        if self.mlp_bias:
            gate = self.bias_add(gate, b_gate)
            up = self.bias_add(up, b_up)
        down = self.project(ops.silu(gate) * up, w_down)
        if self.mlp_bias:
            down = self.bias_add(down, b_down)
        return x + down

    def _normalise(self, x: Any, ones: Any) -> Any:
        # RMSNorm without its weight. The factor is spread over the row by an outer product, which is faster than
        # letting the multiplication broadcast.
        mean_square = self.sum(x * x, -1) / self.hidden
        factor = self.rsqrt(mean_square + self.epsilon)
        return x * self.matmul(self.reshape(factor, (-1, 1)), ones)


class SelectCell(nn.Cell):  # type: ignore[misc]
    """Rows of the last layer's output whose next token is scored: [T, H], int32 [R] → [R, H]."""

    def __init__(self) -> None:
        super().__init__()
        self.gather = ops.Gather()

    def construct(self, x: Any, rows: Any) -> Any:
        """Takes the rows."""
        return self.gather(x, rows, 0)


class HeadCell(nn.Cell):  # type: ignore[misc]
    """Final norm and projection to logits: [R, H] → float32 [R, V]."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.epsilon = config.epsilon
        self.hidden = config.hidden_size
        self.project = ops.MatMul(transpose_b=True)
        self.matmul = ops.MatMul()
        self.sum = ops.ReduceSum(False)
        self.rsqrt = ops.Rsqrt()
        self.reshape = ops.Reshape()
        self.cast = ops.Cast()

    def construct(self, x: Any, norm: Any, table: Any) -> Any:
        """Logits of each row; `norm` is the final norm's weight as [1, H]."""
        mean_square = self.sum(x * x, -1) / self.hidden
        factor = self.rsqrt(mean_square + self.epsilon)
        # The outer product of factor and weight is the whole norm but one multiplication.
        x = x * self.matmul(self.reshape(factor, (-1, 1)), norm)
        return self.cast(self.project(x, table), ms.float32)


class _Rows:
    """Where the rows of head_dim values lie before and after heads are separated from positions."""

    def __init__(self, config: LlamaConfig, batch: int, length: int, chunk: int) -> None:
        self._kv_heads = config.kv_heads
        group = config.heads // config.kv_heads
        # Axes: chunk, window, key head, member of the group, position in the chunk. Value: row of q as [T*N, D].
        chunks, windows, keys, members, positions = np.meshgrid(
            np.arange(length // chunk), np.arange(batch), np.arange(config.kv_heads), np.arange(group),
            np.arange(chunk), indexing="ij",
        )  # fmt: skip
        token = windows * length + chunks * chunk + positions
        self._queries = (token * config.heads + keys * group + members).ravel()
        self._batch, self._length = batch, length

    def queries(self) -> npt.NDArray[np.int32]:
        """Gathers [T*N, D] into chunk-major order."""
        return np.asarray(self._queries, dtype=np.int32)

    def outputs(self) -> npt.NDArray[np.int32]:
        """Gathers chunk-major rows back into [T*N, D]."""
        return np.argsort(self._queries, kind="stable").astype(np.int32)

    def keys(self, begin: int, end: int) -> npt.NDArray[np.int32]:
        """Gathers keys or values [T*K, D] of positions begin to end into [B*K, end - begin, D]."""
        windows, heads, positions = np.meshgrid(
            np.arange(self._batch), np.arange(self._kv_heads), np.arange(begin, end), indexing="ij"
        )
        return np.asarray((windows * self._length + positions) * self._kv_heads + heads, dtype=np.int32).ravel()


def causal_mask(batch_kv: int, group: int, chunk: int) -> npt.NDArray[np.float32]:
    """What is added to the scores of a chunk and its own keys: float32 [B*K, G*C, C], made in full size."""
    block = np.triu(np.full((chunk, chunk), _MASKED, dtype=np.float32), 1)
    return np.ascontiguousarray(np.broadcast_to(np.tile(block, (group, 1)), (batch_kv, group * chunk, chunk)))


def rotary_tables(
    config: LlamaConfig, batch: int, length: int, heads: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines in full size, float32 [B*L*heads, D]; angles are computed in float64."""
    angles = np.arange(length, dtype=np.float64)[:, None] * config.rotary_frequencies()
    both = np.concatenate([angles, angles], axis=1)
    shape = (batch, length, heads, config.head_dim)
    full = [
        np.ascontiguousarray(np.broadcast_to(f(both).astype(np.float32)[None, :, None, :], shape)).reshape(
            -1, config.head_dim
        )
        for f in (np.cos, np.sin)
    ]
    return full[0], full[1]


def rotation_matrix(head_dim: int) -> npt.NDArray[np.float32]:
    """The matrix R with x @ R = (-second half of x, first half of x): float32 [D, D]."""
    half = head_dim // 2
    matrix = np.zeros((head_dim, head_dim), dtype=np.float32)
    matrix[np.arange(half) + half, np.arange(half)] = -1.0
    matrix[np.arange(half), np.arange(half) + half] = 1.0
    return matrix
