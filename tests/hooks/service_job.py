"""A training job against a real service; writes what it came to into FOLDER/result.json.

python service_job.py ENDPOINT FOLDER '{"epochs": 2, "patience": 2, ...}'
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import mindspore as ms
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import scenarios

from mindeval.hooks import ExportGraph, RemoteEvaluation, StoppingRule


def in_loop_loss(network, valid: np.ndarray) -> float:
    """The service's number, computed here: mean loss of every token that has one before it."""
    network.set_train(False)
    logits = network(ms.Tensor(valid[:, :-1])).asnumpy().astype(np.float64)
    below = logits - logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(below, valid[:, 1:, None].astype(np.int64), -1)[..., 0]
    return float((np.log(np.exp(below).sum(-1)) - chosen).mean())


def main() -> None:
    endpoint, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mindeval").addHandler(handler)
    ms.set_context(mode=ms.GRAPH_MODE)
    job = scenarios.Job(folder / "job")
    job.callback = RemoteEvaluation(
        endpoint=endpoint,
        suite="s",
        run=options.get("run", "r"),
        model=ExportGraph(scenarios.VOCAB, scenarios.LENGTH),
        every_n_steps=options.get("every_n_steps", 4),
        stopping=StoppingRule("val/loss", mode="min", patience=options.get("patience", 2)),
        log_dir=folder / "logs",
        staging_dir=folder / "job" / "staging",
        final_wait_s=options.get("final_wait_s", 60.0),
    )
    result = job.train(epochs=options.get("epochs", 6))
    result["said"] = records
    if options.get("valid"):
        result["in_loop_loss"] = in_loop_loss(job.network, np.load(options["valid"]))
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
