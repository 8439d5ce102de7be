"""One call of `Model.train`: everything that lives from its begin to its end."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindspore.train import RunContext

from mindeval.hooks.journal import Journal
from mindeval.hooks.link import AgentLink
from mindeval.hooks.model import ExportGraph, ModelFiles
from mindeval.hooks.session import EvaluationSession, tell
from mindeval.hooks.settings import HookSettings
from mindeval.hooks.snapshot import SnapshotBuffers, read_snapshot, snapshot_size_bytes
from mindeval.hooks.staging import StagingFolder, snapshot_parents
from mindeval.hooks.stopping import StoppingRule
from mindeval.hooks.summary import EvaluationRecord, Summary
from mindeval.hooks.training import IntervalCrossing, StepClock, StepCounter, Throughput, host_memory_bytes, loss_of
from mindeval.hooks.weights import NetworkWeights


class TrainingJob:
    """Watches one training loop: counts steps, pushes at intervals, stops it, restores the best weights.

    Args:
        settings: What was asked for.
        model: What travels beside the weights.
        rule: The stopping rule; None to only watch.
        network: The network in training.

    Raises:
        MindEvalError: The network cannot be exported, or has a dtype that checkpoints cannot hold.
        OSError: No folder has room for the snapshots, or the agent cannot be started.
    """

    def __init__(
        self, settings: HookSettings, model: ExportGraph | ModelFiles, rule: StoppingRule | None, network: Any
    ) -> None:
        self._settings = settings
        self._rule = rule
        self._counter = StepCounter()
        self._clock = StepClock()
        self._push_clock = StepClock()
        self._interval: IntervalCrossing | None = None
        self._reports: IntervalCrossing | None = None
        self._taking_s = 0.0
        self._staging = StagingFolder(settings.staging_dir or Path(tempfile.gettempdir()))
        self._folders = [self._staging]
        self._buffers: SnapshotBuffers | None = None
        self._journal: Journal | None = None
        self._session: EvaluationSession | None = None
        try:
            self._set_up(model, network)
        except BaseException:
            self.close(0.0)
            raise

    @property
    def summary(self) -> Summary:
        """How the run went so far."""
        assert self._session is not None
        return self._session.summary

    def step_end(self, run_context: RunContext) -> None:
        """After a step, or after a sink of several."""
        params = run_context.original_args()
        steps = self._counter.advance(params)
        step, before = self._counter.step, self._counter.step - steps
        self._clock.tick(steps)
        self._push_clock.tick(steps)
        self._take()
        every = self._settings.every_n_steps
        if self._reports is None:
            self._reports = IntervalCrossing(self._settings.report_every_n_steps, before)
        if self._interval is None and every is not None:
            self._interval = IntervalCrossing(every, before)
        if self._reports.crossed(step):
            self._report(params)
        if every is not None and self._interval is not None and self._interval.crossed(step):
            self._evaluate(params)
        self._stop_if_decided(run_context)

    def epoch_end(self, run_context: RunContext) -> None:
        """After an epoch."""
        params = run_context.original_args()
        every, epoch = self._settings.every_n_epochs, int(params.cur_epoch_num)
        if every is not None:
            if self._interval is None:
                self._interval = IntervalCrossing(every, epoch - 1)
            if self._interval.crossed(epoch):
                self._evaluate(params)
        self._stop_if_decided(run_context)

    def finish(self) -> None:
        """Waits for what is outstanding, and restores the best weights if the rule says so."""
        session, step = self._running(), self._counter.step
        session.flush_report()
        if not session.wait_for_results(step, self._settings.final_wait_s):
            tell("not every evaluation came back; going on without the missing ones")
            session.give_up_outstanding(step, "no result when training ended")
        summary = session.summary
        if self._rule is not None and self._rule.restore_best:
            summary.not_restored = self._restore(session)
            if summary.not_restored:
                tell(f"the best weights were not restored: {summary.not_restored}")
            else:
                tell(f"the network holds the best weights, those of step {summary.restored_step}")
        fields = asdict(summary)
        del fields["evaluations"]
        self._log().event("end", step=step, **fields)

    def close(self, deadline_s: float) -> None:
        """Ends the agent and removes the files; the logs stay."""
        if self._session is not None:
            self._session.close(deadline_s)
        if self._buffers is not None:
            self._buffers.close()
        if self._journal is not None:
            self._journal.close()
        for folder in self._folders:
            folder.close()

    def _set_up(self, model: ExportGraph | ModelFiles, trained: Any) -> None:
        files = model.stage(trained, self._staging.path)
        self._weights = NetworkWeights(model.pushed_network(trained), model.rename)
        self._buffers = self._allocate(self._weights)
        log_dir = self._settings.log_dir
        self._journal = Journal(log_dir, "" if self._rule is None else self._rule.monitor)
        self._journal.event(
            "begin",
            run=self._settings.run,
            suite=self._settings.suite,
            snapshot_bytes=snapshot_size_bytes(self._weights.specs),
            snapshots=str(self._buffers.buffers[0].path.parent),
            rule=None if self._rule is None else asdict(self._rule),
        )
        agent_log = (log_dir or self._staging.path) / "agent.log"
        link = AgentLink(self._settings.agent_command, self._settings.start_message(files), agent_log)
        link.start()
        self._session = EvaluationSession(link, self._buffers, self._journal, self._rule, self._settings.strict)

    def _allocate(self, weights: NetworkWeights) -> SnapshotBuffers:
        problem: OSError | None = None
        for parent in snapshot_parents(snapshot_size_bytes(weights.specs), self._settings.staging_dir):
            try:
                folder = StagingFolder(parent)
                self._folders.append(folder)
                return SnapshotBuffers(folder.path, weights.specs)
            except OSError as error:
                problem = error
        assert problem is not None
        raise problem

    def _running(self) -> EvaluationSession:
        assert self._session is not None
        return self._session

    def _log(self) -> Journal:
        assert self._journal is not None
        return self._journal

    def _take(self) -> None:
        began = time.perf_counter()
        self._running().take(self._counter.step)
        self._taking_s += time.perf_counter() - began

    def _evaluate(self, params: Any) -> None:
        """Pushes a snapshot. The loss is read first: that waits for the step, which is training and not evaluation."""
        train_loss = loss_of(params.get("net_outputs"))
        session, step = self._running(), self._counter.step
        began = time.perf_counter()
        record = EvaluationRecord(step, self._counter.epoch, train_loss, self._push_clock.lap_ms())
        pushed = session.push(record, self._weights.arrays())
        # An outage is waited for once, when it begins; while it lasts, training goes on as without `blocking`.
        if pushed and self._settings.blocking and not session.wait_for_results(step, self._settings.final_wait_s, 0.0):
            session.give_up_outstanding(step, "no result within the time that a blocking evaluation may take")
        stall_s = time.perf_counter() - began
        for clock in (self._clock, self._push_clock):
            clock.exclude(stall_s)
        if pushed:
            record.stall_ms = (stall_s + self._taking_s) * 1000.0
            self._taking_s = 0.0
            session.note_push(record)

    def _report(self, params: Any) -> None:
        throughput = Throughput.of(params, self._settings.samples_per_step, self._settings.tokens_per_step)
        step_time_ms = self._clock.lap_ms()
        per_second = None if not step_time_ms else 1000.0 / step_time_ms
        point = {
            "step": self._counter.step,
            "epoch": self._counter.epoch,
            "time": time.time(),
            "loss": loss_of(params.get("net_outputs")),
            "step_time_ms": step_time_ms,
            "samples_per_second": _times(throughput.samples, per_second),
            "tokens_per_second": _times(throughput.tokens, per_second),
            "host_memory_bytes": host_memory_bytes(),
        }
        self._running().report({key: value for key, value in point.items() if value is not None})

    def _stop_if_decided(self, run_context: RunContext) -> None:
        summary = self._running().summary
        decision = summary.decision
        if decision is None or summary.stopped_early:
            return
        run_context.request_stop()
        summary.stopped_early = True
        summary.stopped_at_step = decision.stopped_at_step = self._counter.step
        self._log().event("stop", step=self._counter.step, decision=asdict(decision))
        best = "no best step" if summary.best_step is None else f"best {summary.best_value:.6g} at {summary.best_step}"
        tell(f"stopping at step {self._counter.step}, decided by step {decision.step}: {decision.reason}; {best}")

    def _restore(self, session: EvaluationSession) -> str:
        """Puts the best weights back; returns why not, "" when they are."""
        summary = session.summary
        best = next((record for record in summary.evaluations if record.step == summary.best_step), None)
        if best is None:
            if all(record.state == "LOST" for record in summary.evaluations):
                return "no evaluation came back from the service"
            return "no evaluation gave a finite value"
        if best.step != self._counter.step:
            path = self._staging.path / "best.safetensors"
            problem = session.fetch(best.evaluation, path, self._counter.step, self._settings.final_wait_s)
            if problem:
                return f"step {best.step} is the best, but {problem}"
            self._weights.load(read_snapshot(path, self._weights.specs))
        summary.restored_step = best.step
        return ""


def _times(count: int | None, per_second: float | None) -> float | None:
    return None if count is None or per_second is None else count * per_second
