"""What a training script can read from the callback while it runs and afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mindeval.hooks.stopping import Decision


@dataclass
class EvaluationRecord:
    """One pushed checkpoint and what became of it.

    Attributes:
        step: Training step of the weights (optimizer steps done).
        epoch: Epochs done; fractions where the epoch's length is known.
        train_loss: Training loss at that step; None when the loop does not tell.
        step_time_ms: Mean wall time of a training step since the push before, in milliseconds.
        stall_ms: Time the training thread spent on this push, in milliseconds.
        state: "PENDING", then "SUCCEEDED", "FAILED", "CANCELLED", "SUPERSEDED", or "LOST" when no result can come.
        evaluation: Resource name in the service; "" before it is known.
        metrics: By "task/metric": value, standard_error, count, higher_is_better.
        error: Why it did not succeed; None when it did.
        times: Seconds in the queue and at work in the service: queued_s, run_s; None where it never came to that.
        decision: What the stopping rule made of it; None without a rule or before its turn.
    """

    step: int
    epoch: float
    train_loss: float | None
    step_time_ms: float | None
    stall_ms: float = 0.0
    state: str = "PENDING"
    evaluation: str = ""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    times: dict[str, float | None] = field(default_factory=dict)
    decision: Decision | None = None

    def value(self, name: str) -> float | None:
        """Value of "task/metric"; None when it was not reported."""
        value = self.metrics.get(name, {}).get("value")
        return None if value is None else float(value)

    def find(self, *metrics: str) -> float | None:
        """Value of the first metric of one of these names in any task; None when there is none."""
        for metric in metrics:
            for name in self.metrics:
                if name.rpartition("/")[2] == metric:
                    return self.value(name)
        return None


@dataclass
class Summary:
    """How the run went, as far as evaluation is concerned.

    Attributes:
        stopped_early: Whether the stopping rule ended training.
        stopped_at_step: Training step at which it did.
        decision: The decision that did.
        best_step: Step of the best monitored value.
        best_value: That value.
        evaluations: Every pushed checkpoint in step order.
        skipped: Evaluations left out because both buffers were still on their way to the service.
        stalls_ms: Time each push cost the training thread, in milliseconds.
        restored_step: Step whose weights the network holds after the end; None when nothing was restored.
        not_restored: Why nothing was restored; "" when it was, or was not asked for.
    """

    stopped_early: bool = False
    stopped_at_step: int | None = None
    decision: Decision | None = None
    best_step: int | None = None
    best_value: float | None = None
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    skipped: int = 0
    stalls_ms: list[float] = field(default_factory=list)
    restored_step: int | None = None
    not_restored: str = ""
