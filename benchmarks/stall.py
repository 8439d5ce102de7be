"""How long one evaluation stops the training thread: with the service, and the other ways of getting one.

    python benchmarks/stall.py [--megabytes 50] [--rounds 15]

One training job in one process, against a service that really evaluates. At every step each way is measured once, in
a shuffled order, only when nothing that another way left running is still at work, and with the parameters just
touched, as an optimizer leaves them. The values are medians over the rounds, so slow and fast moments of the machine
meet all ways alike. The first round, which compiles graphs and touches memory for the first time, is not counted. The
last line is a JSON object.

Ways:
    service             the whole of RemoteEvaluation at a step: snapshot, message, log lines, taking results
    bare_copy           the parameters into preallocated memory, and nothing else: the least that any snapshot costs
    checkpoint          mindspore.save_checkpoint, .ckpt
    checkpoint_safetensors   the same in safetensors
    in_loop             the same validation set through the network in the training process, graph compiled
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from local_service import LocalService
from train_docstrings import (
    FULL,
    LENGTH,
    PREFIX,
    VOCAB,
    Decoder,
    InLoopEvaluation,
    TokenLoss,
    passages,
    register,
    token_ids,
)

from mindeval.hooks import ExportGraph, RemoteEvaluation

MAX_OVER_BARE_COPY = 1.3
MAX_OVER_IN_LOOP = 0.02
RESULT_TIMEOUT_S = 600.0

# Width and layers of the decoder by megabytes of float32 parameters, and passages of the validation set.
SIZES = {5: (128, 6, 64), 50: (384, 7, 32), 500: (1024, 10, 16)}


class Rounds(Callback):
    """Measures every way at every step."""

    def __init__(self, remote: RemoteEvaluation, network: nn.Cell, valid: list[str], folder: Path) -> None:
        super().__init__()
        self.times_ms: dict[str, list[float]] = {}
        self._remote = remote
        self._network = network
        self._folder = folder
        self._random = np.random.default_rng(1)
        self._in_loop = InLoopEvaluation(network, valid, batch=16)
        self._memory = {p.name: np.zeros(p.shape, p.asnumpy().dtype) + 1 for p in network.get_parameters()}

    def on_train_begin(self, run_context) -> None:
        self._remote.on_train_begin(run_context)

    def on_train_end(self, run_context) -> None:
        self._remote.on_train_end(run_context)

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        params.net_outputs.asnumpy()  # the step is over before anything is measured
        ways: list[tuple[str, Callable[[], float]]] = [
            ("service", lambda: self._through_service(run_context)),
            ("bare_copy", lambda: timed(self._copy)),
            ("checkpoint", lambda: timed(lambda: self._save("ckpt"))),
            ("checkpoint_safetensors", lambda: timed(lambda: self._save("safetensors"))),
            ("in_loop", lambda: timed(self._in_loop)),
        ]
        measured = {}
        for index in self._random.permutation(len(ways)):
            name, way = ways[index]
            for parameter in self._network.get_parameters():
                parameter.asnumpy().sum()
            measured[name] = way()
        if params.cur_step_num > 1:
            for name, milliseconds in measured.items():
                self.times_ms.setdefault(name, []).append(milliseconds)
        print(f"round {params.cur_step_num}: " + ", ".join(f"{k} {v:.2f} ms" for k, v in measured.items()), flush=True)

    def _through_service(self, run_context) -> float:
        milliseconds = timed(lambda: self._remote.on_train_step_end(run_context))
        job, record = self._remote._job, self._remote.summary.evaluations[-1]
        assert job is not None
        deadline = time.monotonic() + RESULT_TIMEOUT_S
        # Later steps take what the agent says; what that costs them belongs to this evaluation.
        inbox = job._running()._link._inbox
        while record.state == "PENDING":
            assert time.monotonic() < deadline, "no result"
            if inbox.empty():
                time.sleep(0.01)
            else:
                milliseconds += timed(job._take)
        assert record.state == "SUCCEEDED", record.error
        return milliseconds

    def _copy(self) -> None:
        for parameter in self._network.get_parameters():
            np.copyto(self._memory[parameter.name], parameter.asnumpy())

    def _save(self, kind: str) -> None:
        path = self._folder / f"saved.{kind}"
        path.unlink(missing_ok=True)
        ms.save_checkpoint(self._network, str(path), format=kind)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that a call takes."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000.0


def measure(megabytes: int, rounds: int) -> tuple[dict[str, float], float]:
    """Median milliseconds of each way, and the megabytes (10^6 bytes) of parameters."""
    width, layers, valid_passages = SIZES[megabytes]
    size = replace(FULL, width=width, layers=layers, valid_passages=valid_passages, train_passages=2 * (rounds + 1))
    train, valid = passages(size)
    network = Decoder(size)
    dataset = NumpySlicesDataset(token_ids(train), shuffle=False).batch(2)
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=1e-3, momentum=0.9)
    with LocalService() as service:
        register(service, valid)
        remote = RemoteEvaluation(
            endpoint=service.endpoint,
            suite="docstrings",
            run="stall",
            every_n_steps=1,
            model=ExportGraph(VOCAB, LENGTH, tokenizer="bytes", prefix_token_id=PREFIX),
            log_dir=service.folder / "logs",
            on_error="stop",
        )
        ways = Rounds(remote, network, valid, service.folder)
        Model(network, TokenLoss("mean"), optimizer).train(1, dataset, callbacks=[ways])
    parameter_bytes = sum(parameter.asnumpy().nbytes for parameter in network.get_parameters())
    return {name: statistics.median(times) for name, times in ways.times_ms.items()}, parameter_bytes / 1e6


def results_of(medians: dict[str, float], megabytes: float) -> list[dict[str, object]]:
    """Values with their targets."""

    def entry(name: str, value: float, unit: str, target: float | None = None) -> dict[str, object]:
        met = None if target is None else value <= target
        return {"name": name, "value": round(value, 5), "unit": unit, "target": target, "met": met}

    ours = medians["service"]
    return [
        entry("parameters", megabytes, "MB"),
        *(entry(f"stall_{name}", value, "ms") for name, value in medians.items()),
        entry("service_over_bare_copy", ours / medians["bare_copy"], "ratio", MAX_OVER_BARE_COPY),
        entry("service_over_in_loop", ours / medians["in_loop"], "ratio", MAX_OVER_IN_LOOP),
        entry("service_over_checkpoint", ours / medians["checkpoint"], "ratio"),
        entry("service_over_checkpoint_safetensors", ours / medians["checkpoint_safetensors"], "ratio"),
    ]


def machine() -> dict[str, object]:
    """What it ran on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "mindspore": ms.__version__,
        "load_before": round(os.getloadavg()[0], 2),
    }


def main() -> int:
    """Measures, and prints the JSON object; 0 when the targets are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, choices=sorted(SIZES), default=50, help="size of the parameters")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each way")
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    before = machine()
    medians, megabytes = measure(options.megabytes, options.rounds)
    results = results_of(medians, megabytes)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    print(json.dumps({"benchmark": "stall", "date": date, "machine": before, "results": results}))
    return 0 if all(result["met"] is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
