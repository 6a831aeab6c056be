"""Shutdown of a gRPC server: notify health watchers first, then finish running calls."""

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
    """Health of services. A watcher receives the final status, then its call ends.

    The servicer of grpcio-health-checking never ends a watch, which would delay every shutdown.
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
        sent: int | None = None
        while True:
            news, is_last = self._news, self._ended
            status = self._statuses.get(request.service, UNKNOWN)
            if status != sent:
                sent = status
                yield health_pb2.HealthCheckResponse(status=status)
            if is_last:
                return
            await news.wait()

    def stop_serving(self) -> None:
        """Set all services to NOT_SERVING."""
        self._statuses = dict.fromkeys(self._statuses, NOT_SERVING)
        self._notify()

    def end_watches(self) -> None:
        """End all watches after they sent the last status."""
        self._ended = True
        self._notify()

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class CallsInFlight:
    """Counts running calls of the handlers that `counting` has wrapped."""

    def __init__(self) -> None:
        self.count = 0
        self._refusing = False
        self._none = asyncio.Event()
        self._none.set()

    async def drain(self, seconds: float) -> None:
        """Refuse new calls, and wait at most `seconds` until the running calls have ended."""
        self._refusing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()

    async def _begin(self, context: Any) -> None:
        if self._refusing:
            # grpc itself would cancel the call, and clients do not retry cancelled calls.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if not self.count:
            self._none.clear()
        self.count += 1

    def _end(self) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    def counting(self, handler: Any) -> Any:
        """Wrap a method handler so that its running calls are counted."""
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
