"""Any network as a MindIR graph that the training job exported, described by mindeval_model.json.

The graph maps int32 token ids [batch, length] to logits [batch, length, vocab_size]. Its weights are replaced by the
checkpoint's, by parameter name; what the file itself holds is never used. A damaged MindIR may load and compute
nonsense or crash the process, so its digest is verified before MindSpore sees it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from mindeval.formats.model import GraphDescription
from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.checkpoints.matching import check_tensors
from mindeval.service.runtime.errors import RunnerError, describe
from mindeval.service.runtime.models.adapter import ModelAdapter, ModelSpec, TokenScores, Window
from mindeval.service.runtime.models.batching import Batch, equal_length_batches
from mindeval.service.runtime.models.scoring import RankCell, ScoreCell, host, to_scores

# Logits of one batch, in numbers: 256 MB of float32.
_LOGITS_NUMBERS = 1 << 26
_FLOAT_TYPES = (ms.float16, ms.bfloat16, ms.float32, ms.float64)
_EXACT_DTYPES = {
    ms.bool_: "BOOL", ms.uint8: "U8", ms.int8: "I8", ms.int16: "I16", ms.int32: "I32", ms.int64: "I64",
}  # fmt: skip


class GraphScoreCell(nn.Cell):  # type: ignore[misc]
    """Graph and scoring as one graph.

    int32 ids [B, L], rows [R] and targets [R, 1] → what `ScoreCell` and `RankCell` return for the chosen rows of the
    logits, and the shape of all rows, int32 [2]. The rank is always computed: a loaded MindIR compiles only once.
    """

    def __init__(self, graph: nn.GraphCell, vocab_size: int) -> None:
        super().__init__()
        self.graph = graph
        self.vocab_size = vocab_size
        self.gather = ops.Gather()
        self.reshape = ops.Reshape()
        self.cast = ops.Cast()
        self.shape = ops.TensorShape()
        self.scores = ScoreCell()
        self.rank = RankCell(vocab_size)

    def construct(self, ids: Any, rows: Any, targets: Any) -> Any:
        """Scores the chosen rows of the logits."""
        logits = self.graph(ids)
        if logits.shape[-1] != self.vocab_size:
            raise ValueError("the last axis of its output is not vocab_size")
        logits = self.reshape(logits, (-1, self.vocab_size))
        chosen = self.cast(self.gather(logits, rows, 0), ms.float32)
        log_probability, index = self.scores(chosen, targets)
        return log_probability, index, self.rank(chosen, targets), self.shape(logits)


class GraphAdapter(ModelAdapter):
    """A MindIR graph. Windows of equal length are batched, so the graph never sees padding."""

    def __init__(self, description: GraphDescription, spec: ModelSpec, graph_file: bytes) -> None:
        super().__init__(spec)
        self._path = description.graph
        graph = _load_graph(description.graph, graph_file)
        self._parameters: dict[str, ms.Parameter] = {p.name: p for p in graph.get_parameters()}
        self._cell = GraphScoreCell(graph, spec.vocab_size)
        # Dynamic axes: one compilation for all shapes.
        self._cell.set_inputs(*(ms.Tensor(shape=shape, dtype=ms.int32) for shape in ([None, None], [None], [None, 1])))
        self._works = False
        self._fault: RunnerError | None = None

    def _load(self, checkpoint: Checkpoint, on_progress: Callable[[int, int], None], check: Callable[[], None]) -> None:
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        exact = {
            name: _EXACT_DTYPES.get(parameter.dtype, str(parameter.dtype))
            for name, parameter in self._parameters.items()
            if parameter.dtype not in _FLOAT_TYPES
        }
        check_tensors(shapes, checkpoint.tensors, exact_dtypes=exact)
        total = sum(checkpoint.tensors[name].size_bytes for name in shapes)
        done = 0
        for name, parameter in self._parameters.items():
            check()
            tensor = ms.Tensor.from_numpy(np.ascontiguousarray(checkpoint.read(name)))
            parameter.set_data(tensor if tensor.dtype == parameter.dtype else tensor.astype(parameter.dtype))
            done += checkpoint.tensors[name].size_bytes
            on_progress(done, total)

    def plan(self, lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
        """Windows of exactly equal length together."""
        return equal_length_batches(lengths, min(batch_tokens, _LOGITS_NUMBERS // self.spec.vocab_size))

    def score(self, windows: Sequence[Window], length: int, *, top5: bool) -> list[TokenScores]:
        """Scores one batch.

        Raises:
            RunnerError: MODEL_INVALID when the graph does not do what its description says.
        """
        ids = np.stack([window.inputs for window in windows])
        rows = np.concatenate([row * length + window.positions for row, window in enumerate(windows)])
        targets = np.concatenate([window.targets for window in windows])
        outputs = self._call(ms.Tensor(ids), ms.Tensor(rows.astype(np.int32)), ms.Tensor(targets[:, None]))
        log_probability, index, rank, shape = (host(output) for output in outputs)
        if shape[0] != ids.size:
            # A gather beyond the last row would return zeros on some devices, and a plausible number.
            raise self._invalid(f"it returned logits for {shape[0]} positions of {ids.size}")
        scores = to_scores(log_probability, index, targets, rank if top5 else None)
        return scores.split([window.targets.size for window in windows])

    def _call(self, *inputs: ms.Tensor) -> Any:
        if self._works:
            return self._cell(*inputs)
        if self._fault is not None:
            raise self._fault
        try:
            self.compiles.compile(self._cell, *inputs)
            outputs = self._cell(*inputs)
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            if describe(error)["reason"] == "OUT_OF_MEMORY":
                raise
            # MindSpore cannot compile a loaded graph a second time: the fault is remembered instead.
            lines = str(error).strip().splitlines()
            self._fault = self._invalid(lines[0][:200].strip("'") if lines else type(error).__name__)
            raise self._fault from error
        self._works = True
        return outputs

    def _invalid(self, what: str) -> RunnerError:
        return RunnerError(
            "MODEL_INVALID",
            f"{self._path} does not map int32 ids [batch, length] to logits [batch, length, {self.spec.vocab_size}] "
            f"for any batch and length: {what}; export it with Tensor(shape=[None, None], dtype=mindspore.int32)",
            {"file": self._path, "field": "graph"},
        )


def _load_graph(path: str, data: bytes) -> nn.GraphCell:
    # ms.load takes a path with this suffix only. The copy is gone before the graph runs.
    with tempfile.TemporaryDirectory(prefix="mindeval-graph-") as folder:
        file = Path(folder) / "graph.mindir"
        file.write_bytes(data)
        try:
            return nn.GraphCell(ms.load(str(file)))
        except (RuntimeError, ValueError, TypeError) as error:
            lines = str(error).strip().splitlines()
            raise RunnerError(
                "MODEL_INVALID",
                f"{path} is not a MindIR graph that MindSpore {ms.__version__} reads "
                f"({lines[0][:200] if lines else type(error).__name__}); export it again",
                {"file": path},
            ) from None
