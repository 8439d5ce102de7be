"""The synchronous client: `AsyncClient` on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from mindeval.client import _datasets, _results, _suites, _upload
from mindeval.client._async_client import AsyncClient, OnEvent
from mindeval.client._channel import TlsFiles
from mindeval.client._content import PathLike
from mindeval.formats.readers import Candidate

_T = TypeVar("_T")


class Client:
    """A connection to one project of a service, for code without an event loop. May be used from several threads.

    The methods are those of `AsyncClient`, which documents them; callbacks run in the client's own thread. An
    interrupted call (Ctrl-C) is cancelled, and an evaluation that it waited for goes on.

    Close it before the process forks: neither its thread nor gRPC's survive in the child.
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
        self._client = AsyncClient(
            endpoint, project=project, token=token, tls=tls, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s
        )
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_on_loop_error)
        self._thread = threading.Thread(target=self._loop.run_forever, name="mindeval-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread. Repeating it is harmless."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):
            self._run(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def project(self) -> str:
        """Id of the project."""
        return self._client.project

    @property
    def endpoint(self) -> str:
        """Address of the service."""
        return self._client.endpoint

    def capabilities(self) -> _results.Capabilities:
        """See `AsyncClient.capabilities`."""
        return self._run(self._client.capabilities())

    def push_checkpoint(
        self,
        path: PathLike | Candidate,
        *,
        files: Mapping[str, PathLike] | None = None,
        model_files: PathLike | None = None,
        progress: _upload.OnProgress | None = None,
    ) -> _results.PushedCheckpoint:
        """See `AsyncClient.push_checkpoint`."""
        return self._run(self._client.push_checkpoint(path, files=files, model_files=model_files, progress=progress))

    def create_checkpoint(
        self, checkpoint: str, *, run: str | None = None, step: int | None = None
    ) -> _results.Checkpoint:
        """See `AsyncClient.create_checkpoint`."""
        return self._run(self._client.create_checkpoint(checkpoint, run=run, step=step))

    def get_checkpoint(self, checkpoint: str) -> _results.Checkpoint:
        """See `AsyncClient.get_checkpoint`."""
        return self._run(self._client.get_checkpoint(checkpoint))

    def list_checkpoints(self, *, run: str | None = None) -> Iterator[_results.Checkpoint]:
        """See `AsyncClient.list_checkpoints`."""
        return self._iterate(self._client.list_checkpoints(run=run))

    def pin_checkpoint(self, checkpoint: str, *, pinned: bool = True) -> _results.Checkpoint:
        """See `AsyncClient.pin_checkpoint`."""
        return self._run(self._client.pin_checkpoint(checkpoint, pinned=pinned))

    def delete_checkpoint(self, checkpoint: str) -> int:
        """See `AsyncClient.delete_checkpoint`."""
        return self._run(self._client.delete_checkpoint(checkpoint))

    def diff_checkpoints(self, base: str, other: str, *, with_values: bool = True) -> _results.CheckpointDiff:
        """See `AsyncClient.diff_checkpoints`."""
        return self._run(self._client.diff_checkpoints(base, other, with_values=with_values))

    def fetch_checkpoint(self, evaluation_or_digest: str, path: PathLike) -> _results.FetchedCheckpoint:
        """See `AsyncClient.fetch_checkpoint`."""
        return self._run(self._client.fetch_checkpoint(evaluation_or_digest, path))

    def create_evaluation(
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
        """See `AsyncClient.create_evaluation`."""
        return self._run(
            self._client.create_evaluation(
                checkpoint,
                suite,
                run=run,
                step=step,
                epoch=epoch,
                conflict_policy=conflict_policy,
                timeout_s=timeout_s,
                parameters=parameters,
                validate_only=validate_only,
                request_id=request_id,
            )
        )

    def evaluate(
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
        """See `AsyncClient.evaluate`."""
        return self._run(
            self._client.evaluate(
                checkpoint,
                suite,
                run=run,
                step=step,
                epoch=epoch,
                conflict_policy=conflict_policy,
                timeout_s=timeout_s,
                parameters=parameters,
                on_event=on_event,
                progress=progress,
                request_id=request_id,
            )
        )

    def wait(self, name: str, *, on_event: OnEvent | None = None) -> _results.EvaluationResult:
        """See `AsyncClient.wait`."""
        return self._run(self._client.wait(name, on_event=on_event))

    def watch(self, name: str, after_sequence: int = 0) -> Iterator[_results.EvaluationEvent]:
        """See `AsyncClient.watch`."""
        return self._iterate(self._client.watch(name, after_sequence))

    def get_evaluation(self, name: str) -> _results.EvaluationResult:
        """See `AsyncClient.get_evaluation`."""
        return self._run(self._client.get_evaluation(name))

    def list_evaluations(
        self,
        filter: str = "",  # noqa: A002
        *,
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[_results.EvaluationResult]:
        """See `AsyncClient.list_evaluations`."""
        return self._iterate(self._client.list_evaluations(filter, order_by=order_by, limit=limit))

    def cancel_evaluation(self, name: str, *, etag: str = "") -> _results.EvaluationResult:
        """See `AsyncClient.cancel_evaluation`."""
        return self._run(self._client.cancel_evaluation(name, etag=etag))

    def put_dataset(
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
        """See `AsyncClient.put_dataset`."""
        return self._run(
            self._client.put_dataset(
                dataset_id,
                files,
                format=format,
                language=language,
                text_field=text_field,
                padding_token=padding_token,
                progress=progress,
            )
        )

    def get_dataset(self, dataset_id: str) -> _results.Dataset:
        """See `AsyncClient.get_dataset`."""
        return self._run(self._client.get_dataset(dataset_id))

    def list_datasets(self) -> Iterator[_results.Dataset]:
        """See `AsyncClient.list_datasets`."""
        return self._iterate(self._client.list_datasets())

    def put_suite(
        self, suite_id: str | None, definition: _suites.Definition, *, validate_only: bool = False
    ) -> _results.Suite:
        """See `AsyncClient.put_suite`."""
        return self._run(self._client.put_suite(suite_id, definition, validate_only=validate_only))

    def get_suite(self, suite_id: str) -> _results.Suite:
        """See `AsyncClient.get_suite`."""
        return self._run(self._client.get_suite(suite_id))

    def list_suites(self) -> Iterator[_results.Suite]:
        """See `AsyncClient.list_suites`."""
        return self._iterate(self._client.list_suites())

    def report_training_metrics(self, run: str, points: Iterable[Mapping[str, Any]]) -> None:
        """See `AsyncClient.report_training_metrics`."""
        self._run(self._client.report_training_metrics(run, points))

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in this thread; nothing when the call itself failed
            raise

    def _iterate(self, items: AsyncIterator[_T]) -> Iterator[_T]:
        async def following() -> tuple[bool, _T | None]:
            # StopAsyncIteration cannot cross a future.
            try:
                return True, await items.__anext__()
            except StopAsyncIteration:
                return False, None

        try:
            while True:
                found, item = self._run(following())
                if not found:
                    return
                yield item  # type: ignore[misc]
        finally:
            if not self._loop.is_closed():
                self._run(items.aclose())  # type: ignore[attr-defined]

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Where several event loops use gRPC, each is woken for the others' events and finds nothing to read.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
