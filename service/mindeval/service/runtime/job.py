"""One evaluation: load the model, swap the weights in, run the tasks. A task that fails leaves the others running."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mindeval.service.runtime.checkpoints.checkpoint import Checkpoint
from mindeval.service.runtime.device import Device
from mindeval.service.runtime.errors import JobCancelled, RunnerError, describe
from mindeval.service.runtime.messages import JobRequest, TaskRequest
from mindeval.service.runtime.models.adapter import ModelAdapter
from mindeval.service.runtime.models.select import select_architecture
from mindeval.service.runtime.models.warm import WarmModels
from mindeval.service.runtime.reporting import Outlet, Reporter
from mindeval.service.runtime.task_settings import LanguageModelingSettings, check_task
from mindeval.service.runtime.tasks.language_modeling import run_language_modeling
from mindeval.service.runtime.tasks.prepared import PreparedDatasets

_log = logging.getLogger(__name__)


@dataclass
class Session:
    """What a runner keeps between jobs."""

    device: Device
    models: WarmModels = field(default_factory=WarmModels)
    datasets: PreparedDatasets = field(default_factory=PreparedDatasets)


@dataclass
class _Statistics:
    load_seconds: float = 0.0
    compile_seconds: float = 0.0
    compute_seconds: float = 0.0
    compiled_graphs: int = 0
    warm: bool = True


class JobRunner:
    """Does one job and sends its frames; used once, on the MindSpore thread."""

    def __init__(
        self, request: JobRequest, session: Session, outlet: Outlet, reporter: Reporter, cancelled: Callable[[], bool]
    ) -> None:
        self._request = request
        self._session = session
        self._outlet = outlet
        self._reporter = reporter
        self._cancelled = cancelled
        self._statistics = _Statistics()

    def run(self) -> None:
        """Runs the job; its last frame is `finished`, `failed` or `cancelled`. Raises nothing of the job's own."""
        job = self._request.job
        try:
            self._check()
            checkpoint = Checkpoint.open(self._request.manifest, self._request.checkpoint, self._request.blobs)
            tasks = self._valid_tasks()
            for dtype in dict.fromkeys(settings.compute_dtype for _, settings in tasks) or ["float32"]:
                adapter = self._load(checkpoint, dtype)
                for task, settings in tasks:
                    if settings.compute_dtype == dtype:
                        self._run_task(task, settings, adapter, checkpoint)
        except JobCancelled:
            self._send({"type": "cancelled", "job": job})
        except Exception as error:  # the runner lives on, whatever a checkpoint did
            self._recover(error)
            self._send({"type": "failed", "job": job, "error": describe(error)})
        else:
            self._send({"type": "finished", "job": job, "statistics": self._statistics_frame()})

    def _valid_tasks(self) -> list[tuple[TaskRequest, LanguageModelingSettings]]:
        valid = []
        for task in self._request.tasks:
            try:
                check_task(task.type, task.metrics, task.settings)
                settings = LanguageModelingSettings.parse(task.settings)
                self._check_compute_dtype(settings.compute_dtype)
            except Exception as error:  # one bad task is one failed task
                self._task_failed(task, error)
            else:
                valid.append((task, settings))
        return valid

    def _check_compute_dtype(self, dtype: str) -> None:
        if self._session.device.target == "cpu" and dtype != "float32":
            raise RunnerError(
                "INVALID_FIELD",
                f"settings.compute_dtype is {dtype}, and a cpu device computes in float32 only",
                {"field": "settings.compute_dtype"},
            )

    def _load(self, checkpoint: Checkpoint, dtype: str) -> ModelAdapter:
        began = time.monotonic()
        self._reporter.progress("", "loading", 0, sum(t.size_bytes for t in checkpoint.manifest.tensors), "bytes")
        adapter, warm = self._session.models.get(select_architecture(checkpoint, dtype))
        self._statistics.warm &= warm
        adapter.load(
            checkpoint,
            lambda done, total: self._reporter.progress("", "loading", done, total, "bytes"),
            self._check,
        )
        self._statistics.load_seconds += time.monotonic() - began
        return adapter

    def _run_task(
        self, task: TaskRequest, settings: LanguageModelingSettings, adapter: ModelAdapter, checkpoint: Checkpoint
    ) -> None:
        self._check()
        began = time.monotonic()
        graphs, compiling = adapter.compiles.graphs, adapter.compiles.seconds
        latest = (0, 0)

        def on_progress(done: int, total: int) -> None:
            nonlocal latest
            latest = (done, total)
            self._reporter.progress(task.name, "scoring", done, total, "tokens")

        adapter.compiles.on_compile = lambda: self._reporter.progress(task.name, "compiling", *latest, "tokens")
        try:
            outcome = run_language_modeling(
                task, settings, adapter, checkpoint, self._session.datasets, on_progress, self._check
            )
        except JobCancelled:
            raise
        except Exception as error:  # the other tasks go on
            self._recover(error)
            self._task_failed(task, error)
            return
        finally:
            seconds = time.monotonic() - began
            compile_seconds = adapter.compiles.seconds - compiling
            self._statistics.compiled_graphs += adapter.compiles.graphs - graphs
            self._statistics.compile_seconds += compile_seconds
            self._statistics.compute_seconds += seconds - compile_seconds
        self._send(
            {
                "type": "task_result",
                "job": self._request.job,
                "task": task.name,
                "state": outcome.state,
                "expected_count": outcome.expected_count,
                "scored_count": outcome.scored_count,
                "failed_count": outcome.expected_count - outcome.scored_count,
                "failures": [],
                "device_seconds": seconds,
            }
        )

    def _task_failed(self, task: TaskRequest, error: Exception) -> None:
        _log_error(f"task {task.name!r} of job {self._request.job!r}", error)
        self._send({"type": "task_failed", "job": self._request.job, "task": task.name, "error": describe(error)})

    def _recover(self, error: Exception) -> None:
        _log_error(f"job {self._request.job!r}", error)
        if describe(error)["reason"] == "OUT_OF_MEMORY":
            self._session.models.drop_all()

    def _check(self) -> None:
        if self._cancelled():
            raise JobCancelled(self._request.job)

    def _send(self, message: dict[str, Any]) -> None:
        self._reporter.clear_progress()
        self._outlet.send(message)

    def _statistics_frame(self) -> dict[str, Any]:
        return {**vars(self._statistics), "peak_memory_bytes": self._session.device.peak_memory_bytes()}


def _log_error(what: str, error: Exception) -> None:
    # An error with a reason of its own is about the input, and its message says all; others are ours to look into.
    reason = describe(error)["reason"]
    _log.error("%s failed: %s: %s", what, reason, error, exc_info=error if reason == "RUNNER_ERROR" else None)
