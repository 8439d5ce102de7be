"""One training job's conversation with its agent: pushes out, results in, decisions in step order.

Everything here runs on the training thread and none of it waits, except where the name says so. It knows nothing of
MindSpore: parameters come as arrays, the stop and the restored weights are the callback's to act on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable

from mindeval.formats.errors import MindEvalError
from mindeval.hooks import link as agent
from mindeval.hooks.journal import Journal
from mindeval.hooks.link import AgentLink, Message
from mindeval.hooks.snapshot import SnapshotBuffers
from mindeval.hooks.stopping import Decision, StepOrder, StoppingRule, StoppingTracker
from mindeval.hooks.summary import EvaluationRecord, Summary

logger = logging.getLogger("mindeval")

UNAVAILABLE_GRACE_S = 10.0
"""How long a wait goes on while the service is known to be away, in seconds."""

_PATIENCE_WITHOUT_WORD_S = 3.0
_STOP_WHILE_AWAY_S = 1.0
_REPORT_POINTS = 50
_REPORT_INTERVAL_S = 5.0


@dataclass
class _Push:
    """A push whose result is still to come."""

    id: int
    record: EvaluationRecord

    def message(self, weights: Path) -> Message:
        return {
            "type": "push",
            "id": self.id,
            "step": self.record.step,
            "epoch": self.record.epoch,
            "weights": str(weights),
            "parameters": {},
        }


class EvaluationSession:
    """Pushes snapshots, takes results, decides.

    Args:
        link: The started agent.
        buffers: Where snapshots go.
        journal: The logs.
        rule: The stopping rule; None to only record.
        strict: Whether a permanent error (a refused token, an unknown suite or metric) is raised.

    Attributes:
        summary: What became of it so far.
    """

    def __init__(
        self, link: AgentLink, buffers: SnapshotBuffers, journal: Journal, rule: StoppingRule | None, strict: bool
    ) -> None:
        self.summary = Summary()
        self._link = link
        self._buffers = buffers
        self._journal = journal
        self._tracker = None if rule is None else StoppingTracker(rule)
        self._strict = strict
        self._outstanding: dict[int, _Push] = {}
        self._order: StepOrder[EvaluationRecord] = StepOrder()
        self._last_id = 0
        self._generation = 1
        self._gone = ""
        self._unavailable_since: float | None = None
        self._fetch: Message | None = None
        self._fetched: dict[int, Message] = {}
        self._points: list[dict[str, Any]] = []
        self._points_since = time.monotonic()
        self._monitor_checked = False
        self._said: set[str] = set()

    # --- what the training loop does ---

    def push(self, record: EvaluationRecord, arrays: Iterable[tuple[str, Any]]) -> bool:
        """Copies the parameters and hands them to the agent.

        Args:
            record: Step, epoch and what training shows at it.
            arrays: (name, array) of every parameter.

        Returns:
            False when it was skipped: both buffers are in use, or the agent is gone for good.
        """
        identity = self._last_id + 1
        buffer = None if self._gone else self._buffers.acquire(identity)
        if buffer is None:
            self.summary.skipped += 1
            self._journal.event("skip", step=record.step, skipped=self.summary.skipped)
            if not self._gone:
                self._warn_once(
                    "skip",
                    f"evaluation at step {record.step} skipped: both snapshots are still on their way to the service "
                    "(said once; skips are counted in events.jsonl and summary.skipped)",
                )
            return False
        try:
            buffer.copy(arrays)
        except BaseException:
            self._buffers.release(identity)
            raise
        buffer.content = self._last_id = identity
        push = _Push(identity, record)
        self._outstanding[identity] = push
        self._order.expect(record.step)
        self.summary.evaluations.append(record)
        self._link.send(push.message(buffer.path), self._generation)
        return True

    def note_push(self, record: EvaluationRecord) -> None:
        """Logs a push that was made; apart, because its cost is known only afterwards."""
        self.summary.stalls_ms.append(record.stall_ms)
        fields = ("step", "epoch", "train_loss", "step_time_ms", "stall_ms")
        self._journal.event("push", **{name: getattr(record, name) for name in fields})

    def report(self, point: dict[str, Any]) -> None:
        """Takes a point of the training series; points travel in batches."""
        self._points.append(point)
        age = time.monotonic() - self._points_since
        if len(self._points) >= _REPORT_POINTS or age > _REPORT_INTERVAL_S:
            self.flush_report()

    def flush_report(self) -> None:
        """Sends the points gathered so far."""
        if self._points:
            delivered = self._link.send({"type": "train_metrics", "points": self._points})
            self._journal.event("train_metrics", delivered=delivered, points=self._points)
        self._points, self._points_since = [], time.monotonic()

    def take(self, at_step: int) -> None:
        """Takes everything that the agent has said; never waits.

        Args:
            at_step: The training step now.

        Raises:
            MindEvalError: A permanent error, in strict mode only.
        """
        while True:
            message = self._link.receive()
            if message is None:
                return
            self._handle(message, at_step)

    # --- waiting ---

    def wait_for_results(self, at_step: int, timeout_s: float, outage_s: float = UNAVAILABLE_GRACE_S) -> bool:
        """Waits until no result is outstanding; gives up on a service that stays away.

        Args:
            at_step: The training step now.
            timeout_s: Longest wait in seconds.
            outage_s: How much of it for a service that was away before the wait began.

        Returns:
            Whether all results are in.
        """
        return self._wait(lambda: not self._outstanding, at_step, timeout_s, "results", outage_s)

    def give_up_outstanding(self, at_step: int, why: str) -> None:
        """Counts what has not come back as lost, so that later results are not held back by it."""
        for push in list(self._outstanding.values()):
            self._lose(push, why)
        self._settle(at_step)

    def fetch(self, evaluation: str, path: Path, at_step: int, timeout_s: float) -> str:
        """Gets a checkpoint back from the service, and waits for it.

        Args:
            evaluation: Resource name of the evaluation whose checkpoint it is.
            path: Safetensors file to write.
            at_step: The training step now.
            timeout_s: Longest wait in seconds.

        Returns:
            "" when the file is there, else why not.
        """
        self._last_id += 1
        identity = self._last_id
        self._fetch = {"type": "fetch", "id": identity, "evaluation": evaluation, "path": str(path)}
        self._link.send(self._fetch, self._generation)
        came = self._wait(lambda: identity in self._fetched, at_step, timeout_s, "the best weights")
        self._fetch = None
        if not came:
            return self._gone or f"the service did not send them within {timeout_s:g} s"
        error = self._fetched.pop(identity).get("error")
        if not error:
            return ""
        return str(error.get("message", error)) if isinstance(error, dict) else str(error)

    def close(self, deadline_s: float) -> None:
        """Flushes the training series and ends the agent.

        Args:
            deadline_s: Time that the agent gets, in seconds; little of it while there is no service to flush to.
        """
        self.flush_report()
        self._link.close(deadline_s if self._unavailable_since is None else min(deadline_s, _STOP_WHILE_AWAY_S))

    # --- what the agent says ---

    def _wait(
        self,
        done: Callable[[], bool],
        at_step: int,
        timeout_s: float,
        what: str,
        outage_s: float = UNAVAILABLE_GRACE_S,
    ) -> bool:
        began, told = time.monotonic(), False
        while not done():
            now = time.monotonic()
            left = began + timeout_s - now
            away = self._unavailable_since
            if away is not None:
                given_up = away + UNAVAILABLE_GRACE_S if away > began else began + outage_s
                left = min(left, given_up - now)
            if left <= 0 or self._gone:
                return False
            if not told and now - began > _PATIENCE_WITHOUT_WORD_S:
                tell(f"waiting for {what} (at most {timeout_s:g} s)")
                told = True
            message = self._link.receive(min(left, 0.5))
            if message is not None:
                self._handle(message, at_step)
        return True

    def _handle(self, message: Message, at_step: int) -> None:
        kind = message["type"]
        if kind == "released":
            self._journal.event("released", **_without_type(message))
            self._buffers.release(message.get("id", 0))
        elif kind == "submitted":
            push = self._outstanding.get(message.get("id", 0))
            if push is not None:
                push.record.evaluation = str(message.get("evaluation", ""))
            self._journal.event("submitted", **_without_type(message))
        elif kind == "result":
            self._on_result(message, at_step)
        elif kind == "fetched":
            self._fetched[message.get("id", 0)] = message
        elif kind in ("status", "connected", "ready", "stopped", "garbage"):
            self._on_status(kind, message)
        elif kind in (agent.STARTED, agent.EXITED, agent.GAVE_UP):
            self._on_agent(kind, message, at_step)

    def _on_result(self, message: Message, at_step: int) -> None:
        push = self._outstanding.pop(message.get("id", 0), None)
        self._journal.event("result", **_without_type(message))
        if push is None:
            return  # a repeated answer after a restart
        self._buffers.release(push.id)
        record = push.record
        record.state = str(message.get("state", "FAILED"))
        record.evaluation = str(message.get("evaluation") or record.evaluation)
        record.metrics = dict(message.get("metrics") or {})
        record.times = dict(message.get("times") or {})
        record.error = message.get("error")
        if record.state == "FAILED":
            text = (record.error or {}).get("message", "no reason given")
            self._warn_once(f"failed {text}", f"evaluation of step {record.step} failed: {text}")
        self._order.resolve(record.step, record)
        self._settle(at_step)

    def _on_status(self, kind: str, message: Message) -> None:
        self._journal.event(kind, **_without_type(message))
        code, text = str(message.get("code", "")), str(message.get("message", ""))
        if kind == "connected" or code == "SERVICE_BACK":
            if self._unavailable_since is not None:
                logger.warning("the service is back")
            self._unavailable_since = None
        elif code == "SERVICE_UNAVAILABLE":
            if self._unavailable_since is None:
                self._unavailable_since = time.monotonic()
                logger.warning("%s", text or "the service cannot be reached; training goes on")
        elif kind == "garbage":
            self._warn_once(kind, f"the agent wrote something that is not a message: {message.get('line', '')[:80]!r}")
        elif kind == "status" and message.get("level") in ("warning", "error"):
            if self._strict and message["level"] == "error":
                raise MindEvalError(code or "INTERNAL", text)
            self._warn_once(f"{code} {text}", f"{text} [{code}]")

    def _on_agent(self, kind: str, message: Message, at_step: int) -> None:
        self._journal.event(kind, **_without_type(message))
        if kind == agent.EXITED:
            logger.warning("the agent ended (exit status %s); starting it again", message.get("exit_status"))
        elif kind == agent.GAVE_UP:
            self._gone = f"the agent is gone: {message['message']}"
            logger.warning("%s. Training goes on without evaluation", self._gone)
            self.give_up_outstanding(at_step, self._gone)
            if self._strict:
                raise MindEvalError("INTERNAL", self._gone)
        elif message["generation"] > 1:
            self._generation = message["generation"]
            self._ask_again(at_step)

    def _ask_again(self, at_step: int) -> None:
        """Gives a new agent what the old one still owed; every request is harmless when it is repeated."""
        self._unavailable_since = None
        self._buffers.release_all_but(self._outstanding)
        for push in list(self._outstanding.values()):
            buffer = self._buffers.containing(push.id)
            if buffer is not None:
                buffer.holder = push.id
                self._link.send(push.message(buffer.path), self._generation)
            elif push.record.evaluation:
                watch = {"type": "watch", "id": push.id, "step": push.record.step}
                self._link.send({**watch, "evaluation": push.record.evaluation}, self._generation)
            else:
                self._lose(push, "the agent ended before it had said what became of it")
        if self._fetch is not None:
            self._link.send(self._fetch, self._generation)
        self._settle(at_step)

    def _lose(self, push: _Push, why: str) -> None:
        self._outstanding.pop(push.id, None)
        if self._gone:
            self._buffers.release(push.id)
        else:
            # The agent may still be reading the file: it stays held until the agent says that it has let go.
            self._link.send({"type": "cancel", "id": push.id}, self._generation)
        push.record.state = "LOST"
        push.record.error = {"reason": "LOST", "message": why, "metadata": {}}
        self._journal.event("lost", id=push.id, step=push.record.step, why=why)
        self._order.resolve(push.record.step, push.record)

    # --- decisions ---

    def _settle(self, at_step: int) -> None:
        for _, record in self._order.ready():
            succeeded = record.state == "SUCCEEDED"
            if succeeded:
                self._journal.row(record)
            if self._tracker is not None:
                self._decide(self._tracker, record, at_step)
            if succeeded:
                values = ", ".join(f"{name} {_text(entry.get('value'))}" for name, entry in record.metrics.items())
                logger.info("step %d: %s%s", record.step, values, _verdict(record.decision))

    def _decide(self, tracker: StoppingTracker, record: EvaluationRecord, at_step: int) -> None:
        monitor, value, why = tracker.rule.monitor, None, record.state.lower()
        unknown = record.state == "SUCCEEDED" and monitor not in record.metrics
        if record.state == "SUCCEEDED":
            value = record.value(monitor)
            why = f"the suite does not report {monitor}" if unknown else "no value"
        decision = tracker.observe(record.step, value, at_step, why)
        record.decision = decision
        self.summary.best_step, self.summary.best_value = tracker.best_step, tracker.best_value
        if decision is tracker.stop_decision:
            self.summary.decision = decision
        self._journal.event("decision", **asdict(decision))
        if record.state == "SUCCEEDED" and not self._monitor_checked:
            self._monitor_checked = True
            self._check_monitor(tracker.rule, record, unknown)

    def _check_monitor(self, rule: StoppingRule, record: EvaluationRecord, unknown: bool) -> None:
        if unknown:
            names = ", ".join(sorted(record.metrics)) or "none"
            text = f"the stopping rule watches {rule.monitor!r}, which the suite does not report; it reports: {names}"
            if self._strict:
                raise MindEvalError("UNKNOWN_METRIC", text, {"field": "monitor"})
            logger.warning("%s. Training will not be stopped by it", text)
            return
        higher = record.metrics[rule.monitor].get("higher_is_better")
        if higher is not None and higher != (rule.mode == "max"):
            better = "higher" if higher else "lower"
            logger.warning("the stopping rule has mode=%r, but for %s %s is better", rule.mode, rule.monitor, better)

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s", text)


def tell(text: str) -> None:
    """Shows an outcome on the console, among the training loop's own lines."""
    print(f"mindeval: {text}", flush=True)


def _without_type(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "type"}


def _verdict(decision: Decision | None) -> str:
    if decision is None:
        return ""
    misses = f", {decision.misses} in a row" if decision.misses else ""
    return f" ({decision.verdict.replace('_', ' ')}{misses})"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)
