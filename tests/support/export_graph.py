"""Exports a small network as MindIR, as a training job does: `python -m tests.support.export_graph FOLDER KIND...`.

Runs in a process of its own, because nothing else in the tests may load MindSpore. Writes model.mindir,
model.safetensors and mindeval_model.json into FOLDER/KIND.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from safetensors.numpy import save_file

from mindeval.formats.model import DESCRIPTION_FILE, GraphDescription

VOCABULARY, WIDTH, MAX_LENGTH, PREFIX = 259, 24, 32, 256


class RunningMean(nn.Cell):  # type: ignore[misc]
    """A causal network that numpy repeats in three lines: embeddings, averaged over the positions so far."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.table = ms.Parameter(ms.Tensor(rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)), name="table")
        self.head = nn.Dense(WIDTH, VOCABULARY)
        self.counts = ms.Tensor(np.arange(1, MAX_LENGTH + 1, dtype=np.float32)[None, :, None])

    def construct(self, ids: Any) -> Any:
        """Token ids [batch, length] to logits [batch, length, vocabulary]."""
        sums = ops.cumsum(ops.gather(self.table, ids, 0), 1)
        return self.head(ops.tanh(sums / self.counts[:, : ids.shape[1]]))


def export(kind: str, folder: Path) -> None:
    """Writes the three files; `kind` is "dynamic", or a fault: "static", "last_only", "other_vocabulary"."""
    folder.mkdir(parents=True, exist_ok=True)
    net = RunningMean()
    exported: nn.Cell = net
    if kind == "last_only":
        exported = _LastPosition(net)
    example = (
        ms.Tensor(np.zeros((2, 8), np.int32)) if kind == "static" else ms.Tensor(shape=[None, None], dtype=ms.int32)
    )
    ms.export(exported, example, file_name=str(folder / "model.mindir"), file_format="MINDIR")
    # The weights differ from those inside the graph: only the checkpoint's may count.
    rng = np.random.default_rng(1)
    tensors = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in exported.get_parameters()}
    save_file(tensors, str(folder / "model.safetensors"))
    vocabulary = VOCABULARY + 1 if kind == "other_vocabulary" else VOCABULARY
    description = GraphDescription(vocabulary, MAX_LENGTH, "bytes", PREFIX)
    (folder / DESCRIPTION_FILE).write_bytes(description.to_bytes())


class _LastPosition(nn.Cell):  # type: ignore[misc]
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, ids: Any) -> Any:
        return self.net(ids)[:, -1]


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    for name in sys.argv[2:]:
        export(name, Path(sys.argv[1]) / name)
