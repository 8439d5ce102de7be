"""Multiple choice against lm-eval's own scores and formulas; bad input; exactness."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindeval.service.metrics import MetricInputError, create, metric_names


def test_published_scores_of_lm_eval(data: Path) -> None:
    folder = data / "lm_eval_local"
    items = [json.loads(line) for line in (folder / "mc.jsonl").read_text(encoding="utf-8").splitlines()]
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    state = create("multiple_choice", {"max_length": 1024, "shots": 0})
    state.update(
        sample_ids=[str(k) for k in range(len(items))],
        choice_logprobs=[[logprob for logprob, _ in row] for row in expected["responses"]["mindeval_mc"]],
        choices=[item["choices"] for item in items],
        labels=[item["gold"] for item in items],
    )
    result = state.result()
    for name, want in expected["scores"]["mindeval_mc"].items():
        assert result[name.split(",")[0]].value == want
    acc = result["acc"]
    # lm-eval's own standard error of a mean.
    assert acc.standard_error == pytest.approx(math.sqrt(acc.value * (1 - acc.value) / (len(items) - 1)), rel=1e-12)
    assert tuple(result) == ("acc", "acc_norm", "acc_bytes")


def batch_of(seed: int, *, alone: bool = True) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 12))
    counts = generator.integers(2, 6, size)
    return {
        "sample_ids": [f"问{k}" for k in range(size)],
        "choice_logprobs": [generator.normal(-20, 8, n).round(1) for n in counts],
        "choices": [
            ["选" * int(generator.integers(1, 4)) + "x" * int(generator.integers(0, 5)) for _ in range(n)]
            for n in counts
        ],
        "labels": [int(generator.integers(n)) for n in counts],
        "unconditional_logprobs": [generator.normal(-25, 8, n).round(1) for n in counts] if alone else None,
    }


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_formulas_of_lm_eval(seed: int) -> None:
    batch = batch_of(seed)
    state = create("multiple_choice")
    state.update(**batch)
    hits: dict[str, list[bool]] = {name: [] for name in metric_names("multiple_choice")}
    for scores, texts, label, alone in zip(
        batch["choice_logprobs"], batch["choices"], batch["labels"], batch["unconditional_logprobs"]
    ):
        hits["acc"].append(np.argmax(scores) == label)
        hits["acc_norm"].append(np.argmax(scores / np.array([float(len(t)) for t in texts])) == label)
        hits["acc_bytes"].append(np.argmax(scores / np.array([float(len(t.encode())) for t in texts])) == label)
        hits["acc_mutual_info"].append(np.argmax(scores - alone) == label)
    assert {n: v.value for n, v in state.result().items()} == {n: np.mean(v) for n, v in hits.items()}


def test_non_finite_scores_are_wrong_flagged_and_named() -> None:
    state = create("multiple_choice")
    state.update(
        sample_ids=["a", "b"],
        choice_logprobs=[[math.nan, -1.0], [-1.0, -2.0]],
        choices=[["x", "y"]] * 2,
        labels=[0, 0],
    )
    acc = state.result(["acc"])["acc"]
    assert (acc.value, acc.flags) == (0.5, ("non_finite",))
    assert state.non_finite_samples() == ["a"]
    assert math.isnan(state.result(["acc_mutual_info"])["acc_mutual_info"].value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"choice_logprobs": [[-1.0]]}, "length_mismatch"),
        ({"choice_logprobs": [["x", None]]}, "invalid_value"),
        ({"choices": [["x", ""]]}, "invalid_value"),
        ({"choices": ["xy"]}, "invalid_value"),
        ({"choices": [[]]}, "invalid_value"),
        ({"labels": [2]}, "unknown_label"),
        ({"labels": [None]}, "unknown_label"),
        ({"labels": [-1]}, "unknown_label"),
        ({"unconditional_logprobs": [[-1.0, -1.0, -1.0]]}, "length_mismatch"),
    ],
)
def test_bad_input_names_the_question(change: dict[str, Any], reason: str) -> None:
    batch: dict[str, Any] = {
        "sample_ids": ["q"],
        "choice_logprobs": [[-1.0, -2.0]],
        "choices": [["x", "y"]],
        "labels": [0],
        **change,
    }
    with pytest.raises(MetricInputError) as caught:
        create("multiple_choice").update(**batch)
    assert (caught.value.reason, caught.value.sample_id) == (reason, "q")


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_way_of_arriving_gives_the_same_bits(assert_exact: Callable[..., None], seed: int, alone: bool) -> None:
    batch = batch_of(seed, alone=alone)
    batch["groups"] = [f"g{k % 3}" for k in range(len(batch["labels"]))]
    assert_exact("multiple_choice", {}, batch, trials=2, seed=seed)
