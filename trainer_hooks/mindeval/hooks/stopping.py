"""When to stop: a rule over the evaluations of a run, taken in step order.

Nothing here knows about MindSpore, processes or files. `StepOrder` turns results that arrive in any order into outcomes
in step order; `StoppingTracker` turns outcomes into decisions. 0.0 is a value like any other; only a finite value can
be best; an evaluation that failed or never came back says nothing in either direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from mindeval.formats.errors import MindEvalError

IMPROVED = "improved"
NOT_IMPROVED = "not_improved"
NOT_COUNTED = "not_counted"
STOP = "stop"

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class StoppingRule:
    """Stop when a metric has not improved for `patience` evaluations in a row.

    Attributes:
        monitor: "task/metric" as the suite names them, such as "val/loss".
        mode: "min" or "max". Required: the direction is never guessed from the name.
        min_delta: An improvement is a change by more than this in the right direction; in the metric's unit, >= 0.
        patience: Stop at this many evaluations in a row without improvement; at least 1.
        restore_best: Whether the best weights are put back into the network when training ends, however it ends.

    Raises:
        MindEvalError: INVALID_FIELD when a field breaks its rule.
    """

    monitor: str = "val/loss"
    mode: str = ""
    min_delta: float = 0.0
    patience: int = 3
    restore_best: bool = True

    def __post_init__(self) -> None:
        _require(self.mode in ("min", "max"), "mode", "say mode='min' (a loss) or mode='max' (an accuracy)")
        _require(isinstance(self.monitor, str) and bool(self.monitor), "monitor", "must name a metric: 'task/metric'")
        delta_fits = isinstance(self.min_delta, (int, float)) and math.isfinite(self.min_delta) and self.min_delta >= 0
        _require(delta_fits, "min_delta", "must be a finite number >= 0")
        whole = isinstance(self.patience, int) and not isinstance(self.patience, bool)
        _require(whole and self.patience >= 1, "patience", "must be a whole number >= 1 (0 would stop at improvements)")

    def is_better(self, value: float, than: float, by_more_than: float = 0.0) -> bool:
        """Whether one finite value beats another by more than a margin."""
        gain = than - value if self.mode == "min" else value - than
        return gain > by_more_than


@dataclass
class Decision:
    """What the rule made of one evaluation.

    Attributes:
        verdict: "improved", "not_improved", "not_counted" (failed, missing) or "stop".
        reason: One sentence for people.
        step: Training step of the evaluated weights.
        value: The monitored value; None when there was none.
        best_step: Step of the best value so far; None before the first finite one.
        best_value: The best value so far.
        misses: Evaluations in a row without improvement, this one included.
        decided_at_step: Training step at which the result was taken.
        stopped_at_step: Training step at which training was asked to stop; set on "stop" only.
        rule: The fields of the rule.
    """

    verdict: str
    reason: str
    step: int
    value: float | None
    best_step: int | None
    best_value: float | None
    misses: int
    decided_at_step: int
    stopped_at_step: int | None
    rule: dict[str, Any]


class StepOrder(Generic[Outcome]):
    """Holds outcomes back until those of all earlier steps are in."""

    def __init__(self) -> None:
        self._expected: list[int] = []
        self._outcomes: dict[int, Outcome] = {}

    def expect(self, step: int) -> None:
        """Announces a step; steps come in increasing order."""
        self._expected.append(step)

    def resolve(self, step: int, outcome: Outcome) -> None:
        """Gives a step its outcome; a step that is not awaited, or has one, is left as it is."""
        if step in self._expected:
            self._outcomes.setdefault(step, outcome)

    def ready(self) -> Iterator[tuple[int, Outcome]]:
        """Takes out, in step order, every outcome that no earlier step holds back."""
        while self._expected and self._expected[0] in self._outcomes:
            step = self._expected.pop(0)
            yield step, self._outcomes.pop(step)


class StoppingTracker:
    """Applies one rule to outcomes in step order.

    Two values are kept. The *reference* moves only on an improvement by more than `min_delta` and is what patience
    counts against; the *best* is the best finite value of all, and is what gets restored.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self.best_step: int | None = None
        self.best_value: float | None = None
        self.stop_decision: Decision | None = None
        self._reference: float | None = None
        self._misses = 0

    def observe(self, step: int, value: float | None, at_step: int, why_missing: str = "") -> Decision:
        """Takes the next outcome.

        Args:
            step: Step of the evaluated weights.
            value: The monitored value, None when the evaluation gave none.
            at_step: The training step now.
            why_missing: Why there is no value.
        """
        if value is None:
            return self._decide(
                NOT_COUNTED, f"no value ({why_missing or 'no result'}): not counted", step, None, at_step
            )
        name, before = self.rule.monitor, self._reference
        if not math.isfinite(value):
            return self._miss(f"{name} is {value}", step, value, at_step)
        if self.best_value is None or self.rule.is_better(value, self.best_value):
            self.best_step, self.best_value = step, value
        if before is None:
            self._reference, self._misses = value, 0
            return self._decide(IMPROVED, f"first value of {name}: {value:.6g}", step, value, at_step)
        if self.rule.is_better(value, before, self.rule.min_delta):
            self._reference, self._misses = value, 0
            return self._decide(IMPROVED, f"{name} {before:.6g} -> {value:.6g}", step, value, at_step)
        margin = f" by more than {self.rule.min_delta:g}" if self.rule.min_delta else ""
        return self._miss(f"{name} {value:.6g} does not beat {before:.6g}{margin}", step, value, at_step)

    def _miss(self, what: str, step: int, value: float, at_step: int) -> Decision:
        self._misses += 1
        reason = f"{what} ({self._misses} of {self.rule.patience})"
        stops = self._misses >= self.rule.patience and self.stop_decision is None
        decision = self._decide(STOP if stops else NOT_IMPROVED, reason, step, value, at_step)
        if stops:
            self.stop_decision = decision
        return decision

    def _decide(self, verdict: str, reason: str, step: int, value: float | None, at_step: int) -> Decision:
        return Decision(
            verdict=verdict,
            reason=reason,
            step=step,
            value=value,
            best_step=self.best_step,
            best_value=self.best_value,
            misses=self._misses,
            decided_at_step=at_step,
            stopped_at_step=None,
            rule=asdict(self.rule),
        )


def _require(condition: bool, field: str, rule: str) -> None:
    if not condition:
        raise MindEvalError("INVALID_FIELD", f"StoppingRule.{field}: {rule}", {"field": field})
