"""The interface between a task and a network.

An adapter is one architecture: it keeps compiled graphs, and weights are swapped in it. It is used by one thread.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.models.batching import Batch

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ModelSpec:
    """What a task has to know of a model.

    Attributes:
        vocab_size: Token ids are from 0 to below it.
        max_length: Longest input in tokens.
        prefix_token_id: Token that stands before a document (BOS, else EOS); None when the model has none.
        prefix: Which one that is: "bos", "eos", "custom" or "none".
        tokenizer: "bytes", "tokenizer.json" or "none".
    """

    vocab_size: int
    max_length: int
    prefix_token_id: int | None
    prefix: str
    tokenizer: str


@dataclass(frozen=True)
class Window:
    """An input of a causal network, and the positions of it whose next token is scored.

    Attributes:
        inputs: int32 [length].
        targets: int32 [scored]; `targets[i]` is the token after position `positions[i]`. They are aligned: an adapter
            of a network that shifts labels by itself has to undo that.
        positions: int32 [scored], increasing.
    """

    inputs: TokenIds
    targets: TokenIds
    positions: TokenIds


@dataclass(frozen=True)
class TokenScores:
    """Scores of the targets of one window.

    Attributes:
        nll: float32 [scored], nats; NaN or infinite where the logits were.
        correct: bool [scored], whether the target has the largest logit (the first of equals).
        top5: bool [scored], whether it is among the five largest; None when not asked for.
    """

    nll: npt.NDArray[np.float32]
    correct: npt.NDArray[np.bool_]
    top5: npt.NDArray[np.bool_] | None

    def split(self, sizes: Sequence[int]) -> list[TokenScores]:
        """Cuts the scores of a batch into those of its windows, which have `sizes` targets."""
        ends = np.cumsum(sizes)[:-1]
        nll, correct = np.split(self.nll, ends), np.split(self.correct, ends)
        top5 = [None] * len(sizes) if self.top5 is None else np.split(self.top5, ends)
        return [TokenScores(*part) for part in zip(nll, correct, top5)]

    @classmethod
    def nothing(cls) -> TokenScores:
        """Scores of a window without targets."""
        no_hits = np.zeros(0, dtype=bool)
        return cls(np.zeros(0, dtype=np.float32), no_hits, no_hits)

    @classmethod
    def join(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """The scores of consecutive parts of a batch; `top5` only when all parts have it."""
        fives = [part.top5 for part in parts if part.top5 is not None]
        return cls(
            np.concatenate([part.nll for part in parts]),
            np.concatenate([part.correct for part in parts]),
            np.concatenate(fives) if len(fives) == len(parts) else None,
        )


@dataclass
class CompileLog:
    """Graphs compiled so far, and the seconds that took.

    Attributes:
        graphs: Number of graphs.
        seconds: Wall time spent compiling.
        on_compile: Called before each compilation.
    """

    graphs: int = 0
    seconds: float = 0.0
    on_compile: Callable[[], None] = lambda: None

    def compile(self, cell: Any, *inputs: Any) -> None:
        """Compiles a cell for the shapes of its inputs."""
        self.on_compile()
        began = time.monotonic()
        cell.compile(*inputs)
        self.graphs += 1
        self.seconds += time.monotonic() - began


class ModelAdapter(ABC):
    """One architecture, ready to take the weights of any checkpoint that has it.

    Attributes:
        spec: Facts for the tasks.
        compiles: What has been compiled for this architecture.
        loaded: Digest of the checkpoint whose weights are in place; "" for none.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.compiles = CompileLog()
        self.loaded = ""

    def load(self, checkpoint: Checkpoint, on_progress: Callable[[int, int], None], check: Callable[[], None]) -> None:
        """Puts a checkpoint's weights in place; nothing happens when they are there already.

        Args:
            checkpoint: Where the weights come from.
            on_progress: Called with (bytes done, bytes in all).
            check: Called between tensors; raises to give up.

        Raises:
            RunnerError: Weights are missing, damaged, not finite or do not fit; the adapter then holds no weights.
        """
        if self.loaded == checkpoint.digest:
            return
        # Marked empty first: a load that fails half-way must never pass for the old or for the new checkpoint.
        self.loaded = ""
        self._load(checkpoint, on_progress, check)
        self.loaded = checkpoint.digest

    @abstractmethod
    def _load(self, checkpoint: Checkpoint, on_progress: Callable[[int, int], None], check: Callable[[], None]) -> None:
        """As `load`, unconditionally."""

    @abstractmethod
    def plan(self, lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
        """Groups windows into batches; a function of its arguments only.

        Args:
            lengths: Length of each window's input.
            batch_tokens: About how many tokens a batch may have; a longer window is a batch of its own.

        Returns:
            Batches in the order in which they should be scored; each window is in one of them.
        """

    @abstractmethod
    def score(self, windows: Sequence[Window], length: int, *, top5: bool) -> list[TokenScores]:
        """Scores one batch.

        Args:
            windows: The members of a batch of `plan`.
            length: The batch's length.
            top5: Whether to tell if a target is among the five likeliest.

        A window's scores do not depend on the other windows beyond floating-point noise, and are the same bits in
        every run for the same batch.
        """
