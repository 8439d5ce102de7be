"""An in-loop evaluation callback, and what replaces it.

    python examples/replace_in_loop_evaluation.py              # the service evaluates
    python examples/replace_in_loop_evaluation.py --in-loop    # as it was before

A next-word model (embedding and dense, GRAPH mode) on the text of Python's own manual, with MindSpore's ModelCheckpoint
beside the evaluation, as many training scripts have it. Of the script, only the lines between "before" and "after" in
`train` change. Both ways give the same validation losses; the first also checks that, on the weights that it restored.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np
from local_service import LocalService
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

from mindeval.hooks import ExportGraph, RemoteEvaluation, StoppingRule

VOCAB, LENGTH, BATCH = 1000, 33, 32
EPOCHS, EVERY_N_STEPS = 12, 25


def documents() -> tuple[np.ndarray, np.ndarray]:
    """Word ids of the manual, int32 [documents, LENGTH]: for training, and of other topics for validation."""
    source = Path(sysconfig.get_path("stdlib"), "pydoc_data", "topics.py").read_text("utf-8")
    # The module is one dictionary, topic by topic; it is read and not run.
    assignment = next(node for node in ast.parse(source).body if isinstance(node, ast.Assign))
    topics: dict[str, str] = ast.literal_eval(assignment.value)
    words = {name: re.findall(r"\w+|[^\w\s]", text.lower()) for name, text in sorted(topics.items())}
    counts = collections.Counter(word for text in words.values() for word in text)
    ids = {word: number for number, (word, _) in enumerate(counts.most_common(VOCAB - 1), start=1)}
    sides: tuple[list[list[int]], list[list[int]]] = ([], [])
    for index, text in enumerate(words.values()):
        numbers = [ids.get(word, 0) for word in text]
        cut = range(0, len(numbers) - LENGTH + 1, LENGTH)
        sides[index % 5 == 0].extend(numbers[begin : begin + LENGTH] for begin in cut)
    train, valid = (np.array(side, np.int32) for side in sides)
    return train, valid


class NextWord(nn.Cell):
    """int32 ids [batch, length] to logits [batch, length, VOCAB]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 64)
        self.dense = nn.Dense(64, VOCAB)

    def construct(self, ids):
        """The forward pass."""
        return self.dense(self.embedding(ids))


class TokenLoss(nn.Cell):
    """Cross-entropy of each word (reduction "none") or their mean, in nats."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction=reduction)

    def construct(self, logits, targets):
        """The loss."""
        return self.entropy(logits.reshape((-1, VOCAB)), targets.reshape((-1,)))


def validation_loss(cell: nn.Cell, valid: np.ndarray) -> float:
    """Mean loss of a word: sums and counts over all batches, so the size of the last one does not matter."""
    total, count = 0.0, 0
    for begin in range(0, len(valid), BATCH):
        batch = valid[begin : begin + BATCH]
        losses = cell(Tensor(batch[:, :-1]), Tensor(batch[:, 1:])).asnumpy()
        total, count = total + float(losses.astype(np.float64).sum()), count + losses.size
    return total / count


class InLoopEvaluation(Callback):
    """The old way: training waits while the validation set is run through the network.

    It keeps no history beyond the process, does not restore the best weights, and has to remember to put the network
    back into training mode.
    """

    def __init__(self, network: nn.Cell, valid: np.ndarray, every_n_steps: int, patience: int) -> None:
        super().__init__()
        self.losses: dict[int, float] = {}
        self._network, self._valid = network, valid
        self._cell = nn.WithLossCell(network, TokenLoss("none"))
        self._every, self._patience, self._misses = every_n_steps, patience, 0

    def on_train_step_end(self, run_context) -> None:
        """Evaluates at every n-th step."""
        step = run_context.original_args().cur_step_num
        if step % self._every:
            return
        self._network.set_train(False)
        loss = validation_loss(self._cell, self._valid)
        self._network.set_train(True)
        self._misses = 0 if all(loss < before for before in self.losses.values()) else self._misses + 1
        self.losses[step] = loss
        if self._misses >= self._patience:
            run_context.request_stop()


def train(
    network: nn.Cell, data: np.ndarray, valid: np.ndarray, service: LocalService | None, folder: Path
) -> Callback:
    """The training script; returns the callback that evaluated."""
    dataset = NumpySlicesDataset((data[:, :-1], data[:, 1:]), shuffle=True).batch(BATCH, drop_remainder=True)
    model = Model(network, TokenLoss("mean"), nn.Adam(network.trainable_params(), 0.01))
    checkpoints = ModelCheckpoint(
        "next_word", str(folder / "checkpoints"), CheckpointConfig(save_checkpoint_steps=50, keep_checkpoint_max=3)
    )
    if service is None:
        # before
        evaluation: Callback = InLoopEvaluation(network, valid, every_n_steps=EVERY_N_STEPS, patience=2)
    else:
        # after
        evaluation = RemoteEvaluation(
            endpoint=service.endpoint,
            suite="manual",
            run="next-word",
            every_n_steps=EVERY_N_STEPS,
            model=ExportGraph(VOCAB, max_length=LENGTH),
            stopping=StoppingRule("valid/loss", mode="min", patience=2),
        )
    model.train(EPOCHS, dataset, callbacks=[checkpoints, evaluation], dataset_sink_mode=False)
    return evaluation


def register(service: LocalService, valid: np.ndarray) -> None:
    """The validation set as token ids, one document a row, and a suite that scores it."""
    dataset, suite = service.folder / "valid.npy", service.folder / "manual.yaml"
    np.save(dataset, valid)
    suite.write_text(
        "tasks:\n  - {name: valid, type: language_modeling, dataset: manual-valid, metrics: [loss]}\n", "utf-8"
    )
    service.command("dataset", "put", "manual-valid", str(dataset), "--format", "tokens_npy", "--language", "en")
    service.command("suite", "put", str(suite), "--name", "manual")


def run_in_loop(folder: Path) -> dict[str, object]:
    """The job as it was."""
    data, valid = documents()
    evaluation = train(NextWord(), data, valid, None, folder)
    assert isinstance(evaluation, InLoopEvaluation)
    return {"way": "in-loop", "losses": evaluation.losses, "ok": True}


def run_with_service(service: LocalService) -> dict[str, object]:
    """The job as it is now, and the old evaluation once more over what it left behind."""
    data, valid = documents()
    register(service, valid)
    network = NextWord()
    evaluation = train(network, data, valid, service, service.folder)
    assert isinstance(evaluation, RemoteEvaluation)
    summary = evaluation.summary
    network.set_train(False)
    in_loop = validation_loss(nn.WithLossCell(network, TokenLoss("none")), valid)
    best = summary.best_value if summary.best_value is not None else float("nan")
    print(f"best step {summary.best_step}: {best:.6f} from the service, {in_loop:.6f} in this process")
    return {
        "way": "service",
        "losses": {record.step: record.value("valid/loss") for record in summary.evaluations},
        "best_step": summary.best_step,
        "restored_step": summary.restored_step,
        "best_val_loss": best,
        "in_loop_val_loss": in_loop,
        "checkpoints": sorted(path.name for path in (service.folder / "checkpoints").glob("*.ckpt")),
        "ok": summary.restored_step == summary.best_step and abs(best - in_loop) <= 1e-4,
    }


def main() -> int:
    """Runs one of the two ways; 0 when it worked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--in-loop", action="store_true", help="evaluate inside the loop, as before")
    in_loop = parser.parse_args().in_loop
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    if in_loop:
        with tempfile.TemporaryDirectory() as folder:
            result = run_in_loop(Path(folder))
    else:
        with LocalService() as service:
            result = run_with_service(service)
    losses = result["losses"]
    assert isinstance(losses, dict)
    for step, loss in losses.items():
        print(f"step {step:>4}: validation loss {loss if loss is None else round(loss, 6)}")
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
