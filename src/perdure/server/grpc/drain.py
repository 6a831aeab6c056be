"""How a gRPC server ends: those who watch its health are told first, then its calls are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class GrpcHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The health of services. Whoever watches it learns that the server stops, and then the call ends.

    The servicer of grpcio-health-checking never ends such a call, which would delay every stop.
    """

    def __init__(self, services: Iterable[str] = ("",)) -> None:
        self._statuses: dict[str, int] = dict.fromkeys(services, SERVING)
        self._ended = False
        self._news = asyncio.Event()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the protocol's name
        told: int | None = None
        while True:
            news, is_last = self._news, self._ended
            status = self._statuses.get(request.service, UNKNOWN)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            if is_last:
                return
            await news.wait()

    def stop_serving(self) -> None:
        """From now on no service is serving."""
        self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
        self._tell()

    def end_watches(self) -> None:
        """End the calls of those who watch, once they know the last status."""
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class CallsInFlight:
    """Counts the calls that are being answered, of the handlers that were wrapped by `counting`."""

    def __init__(self) -> None:
        self.count = 0
        self._refusing = False
        self._none = asyncio.Event()
        self._none.set()

    async def drain(self, seconds: float) -> None:
        """Refuse calls that come from now on, and wait until no other is left, for so many seconds."""
        self._refusing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()

    async def _begin(self, context: Any) -> None:
        if self._refusing:
            # grpc itself would cancel it, and clients do not retry what was cancelled.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if not self.count:
            self._none.clear()
        self.count += 1

    def _end(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    def counting(self, handler: Any) -> Any:
        """The same handler of a method, which counts each call while it is answered."""
        kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        counted = self._stream if handler.response_streaming else self._unary
        behaviour = counted(getattr(handler, kind))
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    def _unary(self, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: Any) -> Any:
            await self._begin(context)
            try:
                return await behaviour(request, context)
            finally:
                self._end()

        return call

    def _stream(self, behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._begin(context)
            try:
                async for answer in behaviour(request, context):
                    yield answer
            finally:
                self._end()

        return call


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"
