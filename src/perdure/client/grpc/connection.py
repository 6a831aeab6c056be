"""A gRPC connection that connects and reconnects by itself, with a time limit for every request.

Its errors have hints.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, NoReturn

import grpc
from grpc_health.v1 import health_pb2

from perdure.client.tls import ClientTls
from perdure.kernel.errors import InvalidInput, PerdureError, StorageClosed, Unreachable, error_named
from perdure.kernel.lifecycle import (
    CLOSED,
    CONNECT,
    CONNECTION,
    ENDED,
    ESTABLISHED,
    FAILED,
    GIVEN_UP,
    LOST,
    STARTED,
    ConnectionState,
)
from perdure.kernel.retry import Backoff, is_transient

# --- errors -----------------------------------------------------------------------------------------------


class ConnectionFailed(Unreachable):
    """The connection to the gRPC server failed."""

    code = "connection_failed"
    hint: ClassVar[str] = "verify that the server is running, and its address"
    retried: ClassVar[bool] = True
    """Whether a retry may help."""


class DnsFailure(ConnectionFailed):
    """The name of the gRPC server cannot be resolved."""

    code = "dns_failure"
    hint = "check the host name; the client retries with back-off"


class ConnectTimeout(ConnectionFailed):
    """The gRPC server did not accept the connection in time."""

    code = "connect_timeout"
    hint = "check the address and the network; the client retries with back-off"


class TlsFailure(ConnectionFailed):
    """The TLS handshake with the gRPC server failed."""

    code = "tls_failure"
    hint = "check the certificates of both sides"
    retried = False


class ServerUnavailable(Unreachable):
    """The gRPC server became unavailable during a request."""

    code = "server_unavailable"
    hint: ClassVar[str] = "the client reconnects; verify that the server is running"


class CallTimeout(PerdureError, TimeoutError):
    """The gRPC server did not answer before the deadline of the request."""

    code = "call_timeout"
    http_status = 504
    hint: ClassVar[str] = "retry the request; increase the deadline, or check the network"


class CallCancelled(PerdureError):
    """The request was cancelled."""

    code = "call_cancelled"
    http_status = 499
    hint: ClassVar[str] = "the request was cancelled; send it again if it is still wanted"


def connection_failure(detail: str) -> ConnectionFailed:
    """Build the error for gRPC's text about a failed connection."""
    text = detail.lower()
    if "dns" in text or "name resolution" in text:
        return DnsFailure(detail)
    if any(word in text for word in ("ssl", "tls", "handshake", "certificate", "peer name")):
        return TlsFailure(detail)
    if "timed out" in text or "timeout" in text or "deadline" in text:
        return ConnectTimeout(detail)
    return ConnectionFailed(detail)


# --- the connection ---------------------------------------------------------------------------------------


CONNECT_SECONDS = 5.0
DEADLINE_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
TIMEOUTS_IN_A_ROW = 2
"""The connection counts as lost after this number of consecutive timeouts."""
MAX_MESSAGE = 64 << 20
ERROR_CODE = "perdure-error"
"""Trailing metadata key that holds the code of the server's error."""
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

logger = logging.getLogger(__name__)

Transition = Callable[[ConnectionState, str, ConnectionState], None]
"""Called with the state before, the event, and the state after."""


class GrpcConnection:
    """A connection whose state follows `CONNECTION`.

    A request connects first if necessary. After a transport error it is retried for up to `patience` seconds,
    with growing pauses; each try has `deadline` seconds. So requests must be idempotent.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        namespace: str | None = None,
        tls: ClientTls | None = None,
        connect_timeout: float = CONNECT_SECONDS,
        deadline: float = DEADLINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        on_transition: Transition | None = None,
    ) -> None:
        self.address = address
        self.deadline = deadline
        self.patience = patience
        self.state: ConnectionState = "disconnected"
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._on_transition = on_transition
        self._host, self._port = _split(address)
        self.metadata = _build_metadata(token, namespace)
        self._channel: Any = None
        self._requests = 0
        self._timeouts = 0
        self._closed = False
        self._connecting = asyncio.Lock()

    # --- connecting

    async def connect(self) -> None:
        """Connect with one try, unless connected. Requests do this by themselves."""
        async with self._connecting:
            if self._closed:
                raise StorageClosed("the client is closed")
            if self._channel is None:
                await self._attempt()

    async def _attempt(self) -> None:
        self._step(CONNECT)
        try:
            await self._resolve()
            channel = self._open()
            try:
                await self._greet(channel)
            except BaseException:
                await channel.close()
                raise
        except ConnectionFailed:
            self._step(FAILED)
            self._step(GIVEN_UP)
            raise
        except BaseException:
            self._step(CLOSED)
            raise
        self._channel, self._timeouts = channel, 0
        self._step(ESTABLISHED)

    async def _resolve(self) -> None:
        """Check that the host has an address, because the error of gRPC is less clear."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise DnsFailure(f"{self._host} cannot be resolved: {error.strerror}") from None
        except TimeoutError:
            raise DnsFailure(f"{self._host} was not resolved within {self._connect_timeout:g} s") from None

    def _open(self) -> Any:
        # A pool of its own, so that the back-off of another connection to the address does not apply.
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.enable_http_proxy", 0),
        ]
        if self._tls is None:
            return grpc.aio.insecure_channel(self.address, options)
        ca, key, cert = self._tls.pem()
        return grpc.aio.secure_channel(self.address, grpc.ssl_channel_credentials(ca, key, cert), options)

    async def _greet(self, channel: Any) -> None:
        """Connect by a health check. A server without the health service counts as connected."""
        check = channel.unary_unary(
            HEALTH_CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = await check(health_pb2.HealthCheckRequest(), timeout=self._connect_timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                late = f"{self.address} did not accept within {self._connect_timeout:g} s"
                raise ConnectTimeout(late) from None
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise connection_failure(error.details() or "") from None
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise ConnectionFailed(f"{error.code().name}: {error.details()}") from None
            return
        if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
            raise ConnectionFailed(f"{self.address} is stopping")

    async def close(self) -> None:
        """Close the connection; running requests fail."""
        self._closed = True
        channel, self._channel = self._channel, None
        self._step(CLOSED)
        if channel is not None:
            await channel.close()

    # --- requests

    async def call(self, method: str, request: Any, answer: Any, *, deadline: float | None = None) -> Any:
        """Send a request of one message, and return its response, a message of the class `answer`."""
        seconds = self.deadline if deadline is None else deadline
        patience = Patience(self)
        while True:
            try:
                await self.connect()
                async with self.request() as channel:
                    invoke = channel.unary_unary(
                        method,
                        request_serializer=type(request).SerializeToString,
                        response_deserializer=answer.FromString,
                    )
                    return await invoke(request, timeout=seconds, metadata=self.metadata)
            except PerdureError as error:
                await patience.after(error)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Any]:
        """Yield the channel for one request. Convert gRPC errors, and close a lost connection."""
        channel = self._channel
        if channel is None:
            raise ServerUnavailable(f"{self.address} is not connected")
        with self._request():
            try:
                yield channel
            except grpc.aio.AioRpcError as error:
                await self._failed(channel, error)
            except ServerUnavailable:
                await self._lose(channel)
                raise
            self._timeouts = 0

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Count a running request."""
        self._requests += 1
        self._step(STARTED)
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._step(ENDED)

    async def _failed(self, channel: Any, error: Any) -> NoReturn:
        """Raise the error for a gRPC error, and close the connection if it is lost."""
        code, details = error.code(), error.details() or ""
        named = dict(error.trailing_metadata() or ()).get(ERROR_CODE)
        if named is not None:
            # The server has answered, so the connection works.
            self._timeouts = 0
            raise error_named(named, details) or PerdureError(details)
        # grpc's own client reports INTERNAL for a write after the end of a call, regardless of the response.
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
            await self._lose(channel)
            raise ServerUnavailable(f"{self.address} is unavailable: {details}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._timeouts += 1
            if self._timeouts >= TIMEOUTS_IN_A_ROW:
                await self._lose(channel)
            raise CallTimeout(f"{self.address} did not answer in time: {details}")
        if code is grpc.StatusCode.CANCELLED:
            raise CallCancelled(details or None)
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
            raise InvalidInput(details)
        raise PerdureError(f"{code.name}: {details}")

    async def _lose(self, channel: Any) -> None:
        if self._channel is channel:
            self._channel = None
            self._step(LOST)
            await channel.close()

    def _step(self, event: str) -> None:
        before = self.state
        after: Any = CONNECTION.step(before, event)
        if after != before:
            self.state = after
            if self._on_transition is not None:
                self._on_transition(before, event, after)


class Patience:
    """The retries of one request: their time limit, and the pauses between them."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection
        self._clock = asyncio.get_running_loop().time
        self.renew()

    def renew(self) -> None:
        """Restart the time limit and the pauses after a success."""
        self._give_up = self._clock() + self._connection.patience
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    async def after(self, error: PerdureError) -> None:
        """Pause after an error. Raise the error if it is permanent or the time is over."""
        pause = self._backoff.next()
        if not _passes(error) or self._clock() + pause >= self._give_up:
            raise error
        address = self._connection.address
        logger.info("%s: %s: %s; retrying in %.1f s", address, error.code, error.message, pause)
        await asyncio.sleep(pause)


def _passes(error: PerdureError) -> bool:
    """Return whether an error is temporary, so that the request is worth retrying."""
    if isinstance(error, ConnectionFailed):
        return error.retried
    return isinstance(error, CallTimeout) or is_transient(error, idempotent=True)


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise InvalidInput(f"{address!r} is not an address; write HOST:PORT, such as 127.0.0.1:50051")
    return host.strip("[]"), int(port)


def _build_metadata(token: str | None, namespace: str | None) -> list[tuple[str, str]]:
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    return metadata if namespace is None else [*metadata, ("x-perdure-namespace", namespace)]
