"""What the trainer is told about the end of a push."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindeval.client import _decode
from mindeval.client._connection import Connection
from mindeval.client._results import EvaluationResult
from mindeval.client.agent.lines import LineWriter
from mindeval.v1 import evaluation_pb2


async def get_evaluation(connection: Connection, name: str) -> EvaluationResult:
    """Reads an evaluation.

    Raises:
        ServiceError: EVALUATION_NOT_FOUND and the like.
    """
    request = evaluation_pb2.GetEvaluationRequest(name=name)
    response = await connection.call("EvaluationService", "GetEvaluation", request)
    return _decode.evaluation(response.evaluation)


def tell_result(writer: LineWriter, number: int, step: int, result: EvaluationResult) -> None:
    """Sends `result` for an evaluation that has ended."""
    error = result.error
    writer.send(
        "result",
        id=number,
        step=step,
        evaluation=result.name,
        state=result.state,
        metrics={
            name: {
                "value": metric.value,
                "standard_error": metric.standard_error,
                "count": metric.count,
                "higher_is_better": metric.higher_is_better,
            }
            for name, metric in result.metrics.items()
        },
        error=error_fields(error.reason, error.message, error.metadata) if error else None,
        times={"queued_s": result.queued_s, "run_s": result.run_s},
    )


def tell_failure(
    writer: LineWriter, number: int, step: int, *, evaluation: str, state: str, error: Mapping[str, Any]
) -> None:
    """Sends `result` for a push that did not get as far as an evaluation that ended."""
    writer.send(
        "result",
        id=number,
        step=step,
        evaluation=evaluation or None,
        state=state,
        metrics={},
        error=error,
        times={"queued_s": None, "run_s": None},
    )


def error_fields(reason: str, message: str, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An error as the lines carry it."""
    return {"reason": reason, "message": message, "metadata": dict(metadata or {})}
