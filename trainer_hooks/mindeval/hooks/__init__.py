"""Callbacks and stopping rules for MindSpore training.

    from mindeval.hooks import ExportGraph, RemoteEvaluation, StoppingRule

    evaluation = RemoteEvaluation(
        suite="docstrings", run="decoder-1", every_n_steps=50,
        model=ExportGraph(vocab_size=257, max_length=128, tokenizer="bytes", prefix_token_id=256),
        stopping=StoppingRule("val/loss", mode="min", patience=3),
    )
    Model(network, loss, optimizer).train(20, dataset, callbacks=[evaluation])

Needs numpy and the trainer's own MindSpore, and nothing of gRPC or protobuf: those live in the agent, a process of its
own. Names are loaded when they are first used, so the parts that do not touch MindSpore work without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindeval.hooks.callback import RemoteEvaluation
    from mindeval.hooks.model import ExportGraph, ModelFiles
    from mindeval.hooks.stopping import Decision, StoppingRule
    from mindeval.hooks.summary import EvaluationRecord, Summary

__all__ = [
    "Decision",
    "EvaluationRecord",
    "ExportGraph",
    "ModelFiles",
    "RemoteEvaluation",
    "StoppingRule",
    "Summary",
]

_HOME = {
    "Decision": "stopping",
    "EvaluationRecord": "summary",
    "ExportGraph": "model",
    "ModelFiles": "model",
    "RemoteEvaluation": "callback",
    "StoppingRule": "stopping",
    "Summary": "summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
