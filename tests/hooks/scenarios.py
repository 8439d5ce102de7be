"""Training jobs with MindSpore and a scripted agent, many in one process; prints what each came to as JSON.

A process of its own, because MindSpore and the gRPC of other tests must not meet; a single one, because starting
MindSpore takes seconds.

    python scenarios.py FOLDER [SCENARIO ...]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model

from mindeval.hooks import ExportGraph, RemoteEvaluation, StoppingRule
from mindeval.hooks.graph_export import export_graph
from mindeval.hooks.snapshot import SnapshotBuffers, read_snapshot
from mindeval.hooks.weights import NetworkWeights

AGENT = Path(__file__).with_name("scripted_agent.py")
VOCAB, LENGTH, BATCH, STEPS_PER_EPOCH = 32, 8, 4, 10
RULE = StoppingRule("val/loss", mode="min", patience=2)


class Network(nn.Cell):
    """Embedding, dense; `outputs` chooses what construct returns.

    Dropout is kept at 0 in training: MindSpore's CPU kernel draws by thread and chooses the number of threads by
    timing, so that no two runs with dropout are equal, whatever the seed.
    """

    def __init__(self, outputs: str = "logits", dropout: float = 0.0) -> None:
        super().__init__()
        self.outputs = outputs
        self.embedding = nn.Embedding(VOCAB, 16)
        self.dropout = nn.Dropout(p=dropout)
        self.dense = nn.Dense(16, VOCAB)

    def construct(self, ids):
        logits = self.dense(self.dropout(self.embedding(ids)))
        if self.outputs == "tuple":
            return logits, ids
        return logits


class Loss(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.entropy = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, logits, labels):
        return self.entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))


class Recorder(Callback):
    """Keeps the weights after each step, and may fail at one."""

    def __init__(self, fail_at: int = 0) -> None:
        super().__init__()
        self.weights: dict[int, dict[str, np.ndarray]] = {}
        self.losses: list[float] = []
        self.fail_at = fail_at

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.weights[params.cur_step_num] = weights_of(params.network)
        self.losses.append(float(params.net_outputs.asnumpy()))
        if params.cur_step_num == self.fail_at:
            raise RuntimeError("the training script's own error")
        time.sleep(0.05)  # so that results arrive while training goes on, as they do with real steps


class Job:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "agent"
        self.state.mkdir(parents=True)
        ms.set_seed(7)
        np.random.seed(7)
        self.network = Network()
        self.recorder = Recorder()
        self.callback: RemoteEvaluation | None = None
        self.steps_before = 0

    def attach(self, script: dict[str, Any], **options: Any) -> None:
        options.setdefault("model", ExportGraph(VOCAB, LENGTH))
        if "every_n_epochs" not in options:
            options.setdefault("every_n_steps", 2)
        self.callback = RemoteEvaluation(
            suite="s",
            run="r",
            log_dir=self.folder / "logs",
            staging_dir=self.folder / "staging",
            agent_command=[sys.executable, str(AGENT), str(self.state), json.dumps(script)],
            **options,
        )

    def train(self, epochs: int = 2, how: str = "train", **options: Any) -> dict[str, Any]:
        random = np.random.default_rng(0)
        ids = random.integers(0, VOCAB, (BATCH * STEPS_PER_EPOCH, LENGTH)).astype(np.int32)
        dataset = NumpySlicesDataset((ids, ids), shuffle=True).batch(BATCH)
        optimizer = nn.Adam(self.network.trainable_params(), 0.01)
        model = Model(self.network, Loss(), optimizer, metrics={"loss"})
        callbacks = [self.recorder] if self.callback is None else [self.recorder, self.callback]
        error = None
        try:
            if how == "fit":
                model.fit(epochs, dataset, NumpySlicesDataset((ids, ids)).batch(BATCH), callbacks=callbacks)
            else:
                model.train(epochs, dataset, callbacks=callbacks, dataset_sink_mode=False, **options)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        return self.outcome(error)

    def outcome(self, error: str | None) -> dict[str, Any]:
        result: dict[str, Any] = {
            "error": error,
            "steps": len(self.recorder.losses),
            "weights": digest(weights_of(self.network)),
            "final_is_step": self.step_of(weights_of(self.network)),
            "losses": self.recorder.losses,
            "staging_left": [p.name for p in (self.folder / "staging").glob("*")] if self.callback else [],
        }
        if self.callback is not None:
            result["summary"] = dataclasses.asdict(self.callback.summary)
            result["pushed_equal"] = self.pushed_equal()
        return result

    def step_of(self, weights: dict[str, np.ndarray]) -> int | None:
        steps = [s for s, recorded in self.recorder.weights.items() if digest(recorded) == digest(weights)]
        return steps[0] if steps else None

    def pushed_equal(self) -> dict[str, bool]:
        """Whether the file that the agent read at each step holds the weights of just that step."""
        specs = NetworkWeights(self.network).specs
        result = {}
        for path in sorted(self.state.glob("step-*.safetensors")):
            step = int(path.stem.partition("-")[2])
            bits, then = read_snapshot(path, specs), self.recorder.weights[step - self.steps_before]
            result[str(step)] = all(np.array_equal(bits[n].view(np.float32), then[n]) for n in then)
        return result


def weights_of(network: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy().copy() for p in network.get_parameters()}


def digest(weights: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()


# --- scenarios: each takes a folder of its own ---


def plain(folder: Path) -> dict[str, Any]:
    return Job(folder).train()


def watched(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"values": [3.0]})
    return job.train()


def early_stop(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"values": [3.0, 2.0, 2.5, 2.6, 2.7]}, stopping=RULE)
    result = job.train(epochs=5)
    # The compiled training graph must see the restored weights, not the ones it last wrote.
    ids = Tensor(np.arange(LENGTH, dtype=np.int32)[None])
    job.network.set_train(False)
    fresh = Network()
    for parameter in fresh.get_parameters():
        parameter.set_data(Tensor(job.recorder.weights[result["summary"]["restored_step"]][parameter.name]))
    fresh.set_train(False)
    result["restored_logits_equal"] = bool(np.allclose(job.network(ids).asnumpy(), fresh(ids).asnumpy(), atol=1e-6))
    return result


def normal_end(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"values": [3.0, 2.0, 2.5, 2.4, 2.3]}, stopping=StoppingRule(mode="min", patience=99), every_n_steps=4)
    return job.train()


def fetch_fails(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"values": [2.0, 3.0], "fetch_error": "the blob is gone"}, stopping=RULE)
    return job.train()


def service_absent(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"unavailable_for": 99}, stopping=RULE, final_wait_s=0.5)
    return job.train()


def agent_cannot_start(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({}, stopping=RULE)
    assert job.callback is not None
    settings = dataclasses.replace(job.callback._settings, agent_command=(str(folder / "nothing"),))
    job.callback._settings = settings
    return job.train()


def blocking(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"values": [3.0, 2.0, 2.5, 2.6]}, stopping=RULE, blocking=True)
    return job.train()


def strict_error(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"error": "SUITE_NOT_FOUND"}, on_error="stop", stopping=RULE)
    return job.train()


def lenient_error(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"error": "SUITE_NOT_FOUND"}, stopping=RULE)
    return job.train()


class Unexportable(nn.Cell):
    def construct(self, ids):
        return ids.no_such_method()


def export_fails(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({}, model=ExportGraph(VOCAB, LENGTH, network=Unexportable()))
    return job.train()


def export_fails_strict(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({}, model=ExportGraph(VOCAB, LENGTH, network=Unexportable()), on_error="stop")
    return job.train()


def epochs_in_fit(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.attach({"values": [3.0]}, every_n_epochs=1)
    return job.train(how="fit")


def resumed(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.steps_before = 2 * STEPS_PER_EPOCH
    job.attach({"values": [3.0]}, every_n_steps=8)
    return job.train(epochs=3, initial_epoch=2)


def script_fails(folder: Path) -> dict[str, Any]:
    job = Job(folder)
    job.recorder.fail_at = 5
    job.attach({"values": [3.0]})
    result = job.train()
    result["agents_left"] = len(_children())
    return result


def many_errors(folder: Path) -> dict[str, Any]:
    """A defect of ours at every step: said, then evaluation switched off, training undisturbed."""
    job = Job(folder)
    job.attach({"values": [3.0]})
    original = Recorder.on_train_step_end

    def break_it(self, run_context):
        original(self, run_context)
        if job.callback._job is not None:
            job.callback._job._weights = None

    Recorder.on_train_step_end = break_it
    try:
        return job.train(epochs=3)
    finally:
        Recorder.on_train_step_end = original


def pynative(folder: Path) -> dict[str, Any]:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        job = Job(folder)
        job.attach({"values": [3.0, 2.0, 2.5, 2.6]}, stopping=RULE)
        return job.train()
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def export_leaves_no_trace(folder: Path) -> dict[str, Any]:
    result = {}
    for outputs in ("logits", "tuple"):
        network = Network(outputs, dropout=0.3)
        network.set_train(True)
        network.dense.set_train(False)
        names = [p.name for p in network.get_parameters()]
        before = [(cell.training, cell._phase) for _, cell in network.cells_and_names()]
        state, level = ms.get_rng_state().asnumpy().copy(), ms.get_context("jit_syntax_level")
        files = ExportGraph(VOCAB, LENGTH, "none").stage(network, folder)
        graph = nn.GraphCell(ms.load(str(files["model.mindir"])))
        ms.load_param_into_net(graph, {p.name: p for p in network.get_parameters()})
        graph.set_inputs(Tensor(shape=[None, None], dtype=ms.int32))
        after = [(cell.training, cell._phase) for _, cell in network.cells_and_names()]
        network.set_train(False)
        equal = []
        for shape in ((1, 3), (4, 8)):
            ids = Tensor(np.random.default_rng(0).integers(0, VOCAB, shape).astype(np.int32))
            logits = network(ids)[0] if outputs == "tuple" else network(ids)
            equal.append(bool(np.array_equal(graph(ids).asnumpy(), logits.asnumpy())))
        result[outputs] = {
            "modes": before == after,
            "names": names == [p.name for p in network.get_parameters()] == sorted(names, key=names.index),
            "graph_names": sorted(p.name for p in graph.get_parameters()) == sorted(names),
            "random_state": bool(np.array_equal(state, ms.get_rng_state().asnumpy())),
            "syntax_level": level == ms.get_context("jit_syntax_level"),
            "equal": equal,
            "description": json.loads(files["mindeval_model.json"].read_bytes()),
            "bytes": files["model.mindir"].stat().st_size,
        }
    level = ms.get_context("jit_syntax_level")
    try:
        export_graph(Unexportable(), None)
    except Exception as error:
        result["failure"] = {"type": type(error).__name__, "reason": error.reason, "message": str(error)}
    result["failure"]["syntax_level"] = level == ms.get_context("jit_syntax_level")
    return result


class Mixed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        for name in ("float32", "float16", "bfloat16"):
            array = random.standard_normal((3, 5)).astype(np.float32)
            setattr(self, name, Parameter(Tensor(array).astype(getattr(ms, name)), name=name))
        self.count = Parameter(Tensor(np.array([3], np.int64)), name="count")
        self.flag = Parameter(Tensor(np.array([True, False])), name="flag", requires_grad=False)
        self.scalar = Parameter(Tensor(1.5, ms.float32), name="scalar")


def dtypes_round_trip(folder: Path) -> dict[str, Any]:
    network = Mixed()
    weights = NetworkWeights(network)
    buffers = SnapshotBuffers(folder, weights.specs)
    buffer = buffers.acquire(1)
    buffer.copy(weights.arrays())
    before = {p.name: p.asnumpy().tobytes() for p in network.get_parameters()}
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(np.zeros(parameter.shape, np.float32)).astype(parameter.dtype))
    zeroed = {p.name: p.asnumpy().tobytes() for p in network.get_parameters()}
    weights.load(read_snapshot(buffer.path, weights.specs))
    after = {p.name: p.asnumpy().tobytes() for p in network.get_parameters()}
    result = {
        "changed": sorted(name for name in before if before[name] != zeroed[name]),
        "equal": before == after,
        "dtypes": {spec.name: spec.dtype for spec in weights.specs},
        "kept": {p.name: str(p.dtype) for p in network.get_parameters()},
    }
    buffers.close()
    return result


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


SCENARIOS = [
    plain, watched, early_stop, normal_end, fetch_fails, service_absent, agent_cannot_start, blocking, strict_error,
    lenient_error, export_fails, export_fails_strict, epochs_in_fit, resumed, script_fails, many_errors, pynative,
    export_leaves_no_trace, dtypes_round_trip,
]  # fmt: skip


def main() -> None:
    root = Path(sys.argv[1])
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mindeval").addHandler(handler)
    results = {}
    chosen = set(sys.argv[2:])
    for scenario in SCENARIOS:
        if chosen and scenario.__name__ not in chosen:
            continue
        records.clear()
        folder = root / scenario.__name__
        folder.mkdir()
        began = time.monotonic()
        try:
            results[scenario.__name__] = scenario(folder)
        except Exception:
            results[scenario.__name__] = {"broken": traceback.format_exc()}
        results[scenario.__name__]["said"] = list(records)
        results[scenario.__name__]["seconds"] = time.monotonic() - began
    (root / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
