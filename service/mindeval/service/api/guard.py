"""One interceptor around every call: refuses during a drain, turns exceptions into aborts, logs."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.rpc import status_pb2

from mindeval.formats.errors import MindEvalError
from mindeval.service import drain as draining
from mindeval.service.drain import Drain
from mindeval.service.errors import DETAILS_KEY, ServiceError, code_of, status_of

_log = logging.getLogger(__name__)

_PREFIX = "/mindeval.v1."
# Calls that begin something. What is under way, and reading, goes on until the end of the drain.
_REFUSED_WHILE_DRAINING = frozenset(
    f"{_PREFIX}{method}"
    for method in (
        "EvaluationService/EvaluateCheckpoint",
        "EvaluationService/CreateEvaluation",
        "EvaluationService/WatchEvaluation",
        "CheckpointService/CreateCheckpoint",
        "BlobService/CreateUpload",
        "BlobService/WriteUpload",
        "BlobService/WriteSmallBlobs",
        "RegistryService/PutDataset",
        "RegistryService/PutSuite",
        "RunService/ReportTrainingMetrics",
    )
)


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg,unused-ignore]
    """Wraps the handlers of mindeval.v1; those of other packages (health, reflection) are left alone."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Wraps one handler, whichever of the four kinds it is."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(_PREFIX):
            return handler
        if handler.response_streaming:
            make = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else (grpc.unary_stream_rpc_method_handler)
            )
            wrapped: Any = self._streaming(method, handler.stream_stream or handler.unary_stream)
        else:
            make = (
                grpc.stream_unary_rpc_method_handler
                if handler.request_streaming
                else (grpc.unary_unary_rpc_method_handler)
            )
            wrapped = self._single(method, handler.stream_unary or handler.unary_unary)
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    def _single(self, method: str, behaviour: Any) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with self._guarded(method, context):
                return await behaviour(request, context)

        return call

    def _streaming(self, method: str, behaviour: Any) -> Any:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            async with self._guarded(method, context), aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        return call

    @asynccontextmanager
    async def _guarded(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
        begin = time.monotonic()
        extra = {"method": method[len(_PREFIX) :], "peer": context.peer()}
        try:
            if self._drain.is_on and method in _REFUSED_WHILE_DRAINING:
                raise draining.refusal()
            yield
        except MindEvalError as error:
            _log.info("%s: %s", error.reason, error.message, extra={**extra, "ms": _elapsed_ms(begin)})
            await _abort(context, error)
        except (asyncio.CancelledError, GeneratorExit):
            _log.debug("call cancelled", extra={**extra, "ms": _elapsed_ms(begin)})
            raise
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            incident = uuid.uuid4().hex
            _log.exception("a call failed", extra={**extra, "incident": incident, "ms": _elapsed_ms(begin)})
            text = f"a defect of the service ({type(error).__name__}); its log has details under {incident}"
            await _abort(context, ServiceError("INTERNAL", text, {"incident": incident}))
        else:
            _log.debug("call done", extra={**extra, "ms": _elapsed_ms(begin)})


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: MindEvalError) -> None:
    status: status_pb2.Status = status_of(error)
    await context.abort(
        code_of(error.reason), status.message, trailing_metadata=((DETAILS_KEY, status.SerializeToString()),)
    )


def _elapsed_ms(begin: float) -> float:
    return round((time.monotonic() - begin) * 1000, 1)
