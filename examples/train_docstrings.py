"""Trains a small decoder until it overfits; the evaluation service notices, and the callback stops it.

    python examples/train_docstrings.py

Everything is real and small: the text is the docstrings of this Python's own standard library, the network a byte-level
decoder of 0.7 million parameters, the service a process that is started here and evaluates every pushed checkpoint in a
MindSpore runner of its own. Takes two to three minutes on two cores. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import math
import statistics
import sys
import sysconfig
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from local_service import LocalService
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model

from mindeval.hooks import ExportGraph, RemoteEvaluation, StoppingRule

# A document is put before the network as [PREFIX, byte, byte, ...]; the prefix lets the first byte be predicted too.
PREFIX, VOCAB, LENGTH = 256, 257, 128
PASSAGE_BYTES = LENGTH - 1


@dataclass(frozen=True)
class Size:
    """How large the job is."""

    train_passages: int
    valid_passages: int
    width: int
    layers: int
    learning_rate: float
    every_n_steps: int
    epochs: int
    batch: int = 16


FULL = Size(
    train_passages=192, valid_passages=512, width=128, layers=3, learning_rate=3e-3, every_n_steps=20, epochs=50
)
QUICK = Size(train_passages=48, valid_passages=64, width=64, layers=1, learning_rate=8e-3, every_n_steps=10, epochs=120)


# --- The text: docstrings of the standard library, split by module -------------------------------------------------


def docstrings_by_module() -> dict[str, str]:
    """The docstrings of each standard library module, joined; read by `ast`, so that no module is imported."""
    root = Path(sysconfig.get_path("stdlib"))
    texts = {}
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root)
        if {"site-packages", "test", "tests", "idlelib", "lib2to3"} & set(module.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
        if any(found):
            texts[module.as_posix()] = "\n\n".join(text for text in found if text)
    return texts


def passages(size: Size) -> tuple[list[str], list[str]]:
    """Training and validation passages of PASSAGE_BYTES ASCII characters.

    A module belongs to one side only, chosen by a checksum of its name: a passage of a validation module is text that
    training has not seen, and the split is the same on every machine with this Python.
    """
    sides: tuple[list[str], list[str]] = ([], [])
    modules = docstrings_by_module()
    for name in sorted(modules, key=lambda module: zlib.crc32(module.encode())):
        text = modules[name].encode("ascii", "ignore").decode()
        cut = range(0, len(text) - PASSAGE_BYTES + 1, PASSAGE_BYTES)
        sides[zlib.crc32(name.encode()) % 4 == 0].extend(text[begin : begin + PASSAGE_BYTES] for begin in cut)
    train, valid = sides
    return train[: size.train_passages], valid[: size.valid_passages]


def token_ids(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, int32 [passages, PASSAGE_BYTES]: position t of the input predicts target t."""
    targets = np.array([list(text.encode()) for text in texts], np.int32)
    prefix = np.full((len(texts), 1), PREFIX, np.int32)
    return np.concatenate([prefix, targets[:, :-1]], axis=1), targets


# --- The network: a decoder on operators that the CPU and Ascend both have -------------------------------------------


class Block(nn.Cell):
    """Causal attention and a feed-forward layer, each normalized before."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.scale = self.head_width**-0.5
        self.norm_attention, self.norm_feed = nn.LayerNorm((width,)), nn.LayerNorm((width,))
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))
        self.out = nn.Dense(width, width)
        self.up, self.down = nn.Dense(width, 4 * width), nn.Dense(4 * width, width)
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.softmax, self.relu = nn.Softmax(axis=-1), nn.ReLU()

    def construct(self, x, mask):
        """One layer: float [batch, length, width] to the same shape."""
        batch, length, width = x.shape
        normed = self.norm_attention(x)
        shape = (batch, length, self.heads, self.head_width)
        query = self.query(normed).reshape(shape).transpose(0, 2, 1, 3)
        key = self.key(normed).reshape(shape).transpose(0, 2, 1, 3)
        value = self.value(normed).reshape(shape).transpose(0, 2, 1, 3)
        weights = self.softmax(self.scores(query, key) * self.scale + mask)
        mixed = self.mix(weights, value).transpose(0, 2, 1, 3).reshape((batch, length, width))
        x = x + self.out(mixed)
        return x + self.down(self.relu(self.up(self.norm_feed(x))))


class Decoder(nn.Cell):
    """int32 token ids [batch, length] to logits [batch, length, VOCAB], for any batch and any length up to LENGTH.

    Nothing in it is bound to a fixed shape, so the callback can export it once for every shape of input.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, size.width, embedding_table=Normal(0.02))
        self.position = Parameter(initializer(Normal(0.02), (LENGTH, size.width)), name="position")
        self.mask = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), k=1))
        self.blocks = nn.CellList([Block(size.width) for _ in range(size.layers)])
        self.norm = nn.LayerNorm((size.width,))
        self.head = nn.Dense(size.width, VOCAB, has_bias=False)

    def construct(self, ids):
        """The forward pass."""
        length = ids.shape[1]
        x = self.embedding(ids) + self.position[:length]
        mask = self.mask[:length, :length]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class TokenLoss(nn.Cell):
    """Cross-entropy of each token (reduction "none") or their mean, in nats."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction=reduction)

    def construct(self, logits, targets):
        """The loss."""
        return self.entropy(logits.reshape((-1, VOCAB)), targets.reshape((-1,)))


# --- The alternative: evaluation inside the training loop ------------------------------------------------------------


class InLoopEvaluation:
    """What one writes into a callback without a service: run the network over the validation set, batch by batch."""

    def __init__(self, network: nn.Cell, texts: list[str], batch: int) -> None:
        self._network = network
        self._loss = nn.WithLossCell(network, TokenLoss("none"))
        inputs, targets = token_ids(texts)
        self._batches = [
            (Tensor(inputs[begin : begin + batch]), Tensor(targets[begin : begin + batch]))
            for begin in range(0, len(texts), batch)
        ]

    def __call__(self) -> float:
        """Mean loss of a token, in nats; training stands still meanwhile."""
        self._network.set_train(False)
        losses = [self._loss(inputs, targets).asnumpy() for inputs, targets in self._batches]
        self._network.set_train(True)
        return float(np.concatenate(losses).astype(np.float64).mean())


def time_of(evaluate: InLoopEvaluation, repeats: int = 3) -> tuple[float, float]:
    """Loss, and median milliseconds of one evaluation; the first, which compiles the graph, is not counted."""
    loss, times = evaluate(), []
    for _ in range(repeats):
        began = time.perf_counter()
        evaluate()
        times.append((time.perf_counter() - began) * 1000.0)
    return loss, statistics.median(times)


# --- The job ----------------------------------------------------------------------------------------------------------


def register(service: LocalService, valid: list[str]) -> None:
    """Tells the service what to evaluate on, with the commands that a user would type."""
    dataset, suite = service.folder / "valid.jsonl", service.folder / "docstrings.yaml"
    dataset.write_text("".join(json.dumps({"text": text}) + "\n" for text in valid), "utf-8")
    suite.write_text(
        "description: Docstrings of modules that training does not see\n"
        "tasks:\n"
        "  - name: val\n"
        "    type: language_modeling\n"
        "    dataset: docstrings-valid\n"
        "    metrics: [loss, token_ppl]\n",
        "utf-8",
    )
    service.command("dataset", "put", "docstrings-valid", str(dataset), "--format", "jsonl", "--language", "en")
    service.command("suite", "put", str(suite), "--name", "docstrings")


def train(service: LocalService, size: Size, texts: list[str]) -> tuple[Decoder, RemoteEvaluation]:
    """Trains until the callback stops it; the network comes back with the best weights."""
    network = Decoder(size)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=size.learning_rate, beta2=0.98)
    dataset = NumpySlicesDataset(token_ids(texts), shuffle=True).batch(size.batch, drop_remainder=True)
    evaluation = RemoteEvaluation(
        endpoint=service.endpoint,
        suite="docstrings",
        run="decoder",
        every_n_steps=size.every_n_steps,
        model=ExportGraph(VOCAB, LENGTH, tokenizer="bytes", prefix_token_id=PREFIX),
        stopping=StoppingRule("val/loss", mode="min", patience=3),
        log_dir=service.folder / "logs",
    )
    Model(network, TokenLoss("mean"), optimizer).train(size.epochs, dataset, callbacks=[evaluation])
    return network, evaluation


def print_table(evaluation: RemoteEvaluation) -> None:
    """A line for each evaluation, in step order."""
    print(f"\n{'step':>5}  {'train loss':>10}  {'val loss':>8}  {'perplexity':>10}  {'decision':<13} reason")
    for record in evaluation.summary.evaluations:
        loss, perplexity = record.value("val/loss"), record.value("val/token_ppl")
        decision = record.decision
        cells = ("-" if value is None else f"{value:.4f}" for value in (record.train_loss, loss, perplexity))
        line = "{:>10}  {:>8}  {:>10}".format(*cells)
        verdict, reason = (decision.verdict, decision.reason) if decision else (record.state.lower(), "")
        print(f"{record.step:>5}  {line}  {verdict:<13} {reason}")


def problems(evaluation: RemoteEvaluation, restored_loss: float) -> list[str]:
    """What did not work, if anything: a demonstration that cannot fail demonstrates nothing."""
    summary = evaluation.summary
    found = []
    if not summary.stopped_early:
        found.append("training was not stopped early")
    if summary.best_step is None or summary.best_value is None or not math.isfinite(summary.best_value):
        return [*found, "no evaluation gave a finite loss"]
    if summary.restored_step != summary.best_step:
        found.append(f"the best weights were not restored: {summary.not_restored}")
    if abs(restored_loss - summary.best_value) > 1e-3:
        found.append(f"the restored weights have loss {restored_loss:.6f}, the service said {summary.best_value:.6f}")
    failed = [record.step for record in summary.evaluations if record.state == "FAILED"]
    if failed:
        found.append(f"evaluations failed at the steps {failed}")
    return found


def main() -> int:
    """Runs the demonstration; 0 when everything worked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller network and less text, for tests")
    size = QUICK if parser.parse_args().quick else FULL

    # Each result is shown as it arrives.
    logging.basicConfig(format="mindeval: %(message)s", level=logging.WARNING)
    logging.getLogger("mindeval").setLevel(logging.INFO)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)

    train_texts, valid_texts = passages(size)
    print(f"text: {len(train_texts)} passages to train on, {len(valid_texts)} to validate, {PASSAGE_BYTES} bytes each")
    with LocalService() as service:
        register(service, valid_texts)
        began = time.monotonic()
        network, evaluation = train(service, size, train_texts)
        seconds = time.monotonic() - began

    summary = evaluation.summary
    print_table(evaluation)
    # The same data through the same network, in this process: what the service said must come out again.
    restored_loss, in_loop_ms = time_of(InLoopEvaluation(network, valid_texts, batch=32))
    stall_ms = statistics.median(summary.stalls_ms)
    best = "no best step" if summary.best_value is None else f"best step {summary.best_step}, {summary.best_value:.4f}"
    print(
        f"\ntrained for {seconds:.0f} s; {best}; the network's weights now give {restored_loss:.4f} in this process\n"
        f"one evaluation stops training for\n"
        f"  {stall_ms:9.2f} ms with the service: the snapshot, the message, taking results; median of "
        f"{len(summary.stalls_ms)}, while the service was at work\n"
        f"  {in_loop_ms:9.2f} ms inside the loop: the same validation set, graph already compiled; median of 3, after "
        "training"
    )
    failures = problems(evaluation, restored_loss)
    for failure in failures:
        print(f"FAILED: {failure}")
    result = {
        "stopped_early": summary.stopped_early,
        "stopped_at_step": summary.stopped_at_step,
        "best_step": summary.best_step,
        "best_val_loss": summary.best_value,
        "restored_step": summary.restored_step,
        "restored_val_loss": restored_loss,
        "evaluations": len(summary.evaluations),
        "skipped": summary.skipped,
        "stall_ms": round(stall_ms, 3),
        "in_loop_ms": round(in_loop_ms, 1),
        "stall_over_in_loop": round(stall_ms / in_loop_ms, 6),
        "train_seconds": round(seconds, 1),
        "ok": not failures,
    }
    print(json.dumps(result))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
