"""The asynchronous client."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from google.protobuf import duration_pb2

from mindeval.client import _datasets, _decode, _download, _push, _results, _sources, _suites, _upload, _watch
from mindeval.client._channel import Target, TlsFiles
from mindeval.client._checkpoints import Checkpoints, is_uri, source_of
from mindeval.client._connection import CALL_TIMEOUT_S, Closing, Connection
from mindeval.client._content import PathLike
from mindeval.client._errors import ServiceError
from mindeval.client._metrics import METRICS_PER_CALL, training_point
from mindeval.client._retry import Patience
from mindeval.formats import names
from mindeval.formats.digest import is_digest
from mindeval.formats.errors import FormatError
from mindeval.formats.readers import Candidate
from mindeval.v1 import evaluation_pb2, registry_pb2, run_pb2

OnEvent = Callable[[_results.EvaluationEvent], None]
_PAGE_SIZE = 200
# A blob may be collected between the push and the evaluation; a second time is no coincidence.
_PUSHES_PER_EVALUATION = 2
_URI_TIMEOUT_S = 3_600.0


class AsyncClient:
    """A connection to one project of a service. Belongs to the event loop that makes its first call.

    Methods that change something may be interrupted and repeated without harm. All raise `ServiceUnavailable` when the
    service stays out of reach and another `ServiceError` when it refuses.

    Args:
        endpoint: "host:port", or "unix:/path".
        project: Id of the project.
        token: Bearer token; sent over TLS or to this machine only.
        tls: Files of a TLS connection; None for a connection without TLS.
        timeout_s: Seconds for which the service may be out of reach (a restart, say) before a call gives up.
        connect_timeout_s: The same until its first answer.

    Raises:
        FormatError: INVALID_FIELD when an argument is malformed.
    """

    def __init__(
        self,
        endpoint: str = "127.0.0.1:7860",
        *,
        project: str = "default",
        token: str | None = None,
        tls: TlsFiles | None = None,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._project = names.check_id(project, "project")
        self._parent = names.project_name(project)
        self._connection = Connection(
            Target(endpoint, token, tls), Patience(min(connect_timeout_s, timeout_s), timeout_s)
        )
        self._checkpoints = Checkpoints(self._connection, self._project)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection. Repeating it is harmless."""
        await self._connection.close()

    @property
    def project(self) -> str:
        """Id of the project."""
        return self._project

    @property
    def endpoint(self) -> str:
        """Address of the service."""
        return self._connection.target.endpoint

    async def capabilities(self) -> _results.Capabilities:
        """Reads what the service can do."""
        return _decode.capabilities(await self._connection.capabilities())

    # --- checkpoints ---

    async def push_checkpoint(
        self,
        path: PathLike | Candidate,
        *,
        files: Mapping[str, PathLike] | None = None,
        model_files: PathLike | None = None,
        progress: _upload.OnProgress | None = None,
    ) -> _results.PushedCheckpoint:
        """Sends a checkpoint; only what the project lacks travels.

        Args:
            path: A folder or file: Hugging Face safetensors (one or shards), MindSpore .ckpt, or the rank_N folders of
                a distributed training with their strategy; or what `mindeval.formats.readers.look` found. The
                optimizer's state stays behind.
            files: What rides along, by path in the checkpoint; what lies beside the weights when None: config.json and
                a tokenizer, or mindeval_model.json with its graph.
            model_files: A folder to take these from instead.
            progress: Called as bytes go, from the event loop.

        Raises:
            FormatError: CHECKPOINT_UNREADABLE, CHECKPOINT_TRUNCATED, MODEL_UNSUPPORTED, MODEL_INVALID.
            CheckpointChanged: A file changed meanwhile.
        """
        started = time.monotonic()
        source = await asyncio.to_thread(_sources.open_checkpoint, path, files, model_files)
        return await _push.push(self._connection, self._parent, source, on_progress=progress, started=started)

    async def create_checkpoint(
        self, checkpoint: str, *, run: str | None = None, step: int | None = None
    ) -> _results.Checkpoint:
        """Registers a pushed checkpoint, or has the service read one from storage that it reaches.

        Args:
            checkpoint: Digest that `push_checkpoint` returned, or a URI (file:// or s3://).
            run: Id of the training run that it belongs to.
            step: Optimizer steps done.

        Raises:
            PreconditionFailed: BLOB_MISSING when it was not pushed.
            ServiceError: URI_FORBIDDEN, URI_UNREADABLE, CHECKPOINT_CHANGED and the like for a URI.
        """
        return await self._checkpoints.create(checkpoint, run, step)

    async def get_checkpoint(self, checkpoint: str) -> _results.Checkpoint:
        """Reads a registered checkpoint.

        Args:
            checkpoint: Full name, digest, the first hexadecimal digits of one (four or more), or "RUN@STEP".

        Raises:
            FormatError: INVALID_FIELD when several begin with these digits.
            NotFound: CHECKPOINT_NOT_FOUND.
        """
        return await self._checkpoints.get(checkpoint)

    async def list_checkpoints(self, *, run: str | None = None) -> AsyncIterator[_results.Checkpoint]:
        """Yields the checkpoints of the project, most recently used first; of one run, by step."""
        async for checkpoint in self._checkpoints.list(run):
            yield checkpoint

    async def pin_checkpoint(self, checkpoint: str, *, pinned: bool = True) -> _results.Checkpoint:
        """Keeps a checkpoint whatever the project's budget says, or lets go of it; see `get_checkpoint`."""
        return await self._checkpoints.pin(checkpoint, pinned)

    async def delete_checkpoint(self, checkpoint: str) -> int:
        """Forgets a checkpoint and returns the bytes that were freed; see `get_checkpoint`.

        Raises:
            PreconditionFailed: CHECKPOINT_IN_USE while it is pinned, or an evaluation needs it.
        """
        return await self._checkpoints.delete(checkpoint)

    async def diff_checkpoints(self, base: str, other: str, *, with_values: bool = True) -> _results.CheckpointDiff:
        """Tells which tensors differ between two checkpoints, and by how much.

        Args:
            base: The earlier one, as in `get_checkpoint`.
            other: The later one.
            with_values: Compute by how much; the service reads the tensors that differ for it.
        """
        return await self._checkpoints.diff(base, other, with_values)

    async def fetch_checkpoint(self, evaluation_or_digest: str, path: PathLike) -> _results.FetchedCheckpoint:
        """Downloads a checkpoint into one safetensors file, tensors by name, every digest verified.

        Args:
            evaluation_or_digest: Name or id of an evaluation, or digest of a manifest.
            path: The file; or, when it is a folder or ends with a separator, the folder that gets model.safetensors
                and what rides along. Nothing is visible there before all of it is complete.

        Raises:
            NotFound: EVALUATION_NOT_FOUND, or BLOB_NOT_FOUND when the service has dropped the weights.
            FormatError: CHECKPOINT_CORRUPT when the bytes received are not those of their digest.
            OSError: When the file cannot be written.
        """
        digest = evaluation_or_digest
        if not is_digest(digest):
            digest = (await self.get_evaluation(evaluation_or_digest)).checkpoint
        return await _download.fetch(self._connection, self._parent, digest, path)

    # --- evaluations ---

    async def create_evaluation(
        self,
        checkpoint: str,
        suite: str,
        *,
        run: str | None = None,
        step: int = 0,
        epoch: float = 0.0,
        conflict_policy: str = "use_existing",
        timeout_s: float | None = None,
        parameters: Mapping[str, str] | None = None,
        validate_only: bool = False,
        request_id: str | None = None,
    ) -> _results.EvaluationResult:
        """Creates an evaluation of a pushed checkpoint and returns at once.

        Args:
            checkpoint: Digest that `push_checkpoint` returned, full name of a checkpoint, or a URI.
            suite: Id, or full name of a suite or of one of its versions.
            run: Id of the training run it belongs to.
            step: Optimizer steps done.
            epoch: Epochs done.
            conflict_policy: What to do about an evaluation of the same run, step, suite, checkpoint and parameters:
                "use_existing", "fail" or "rerun".
            timeout_s: How long it may run once started.
            parameters: Free text pairs.
            validate_only: Check everything and create nothing.
            request_id: UUID of this request; a repetition with the same one returns the same evaluation.

        Raises:
            NotFound: SUITE_NOT_FOUND.
            PreconditionFailed: BLOB_MISSING when the checkpoint was not pushed.
            Conflict: EVALUATION_EXISTS with "fail".
        """
        request = evaluation_pb2.CreateEvaluationRequest(
            parent=self._parent,
            request_id=request_id or str(uuid.uuid4()),
            spec=self._spec(checkpoint, suite, run, step, epoch, timeout_s, parameters),
            conflict_policy=_decode.choice(conflict_policy, _decode.CONFLICT_POLICIES, "conflict_policy"),
            validate_only=validate_only,
        )
        # The service reads what a URI names before it answers.
        limit_s = _URI_TIMEOUT_S if is_uri(checkpoint) else CALL_TIMEOUT_S
        response = await self._connection.call("EvaluationService", "CreateEvaluation", request, timeout_s=limit_s)
        return _decode.evaluation(response.evaluation)

    async def evaluate(
        self,
        checkpoint: PathLike,
        suite: str,
        *,
        run: str | None = None,
        step: int = 0,
        epoch: float = 0.0,
        conflict_policy: str = "use_existing",
        timeout_s: float | None = None,
        parameters: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
        progress: _upload.OnProgress | None = None,
        request_id: str | None = None,
    ) -> _results.EvaluationResult:
        """Evaluates a checkpoint and waits for the result, across restarts of the service.

        An evaluation goes on when the caller goes away or is cancelled. The result may have FAILED: ask its `state`, or
        call `raise_for_state()`.

        Args:
            checkpoint: As in `create_evaluation`; or a path as in `push_checkpoint`.
            suite: As in `create_evaluation`, and so are run, step, epoch, conflict_policy, timeout_s and parameters.
            run: See there.
            step: See there.
            epoch: See there.
            conflict_policy: See there.
            timeout_s: See there.
            parameters: See there.
            on_event: Called with each event, from the event loop.
            progress: Called while the checkpoint is pushed.
            request_id: UUID of this request; a repetition with the same one attaches to the same evaluation.

        Raises:
            FormatError: See `push_checkpoint`.
            NotFound: SUITE_NOT_FOUND, before anything is sent.
        """
        request = evaluation_pb2.EvaluateCheckpointRequest(
            parent=self._parent,
            request_id=request_id or str(uuid.uuid4()),
            conflict_policy=_decode.choice(conflict_policy, _decode.CONFLICT_POLICIES, "conflict_policy"),
        )
        await self.get_suite(suite)
        pushed = not (isinstance(checkpoint, str) and _is_reference(checkpoint))
        for attempt in range(1, _PUSHES_PER_EVALUATION + 1):
            digest = str(checkpoint)
            if is_uri(digest):
                # By itself, because reading a large one would outlast a silent stream.
                digest = (await self.create_checkpoint(digest, run=run, step=step)).digest
            elif pushed:
                digest = (await self.push_checkpoint(checkpoint, progress=progress)).digest
            request.spec.CopyFrom(self._spec(digest, suite, run, step, epoch, timeout_s, parameters))
            try:
                return await self._wait(_watch.evaluate(self._connection, request), on_event)
            except ServiceError as error:
                if error.reason != "BLOB_MISSING" or not pushed or attempt == _PUSHES_PER_EVALUATION:
                    raise
        raise AssertionError("unreachable")

    async def wait(self, name: str, *, on_event: OnEvent | None = None) -> _results.EvaluationResult:
        """Waits until an evaluation has ended, and returns it.

        Args:
            name: Name or id.
            on_event: Called with each event, from the first one on.
        """
        return await self._wait(_watch.watch(self._connection, self._evaluation_name(name)), on_event)

    async def watch(self, name: str, after_sequence: int = 0) -> AsyncIterator[_results.EvaluationEvent]:
        """Yields the events of an evaluation until the terminal one, across cuts and restarts of the service.

        Args:
            name: Name or id.
            after_sequence: Events up to this one are known; 0 for all.
        """
        async with Closing(_watch.watch(self._connection, self._evaluation_name(name), after_sequence)) as messages:
            async for message in messages:
                event = _decode.event(message)
                if event is not None:
                    yield event

    async def get_evaluation(self, name: str) -> _results.EvaluationResult:
        """Reads an evaluation by name or id."""
        request = evaluation_pb2.GetEvaluationRequest(name=self._evaluation_name(name))
        response = await self._connection.call("EvaluationService", "GetEvaluation", request)
        return _decode.evaluation(response.evaluation)

    async def list_evaluations(
        self,
        filter: str = "",  # noqa: A002
        *,
        order_by: str = "",
        limit: int | None = None,
    ) -> AsyncIterator[_results.EvaluationResult]:
        """Yields evaluations of the project, newest first; asks for further pages as they are needed.

        Args:
            filter: Conditions joined by AND, such as 'run = "r1" AND step >= 100'.
            order_by: "create_time", "create_time desc", "step" or "step desc".
            limit: At most this many; None for all.

        Raises:
            InvalidRequest: FILTER_INVALID.
        """
        request = evaluation_pb2.ListEvaluationsRequest(parent=self._parent, filter=filter, order_by=order_by)
        async for message in self._pages("EvaluationService", "ListEvaluations", request, "evaluations", limit):
            yield _decode.evaluation(message)

    async def cancel_evaluation(self, name: str, *, etag: str = "") -> _results.EvaluationResult:
        """Asks for an evaluation to end.

        Args:
            name: Name or id.
            etag: Only when it still has this etag.

        Raises:
            PreconditionFailed: EVALUATION_TERMINAL when it has ended.
        """
        request = evaluation_pb2.CancelEvaluationRequest(name=self._evaluation_name(name), etag=etag)
        response = await self._connection.call("EvaluationService", "CancelEvaluation", request)
        return _decode.evaluation(response.evaluation)

    # --- registry ---

    async def put_dataset(
        self,
        dataset_id: str,
        files: _datasets.Files,
        *,
        format: str,  # noqa: A002
        language: str,
        text_field: str = "",
        padding_token: int | None = None,
        progress: _upload.OnProgress | None = None,
    ) -> _results.Dataset:
        """Registers a version of a dataset and sends its files.

        Args:
            dataset_id: Id within the project.
            files: Local paths in reading order; or by path in the dataset. A list uses the files' own names.
            format: "text", "text_lines", "jsonl" or "tokens_npy".
            language: "en", "zh" or "mixed".
            text_field: Field of a JSONL record that holds the text; "text" when empty.
            padding_token: Token of a tokens_npy dataset that is never scored.
            progress: Called as bytes go.

        Raises:
            FormatError: DATASET_INVALID when a file cannot be read.
        """
        return await _datasets.put(
            self._connection,
            self._parent,
            dataset_id,
            files,
            format_name=format,
            language=language,
            text_field=text_field,
            padding_token=padding_token,
            on_progress=progress,
        )

    async def get_dataset(self, dataset_id: str) -> _results.Dataset:
        """Reads a dataset by id (its newest version) or by full name."""
        request = registry_pb2.GetDatasetRequest(name=self._full_name("datasets", dataset_id))
        response = await self._connection.call("RegistryService", "GetDataset", request)
        return _decode.dataset(response.dataset)

    async def list_datasets(self) -> AsyncIterator[_results.Dataset]:
        """Yields the newest version of each dataset, by name."""
        request = registry_pb2.ListDatasetsRequest(parent=self._parent)
        async for message in self._pages("RegistryService", "ListDatasets", request, "datasets", None):
            yield _decode.dataset(message)

    async def put_suite(
        self, suite_id: str | None, definition: _suites.Definition, *, validate_only: bool = False
    ) -> _results.Suite:
        """Registers a version of a suite.

        Args:
            suite_id: Id within the project; None for the `name` of the definition.
            definition: A mapping, or the path of a YAML or JSON file (docs/suites.md).
            validate_only: Check everything and store nothing.

        Raises:
            FormatError: INVALID_FIELD when the definition is malformed; the message has line and column.
            ServiceError: UNKNOWN_METRIC, UNKNOWN_TASK_TYPE, DATASET_NOT_FOUND.
        """
        content = await asyncio.to_thread(_suites.read_definition, definition)
        suite = _suites.build(content)
        name = suite_id or content.get("name")
        if not isinstance(name, str):
            raise FormatError(
                "INVALID_FIELD", "suite: give it a name, in the definition or beside it", {"field": "name"}
            )
        request = registry_pb2.PutSuiteRequest(
            parent=self._parent, suite_id=names.check_id(name, "name"), suite=suite, validate_only=validate_only
        )
        response = await self._connection.call("RegistryService", "PutSuite", request)
        return _decode.suite(response.suite, response.created)

    async def get_suite(self, suite_id: str) -> _results.Suite:
        """Reads a suite by id (its newest version) or by full name."""
        request = registry_pb2.GetSuiteRequest(name=self._full_name("suites", suite_id))
        response = await self._connection.call("RegistryService", "GetSuite", request)
        return _decode.suite(response.suite)

    async def list_suites(self) -> AsyncIterator[_results.Suite]:
        """Yields the newest version of each suite, by name."""
        request = registry_pb2.ListSuitesRequest(parent=self._parent)
        async for message in self._pages("RegistryService", "ListSuites", request, "suites", None):
            yield _decode.suite(message)

    # --- runs ---

    async def report_training_metrics(self, run: str, points: Iterable[Mapping[str, Any]]) -> None:
        """Reports what the trainer saw. A step that was reported before is replaced.

        Args:
            run: Id of the run; created when it is new.
            points: Mappings with `step` and any of `epoch`, `loss`, `step_time_ms`, `samples_per_second`,
                `tokens_per_second`, `host_memory_bytes`, `device_memory_bytes`, `device_utilization` (0 to 1) and
                `time` (seconds since 1970).

        Raises:
            FormatError: INVALID_FIELD when a point has another field, or one of another type.
        """
        messages = [training_point(point) for point in points]
        name = self._full_name("runs", run)
        for begin in range(0, len(messages), METRICS_PER_CALL):
            batch = messages[begin : begin + METRICS_PER_CALL]
            request = run_pb2.ReportTrainingMetricsRequest(run=name, points=batch)
            await self._connection.call("RunService", "ReportTrainingMetrics", request)

    # --- parts ---

    def _spec(
        self,
        checkpoint: str,
        suite: str,
        run: str | None,
        step: int,
        epoch: float,
        timeout_s: float | None,
        parameters: Mapping[str, str] | None,
    ) -> evaluation_pb2.EvaluationSpec:
        timeout = None
        if timeout_s is not None:
            if not (timeout_s > 0 and math.isfinite(timeout_s)):
                raise FormatError("INVALID_FIELD", "timeout_s: must be above 0", {"field": "timeout_s"})
            timeout = duration_pb2.Duration(seconds=int(timeout_s), nanos=int(timeout_s % 1 * 1e9))
        return evaluation_pb2.EvaluationSpec(
            suite=self._full_name("suites", suite),
            checkpoint=source_of(checkpoint),
            run=self._full_name("runs", run) if run else "",
            step=step,
            epoch=epoch,
            timeout=timeout,
            parameters=parameters,
        )

    async def _wait(
        self, messages: AsyncGenerator[evaluation_pb2.EvaluationEvent, None], on_event: OnEvent | None
    ) -> _results.EvaluationResult:
        name = ""
        async with Closing(messages) as open_messages:
            async for message in open_messages:
                name = message.evaluation
                event = _decode.event(message)
                if event is not None and on_event is not None:
                    on_event(event)
        return await self.get_evaluation(name)

    async def _pages(
        self, service: str, method: str, request: Any, field: str, limit: int | None
    ) -> AsyncIterator[Any]:
        left = math.inf if limit is None else limit
        while left > 0:
            request.page_size = int(min(left, _PAGE_SIZE))
            response = await self._connection.call(service, method, request)
            for message in getattr(response, field):
                if left <= 0:
                    return
                left -= 1
                yield message
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    def _evaluation_name(self, name: str) -> str:
        return self._full_name("evaluations", name)

    def _full_name(self, collection: str, name: str) -> str:
        """A full name from an id or a full name."""
        full = name if name.startswith("projects/") else f"{self._parent}/{collection}/{name}"
        return str(names.parse(full, collection, collection[:-1]))


def _is_reference(checkpoint: str) -> bool:
    """Whether it names something that needs no push: a digest, a full name, a URI."""
    return is_digest(checkpoint) or is_uri(checkpoint) or checkpoint.startswith("projects/")
