"""The callback that evaluates a training job's checkpoints in the evaluation service."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from mindspore.train import Callback, RunContext

from mindeval.hooks.job import TrainingJob
from mindeval.hooks.model import ExportGraph, ModelFiles
from mindeval.hooks.settings import HookSettings, choose_agent, choose_endpoint, choose_token
from mindeval.hooks.stopping import StoppingRule
from mindeval.hooks.summary import Summary

logger = logging.getLogger("mindeval")

_MAX_ERRORS = 10
_AGENT_STOP_S = 10.0
_ABANDON_S = 2.0


class RemoteEvaluation(Callback):  # type: ignore[misc]
    """Pushes checkpoints to the evaluation service, takes the results, stops training by a rule.

    An evaluation costs the training thread one copy of the parameters into mapped memory; an agent process sends them.
    Nothing that goes wrong here reaches the training loop unless `on_error="stop"`: a service that is away is waited
    for in the background, an evaluation that finds both snapshots in use is skipped and counted.

    Args:
        suite: Suite to evaluate under: its id, or the full name of a version.
        run: Name of this training job within the project.
        model: What the service needs to build the network: `ExportGraph(...)` or `ModelFiles(...)`.
        project: Project in the service.
        endpoint: "host:port" of the service; MINDEVAL_ENDPOINT or 127.0.0.1:7860 when unset.
        token: Access token; MINDEVAL_TOKEN when unset.
        tls: Files for TLS: `ca_file`, `cert_file`, `key_file`.
        every_n_steps: Evaluate whenever this many more optimizer steps are done. Give this or `every_n_epochs`.
        every_n_epochs: Evaluate at the end of every n-th epoch.
        stopping: When to stop; None to only watch.
        blocking: Wait for each result before training goes on.
        log_dir: Folder for metrics.tsv, events.jsonl and agent.log; none are kept when unset.
        staging_dir: Folder for exported graphs, and for snapshots where /dev/shm has no room; the system's temporary
            folder when unset.
        on_error: "continue" (say so once and train on) or "stop" (raise it, which ends training). An evaluation that
            failed is a result and a service that is away is waited for: neither is an error of this kind.
        agent_python: Python of another environment for the agent; it needs `pip install mindeval`.
        final_wait_s: Longest wait for outstanding results when training ends, and for the best weights, in seconds.
        samples_per_step: Samples in an optimizer step, for throughput; read from the batch when unset.
        tokens_per_step: Tokens in an optimizer step; read from the batch when unset and it holds token ids.
        report_every_n_steps: Interval of the training series, in optimizer steps. Reading the loss waits for the step.
        agent_command: Program and arguments to run in the agent's place, for tests.

    Attributes:
        summary: How the run went (`mindeval.hooks.Summary`); complete after training.

    Raises:
        MindEvalError: INVALID_FIELD when an argument breaks its rule.
    """

    def __init__(
        self,
        *,
        suite: str,
        run: str,
        model: ExportGraph | ModelFiles,
        project: str = "default",
        endpoint: str | None = None,
        token: str | None = None,
        tls: Mapping[str, str] | None = None,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        stopping: StoppingRule | None = None,
        blocking: bool = False,
        log_dir: str | Path | None = None,
        staging_dir: str | Path | None = None,
        on_error: str = "continue",
        agent_python: str | Path | None = None,
        final_wait_s: float = 120.0,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        report_every_n_steps: int = 10,
        agent_command: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._settings = HookSettings(
            suite=suite,
            run=run,
            project=project,
            endpoint=choose_endpoint(endpoint),
            token=choose_token(token),
            tls=tls,
            every_n_steps=every_n_steps,
            every_n_epochs=every_n_epochs,
            blocking=blocking,
            log_dir=None if log_dir is None else Path(log_dir),
            staging_dir=None if staging_dir is None else Path(staging_dir),
            on_error=on_error,
            agent_command=choose_agent(agent_python, agent_command),
            final_wait_s=final_wait_s,
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
            report_every_n_steps=report_every_n_steps,
        )
        self._model = model
        self._rule = stopping
        self._job: TrainingJob | None = None
        self._errors = 0
        self._said: set[str] = set()
        self._summary = Summary()

    @property
    def summary(self) -> Summary:
        """How the run went so far."""
        return self._summary

    def __exit__(self, *error: Any) -> None:
        """Ends the agent when training ends by an exception; a normal end went through on_train_end."""
        if error and error[0] is not None and self._job is not None:
            self._guarded("the end by an exception", self._abandon)

    def on_train_begin(self, run_context: RunContext) -> None:
        """Exports the model, sets up the snapshots, starts the agent."""
        self._errors = 0
        if self._job is not None:
            self._guarded("the end of the run before", self._abandon)
        self._guarded("the start of evaluation", self._begin, run_context.original_args())
        if self._job is None:
            logger.warning("training goes on without evaluation")

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Takes results, pushes when a step interval is crossed, stops when the rule says so."""
        if self._job is not None:
            self._guarded("a training step", self._job.step_end, run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Pushes when an epoch interval is crossed; the only moment at which a data-sink loop can be stopped."""
        if self._job is not None:
            self._guarded("an epoch's end", self._job.epoch_end, run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Waits for outstanding results and restores the best weights."""
        if self._job is not None:
            try:
                self._guarded("the end of training", self._job.finish)
            finally:
                self._guarded("the end of training", self._close, _AGENT_STOP_S)

    def _begin(self, params: Any) -> None:
        job = TrainingJob(self._settings, self._model, self._rule, params.network)
        self._job, self._summary = job, job.summary

    def _abandon(self) -> None:
        self._close(_ABANDON_S)

    def _close(self, deadline_s: float) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close(deadline_s)

    def _guarded(self, what: str, action: Callable[..., None], *arguments: Any) -> None:
        """Keeps our errors away from the training loop, unless the user asked for them."""
        try:
            action(*arguments)
        except Exception as error:
            if self._settings.strict:
                self._close_quietly()
                raise
            self._errors += 1
            key = f"{what}: {type(error).__name__}"
            if key not in self._said:
                self._said.add(key)
                logger.warning("evaluation: error at %s: %s", what, error)
                logger.debug("details", exc_info=True)
            if self._errors == _MAX_ERRORS:
                logger.warning("evaluation is switched off after %d errors; training goes on", _MAX_ERRORS)
                self._close_quietly()

    def _close_quietly(self) -> None:
        try:
            self._close(_ABANDON_S)
        except Exception:
            logger.debug("closing", exc_info=True)
