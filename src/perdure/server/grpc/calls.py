"""Calls of the gRPC server: authentication, reading of messages, refusals, and their end at a shutdown.

perdure reads messages itself, not grpc. So a caller that sends nothing cannot hold a call forever, nothing
is received from an unauthorized caller, and a malformed message is an error of the caller.

A shutdown notifies health watchers first, then finishes running calls.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from perdure.kernel.errors import Forbidden, InvalidInput, PerdureError, RequestTimeout
from perdure.runtime.app import StoreApp
from perdure.server.http.bodies import internal_error, public_error
from perdure.server.http.gate import RequestGate, Sender
from perdure.server.otlp.messages import PROTOBUF_FORM, encode_status, grpc_code
from perdure.service.callers import Caller, Scope, allows

# --- shutdown ---------------------------------------------------------------------------------------------


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


# --- calls ------------------------------------------------------------------------------------------------


ERROR_CODE = "perdure-error"
"""Trailing metadata key that holds the code of an error."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}

logger = logging.getLogger(__name__)

Context = Any
"""grpc's context of a call; grpc has no type hints."""
Requests = AsyncIterator[bytes]


class Calls:
    """Authenticates callers and answers their calls. Counts every call."""

    def __init__(self, app: StoreApp) -> None:
        self.app = app
        self.in_flight = CallsInFlight()
        self._gate = RequestGate(app)
        self._arrivals = Arrivals(app.settings.body_timeout)

    def unary(self, scope: Scope, answer: Callable[[Caller, bytes], Awaitable[bytes]]) -> Any:
        """Build the handler of a method with one request and one response."""

        async def call(requests: Requests, context: Context) -> bytes:
            caller = await self.admit(context, scope)
            try:
                return await answer(caller, await self._arrivals.receive(context))
            except Exception as error:  # noqa: BLE001 - every failure becomes a status
                await refuse(context, error)

        return self.in_flight.counting(grpc.stream_unary_rpc_method_handler(call))

    def stream(self, scope: Scope, answer: Callable[[Caller, Requests], AsyncIterator[bytes]]) -> Any:
        """Build the handler of a method with many requests and many responses."""

        async def call(requests: Requests, context: Context) -> AsyncIterator[bytes]:
            caller = await self.admit(context, scope)
            try:
                async for message in answer(caller, self._readmitting(requests, context)):
                    yield message
            except Exception as error:  # noqa: BLE001 - every failure becomes a status
                await refuse(context, error)

        return self.in_flight.counting(grpc.stream_stream_rpc_method_handler(call))

    async def _readmitting(self, requests: Requests, context: Context) -> AsyncIterator[bytes]:
        """Yield requests. Check before each one that the caller is still admitted."""
        header = _get_header(context)
        async for request in requests:
            await self._gate.readmit(header)
            yield request

    async def admit(self, context: Context, scope: Scope | None = None) -> Caller:
        """Authenticate the caller by its metadata, which has the names of the HTTP headers; otherwise abort.

        Without a scope, every authenticated caller is admitted.
        """
        try:
            caller = await self._gate.admit(_get_header(context), _parse_sender(context))
            if not allows(caller.scopes, scope):
                raise Forbidden(f"this needs a token with the scope {scope!r}")
        except Exception as error:  # noqa: BLE001 - every failure becomes a status
            await refuse(context, error)
        return caller


class Arrivals:
    """Receives the single message of each call, within a time limit.

    One timer watches all calls, because a timer for each costs more than the rest of its admission.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: dict[asyncio.Task[Any], float] = {}
        """The deadline of each waiting call, earliest first."""
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, context: Context) -> bytes:
        """Return the message. Raise RequestTimeout if it does not arrive in time."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._waiting[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look, loop)
        try:
            data: bytes = await context.read()
        except asyncio.CancelledError:
            if task not in self._late:
                raise
            task.uncancel()
            raise RequestTimeout(
                f"the message did not arrive within {self._seconds:g} s (setting body_timeout)"
            ) from None
        finally:
            self._waiting.pop(task, None)
            self._late.discard(task)
        if data is grpc.aio.EOF:
            raise InvalidInput("the call has no message")
        return data

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel calls past their deadline, then wait for the next deadline."""
        now, self._timer = loop.time(), None
        for task, until in [*self._waiting.items()]:
            if until > now:
                self._timer = loop.call_at(until, self._look, loop)
                break
            del self._waiting[task]
            self._late.add(task)
            task.cancel()


def parse(kind: Any, data: bytes) -> Any:
    """Parse a message. Raise InvalidInput if the bytes are malformed."""
    try:
        return kind.FromString(data)
    except (DecodeError, ValueError):
        raise InvalidInput(f"the message cannot be read as {kind.DESCRIPTOR.full_name}") from None


async def refuse(context: Context, error: Exception) -> NoReturn:
    """Abort a call with an error. The trailing metadata holds its details, as over HTTP."""
    request_id = secrets.token_hex(8)
    if not isinstance(error, PerdureError):
        logger.error("request %s: a call failed", request_id, exc_info=error)
        error = internal_error(request_id)
    shown = public_error(error, request_id)
    metadata = (
        ("grpc-status-details-bin", encode_status(shown, request_id, PROTOBUF_FORM)),
        (ERROR_CODE, shown.code),
    )
    await context.abort(_CODES[grpc_code(shown)], shown.message, metadata)
    raise AssertionError("abort always raises")


def _get_header(context: Context) -> Callable[[str], str | None]:
    pairs = context.invocation_metadata()
    return {key: value for key, value in pairs if isinstance(value, str)}.get


def _parse_sender(context: Context) -> Sender:
    """Return the peer `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000` as HTTP names it."""
    peer = unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")

    def read_metadata(name: str) -> list[str]:
        return [value for key, value in context.invocation_metadata() if key == name]

    return Sender(peer, read_metadata)
