"""Events of an evaluation as one sequence, whatever happens to the connection in between."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from mindeval.client._connection import Closing, Connection
from mindeval.client._decode import state_name
from mindeval.client._errors import ServiceError, unavailable
from mindeval.client._results import TERMINAL_STATES
from mindeval.client._retry import Retry
from mindeval.v1 import evaluation_pb2

# Bookmarks come every 15 s, so a longer silence means that nobody is there.
_IDLE_TIMEOUT_S = 60.0
_ENDED = "ended the stream before the evaluation had ended"


async def watch(
    connection: Connection, name: str, after_sequence: int = 0
) -> AsyncGenerator[evaluation_pb2.EvaluationEvent, None]:
    """Yields the events after a sequence number until the terminal one; each once, in order.

    Raises:
        ServiceUnavailable: When the service stayed out of reach.
        ServiceError: EVALUATION_NOT_FOUND, SEQUENCE_AHEAD and the like.
    """
    retry = Retry()
    while True:
        try:
            request = evaluation_pb2.WatchEvaluationRequest(name=name, after_sequence=after_sequence)
            stream = connection.stream("EvaluationService", "WatchEvaluation", request, idle_timeout_s=_IDLE_TIMEOUT_S)
            async with Closing(stream) as responses:
                async for response in responses:
                    retry.progressed()
                    event = response.event
                    if event.WhichOneof("payload") == "bookmark" or event.sequence <= after_sequence:
                        continue
                    after_sequence = event.sequence
                    yield event
                    if _is_terminal(event):
                        return
            cause: ServiceError = unavailable(connection.target.endpoint, _ENDED)
        except ServiceError as error:
            oldest = _oldest_sequence(error)
            if oldest is not None and oldest - 1 > after_sequence:
                after_sequence = oldest - 1  # what has expired is gone; go on with what is left
                continue
            if not error.retryable:
                raise
            cause = error
        await retry.pause(cause, connection.patience_for(cause))


async def evaluate(
    connection: Connection, request: evaluation_pb2.EvaluateCheckpointRequest
) -> AsyncGenerator[evaluation_pb2.EvaluationEvent, None]:
    """Creates an evaluation, or attaches to it, and yields its events until the terminal one.

    The request_id makes repetition harmless. Once the first event has told the name, `watch` takes over after a cut.

    Raises:
        ServiceUnavailable: When the service stayed out of reach.
        ServiceError: When it refuses.
    """
    retry = Retry()
    name, sequence = "", 0
    while not name:
        try:
            stream = connection.stream(
                "EvaluationService", "EvaluateCheckpoint", request, idle_timeout_s=_IDLE_TIMEOUT_S
            )
            async with Closing(stream) as responses:
                async for response in responses:
                    event = response.event
                    if event.WhichOneof("payload") == "bookmark" or event.sequence <= sequence:
                        continue
                    name, sequence = event.evaluation, event.sequence
                    yield event
                    if _is_terminal(event):
                        return
            cause: ServiceError = unavailable(connection.target.endpoint, _ENDED)
        except ServiceError as error:
            if not error.retryable:
                raise
            cause = error
        if not name:
            await retry.pause(cause, connection.patience_for(cause))
    async with Closing(watch(connection, name, sequence)) as events:
        async for event in events:
            yield event


def _is_terminal(event: evaluation_pb2.EvaluationEvent) -> bool:
    return (
        event.WhichOneof("payload") == "state_changed"
        and state_name(event.state_changed.evaluation.state) in TERMINAL_STATES
    )


def _oldest_sequence(error: ServiceError) -> int | None:
    if error.reason != "EVENTS_EXPIRED":
        return None
    try:
        return int(error.metadata.get("oldest_sequence", ""))
    except ValueError:
        return None
