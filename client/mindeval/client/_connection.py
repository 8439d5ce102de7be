"""One connection to a service: calls that are tried again, and word of when it goes and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Callable, Generic, TypeVar

import grpc

from mindeval.client._channel import Target
from mindeval.client._errors import ServiceError, ServiceUnavailable, from_rpc_error, unavailable
from mindeval.client._retry import Patience, Retry
from mindeval.formats.deadline import within
from mindeval.v1 import (
    blob_pb2_grpc,
    capability_pb2,
    capability_pb2_grpc,
    checkpoint_pb2_grpc,
    evaluation_pb2_grpc,
    registry_pb2_grpc,
    run_pb2_grpc,
)

CALL_TIMEOUT_S = 30.0
_BUSY_PATIENCE_S = 60.0
_SHORTEST_TIMEOUT_S = 5.0
_STUBS: dict[str, Any] = {
    "EvaluationService": evaluation_pb2_grpc.EvaluationServiceStub,
    "BlobService": blob_pb2_grpc.BlobServiceStub,
    "CheckpointService": checkpoint_pb2_grpc.CheckpointServiceStub,
    "RegistryService": registry_pb2_grpc.RegistryServiceStub,
    "RunService": run_pb2_grpc.RunServiceStub,
    "CapabilityService": capability_pb2_grpc.CapabilityServiceStub,
}

_T = TypeVar("_T")
_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]

OnLost = Callable[[ServiceError], None]
OnBack = Callable[[], None]


class Closing(Generic[_T]):
    """Closes an asynchronous generator at the end of a block (contextlib.aclosing needs Python 3.10)."""

    def __init__(self, generator: AsyncGenerator[_T, None]) -> None:
        self._generator = generator

    async def __aenter__(self) -> AsyncGenerator[_T, None]:
        return self._generator

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._generator.aclose()


class Connection:
    """Makes calls over one channel, which is opened at the first of them.

    Belongs to the event loop that makes the first call. `on_lost` and `on_back` are called once a change, not once a
    try.
    """

    def __init__(
        self,
        target: Target,
        patience: Patience,
        *,
        on_lost: OnLost | None = None,
        on_back: OnBack | None = None,
    ) -> None:
        self.target = target
        self._patience = patience
        self._on_lost = on_lost
        self._on_back = on_back
        self._channel: grpc.aio.Channel | None = None
        self._stubs: dict[str, Any] = {}
        self._tls_stamps: tuple[int | None, ...] = ()
        self._reached_at: float | None = None
        self._lost = False
        self._closed = False
        self._capabilities: capability_pb2.GetCapabilitiesResponse | None = None
        self._blobs: Connection | None = None

    async def close(self) -> None:
        """Closes the channel; calls at work are cancelled. Repeating it is harmless."""
        self._closed = True
        if self._blobs is not None:
            await self._blobs.close()
            self._blobs = None
        channel: Any = self._channel
        self._channel = None
        self._stubs.clear()
        if channel is not None:
            await channel.close()

    def channel(self) -> grpc.aio.Channel:
        """The channel.

        Raises:
            RuntimeError: When the connection is closed.
        """
        if self._closed:
            raise RuntimeError("the client is closed")
        if self._channel is None:
            self._tls_stamps = self.target.tls.stamps() if self.target.tls else ()
            self._channel = self.target.open()
        return self._channel

    def method(self, service: str, name: str) -> Any:
        """A method of a stub, such as method("RegistryService", "GetSuite")."""
        if service not in self._stubs:
            self._stubs[service] = _STUBS[service](self.channel())
        return getattr(self._stubs[service], name)

    @property
    def patience_s(self) -> float:
        """Seconds that an operation may wait for the service now; longer once the service has answered."""
        return self._patience.connect_timeout_s if self._reached_at is None else self._patience.timeout_s

    def patience_for(self, error: ServiceError) -> float:
        """Seconds to keep trying after an error: an answer is not waited for as long as a service that is away."""
        return self.patience_s if isinstance(error, ServiceUnavailable) else min(self.patience_s, _BUSY_PATIENCE_S)

    async def call(self, service: str, name: str, request: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Makes a unary call and repeats it while the service is out of reach.

        The caller sees to it that a repetition is harmless (a request_id, or a method that is so by nature).

        Raises:
            ServiceUnavailable: When the patience has ended.
            ServiceError: When the service refuses.
        """
        retry = Retry()
        while True:
            try:
                return await self.attempt(service, name, request, timeout_s=timeout_s)
            except ServiceError as error:
                if not error.retryable:
                    raise
                await retry.pause(error, self.patience_for(error))

    async def attempt(self, service: str, name: str, request: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Makes a unary call once.

        Raises:
            ServiceError: `retryable` tells whether another try makes sense.
        """
        started = time.monotonic()
        if self._reached_at is None:
            # A wrong address may swallow calls without an answer; patience decides here, too.
            timeout_s = min(timeout_s, max(self._patience.connect_timeout_s, _SHORTEST_TIMEOUT_S))
        try:
            method = self.method(service, name)
            response = await method(request, timeout=timeout_s, metadata=self.target.metadata())
        except grpc.aio.AioRpcError as error:
            raise self.failed(error, started) from error
        self.reached()
        return response

    async def stream(
        self, service: str, name: str, request: Any, *, idle_timeout_s: float
    ) -> AsyncGenerator[Any, None]:
        """Makes a server-streaming call once and yields its messages.

        Args:
            idle_timeout_s: A stream that is silent for longer is taken for dead.

        Raises:
            ServiceError: When it breaks.
        """
        started = time.monotonic()
        call = self.method(service, name)(request, metadata=self.target.metadata())
        try:
            while True:
                message = await within(call.read(), idle_timeout_s)
                if message is _END:
                    return
                self.reached()
                yield message
        except grpc.aio.AioRpcError as error:
            raise self.failed(error, started) from error
        except asyncio.TimeoutError:
            silence = unavailable(self.target.endpoint, "went silent")
            raise self._noted(silence, started) from None
        finally:
            call.cancel()

    def reached(self) -> None:
        """The service answered."""
        self._reached_at = time.monotonic()
        if self._lost:
            self._lost = False
            if self._on_back is not None:
                self._on_back()

    def failed(self, error: grpc.aio.AioRpcError, started: float) -> ServiceError:
        """Translates a failed call, and notes whether the service is out of reach.

        Args:
            error: What gRPC raised.
            started: When the call was made (`time.monotonic()`).
        """
        return self._noted(from_rpc_error(error, self.target.endpoint), started)

    def _noted(self, error: ServiceError, started: float) -> ServiceError:
        if not isinstance(error, ServiceUnavailable):
            self.reached()
            return error
        self._capabilities = None
        self._reopen_after_rotation()
        # A call that another one has overtaken says nothing about now.
        overtaken = self._reached_at is not None and self._reached_at > started
        if not self._lost and not overtaken:
            self._lost = True
            if self._on_lost is not None:
                self._on_lost(error)
        return error

    def _reopen_after_rotation(self) -> None:
        # A channel keeps the certificates it was made with. It is dropped, not closed: closing would cancel its calls.
        if self.target.tls is not None and self.target.tls.stamps() != self._tls_stamps:
            self._channel = None
            self._stubs.clear()

    async def capabilities(self) -> capability_pb2.GetCapabilitiesResponse:
        """What the service can do; asked once, and again after it was out of reach."""
        if self._capabilities is None:
            request = capability_pb2.GetCapabilitiesRequest()
            self._capabilities = await self.call("CapabilityService", "GetCapabilities", request)
        return self._capabilities

    async def blobs(self) -> Connection:
        """The connection that carries blobs: this one, unless the service names another address."""
        endpoint = (await self.capabilities()).blob_endpoint
        if endpoint in ("", self.target.endpoint):
            return self
        if self._blobs is None or self._blobs.target.endpoint != endpoint:
            target = Target(endpoint, self.target.token, self.target.tls)
            self._blobs = Connection(target, self._patience, on_lost=self._blobs_lost)
        return self._blobs

    def _blobs_lost(self, _error: ServiceError) -> None:
        # It may come back at another address: ask again.
        self._capabilities = None
