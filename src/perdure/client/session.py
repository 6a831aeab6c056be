"""HTTP requests with retries, from any thread and event loop; responses become results or errors."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from urllib.parse import quote

from yarl import URL

from perdure.client.tls import ClientTls
from perdure.kernel.checks import check_text
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import (
    DeadlineExceeded,
    InvalidInput,
    OutcomeUnknown,
    PerdureError,
    ReadOnlyDatabase,
    StorageClosed,
    StorageFull,
    StorageUnavailable,
    Unreachable,
    all_errors,
    error_named,
)

if TYPE_CHECKING:
    import aiohttp

    from perdure.client.connections import ClientConnections, Pools

logger = logging.getLogger(__name__)

RETRY_DELAYS = (1.0, 2.0, 5.0)
HEALTH_RETRY_DELAYS = (0.1, 0.2, 0.5)
HEALTH_PATH = "/v1/agl/health"
LARGE_BODY = 1 << 20
SILENCE_SECONDS = 30.0
"""A stream that sends nothing for this time, not even a heartbeat, counts as lost."""
NAMESPACE_HEADER = "X-Perdure-Namespace"

Effect = Literal["none", "repeatable", "once"]
"""Effect of a request: none, one that may be repeated, or one that must happen once."""
Query = Iterable[tuple[str, str]]

_NOTHING_CHANGED = (DeadlineExceeded, ReadOnlyDatabase, StorageClosed, StorageFull, StorageUnavailable)
Errors = tuple[type[Exception], ...]


class NeverSent(OSError):
    """Raised if no connection could be opened, so that the request was never sent."""


# The first session of aiohttp loads it; before that, none of its errors can occur.
def _never_sent() -> Errors:
    aiohttp = sys.modules.get("aiohttp")
    more = () if aiohttp is None else (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    return (NeverSent, *more)


def _lost() -> Errors:
    aiohttp = sys.modules.get("aiohttp")
    return (TimeoutError, OSError, *(() if aiohttp is None else (aiohttp.ClientError,)))


def _cut_off() -> Errors:
    """Return the errors of a request whose session is closed in the meantime."""
    return (RuntimeError, *_lost())


class Answer(NamedTuple):
    """A response. `repeated` is true if the request had reached the server before."""

    body: bytes
    repeated: bool = False

    def json(self) -> Any:
        try:
            return decode_json(self.body)
        except InvalidInput as error:
            raise Unreachable(f"the answer is not from a perdure server: {error}") from error


class Outgoing(NamedTuple):
    """A request to send, once or more often."""

    method: str
    path: str
    body: bytes | None
    query: tuple[tuple[str, str], ...]
    headers: Mapping[str, str]
    timeout: float
    long_poll: bool


class HttpSession:
    """Sends requests to one server, as one caller.

    A request is retried after network errors, 408 and 5xx, after a delay and a successful health check. An
    error of the server is raised as its own class, as if raised here.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | Callable[[], str | None] | None = None,
        namespace: str | None = None,
        retry_delays: Sequence[float] = RETRY_DELAYS,
        health_retry_delays: Sequence[float] = HEALTH_RETRY_DELAYS,
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        tls: ClientTls | None = None,
    ) -> None:
        url = _parsed(base_url)
        self.base_url = str(url.with_user(None)).rstrip("/")
        self.token = token if token is not None else url.password
        self.namespace = namespace if namespace is not None else (url.user or None)
        self.retry_delays = tuple(map(float, retry_delays))
        self.health_retry_delays = tuple(map(float, health_retry_delays))
        self.request_timeout = request_timeout
        self.connection_timeout = connection_timeout
        self._fixed_headers = _headers(None if callable(self.token) else self.token, self.namespace)
        self.tls = tls
        files = tls or ClientTls.from_environment()
        self._tls_context = files.context() if url.scheme == "https" else None
        self._pools = self._new_pools()

    def _new_pools(self) -> Pools:
        """Open the connections of this session and of its siblings."""
        from perdure.client.connections import Pools

        return Pools(self.connection_timeout, self._tls_context)

    @property
    def _headers(self) -> dict[str, str]:
        # A secret that a function returns may change after a restart of the server.
        return _headers(self.token(), self.namespace) if callable(self.token) else self._fixed_headers

    @property
    def closed(self) -> bool:
        return self._pools.closed

    def options(self) -> dict[str, Any]:
        """Return the options for another session like this one to the same address."""
        names = ("token", "namespace", "retry_delays", "health_retry_delays", "tls")
        return {name: getattr(self, name) for name in (*names, "request_timeout", "connection_timeout")}

    def in_namespace(self, namespace: str) -> Self:
        """Return a session of the same caller in another namespace; closing either closes both."""
        sibling = self._sibling()
        sibling.namespace = namespace
        sibling._fixed_headers = _headers(None if callable(self.token) else self.token, namespace)
        return sibling

    def with_retries(self, retry_delays: Sequence[float]) -> Self:
        """Return a session of the same caller with these retries; closing either closes both."""
        sibling = self._sibling()
        sibling.retry_delays = tuple(map(float, retry_delays))
        return sibling

    def _sibling(self) -> Self:
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        return sibling

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        effect: Effect | None = None,
        long_poll: bool = False,
    ) -> Answer:
        """Send a request until it is answered or refused, or until all retries have failed.

        `timeout` applies to each try. A `long_poll` request does not delay others. A request with the effect
        `once` is not retried if it may have been executed: that raises OutcomeUnknown.
        """
        sending = Outgoing(
            method,
            path,
            body,
            tuple(query),
            {**self._headers, **(headers or {})},
            self.request_timeout if timeout is None else timeout,
            long_poll,
        )
        return await _Trying(self, sending, effect or ("none" if method == "GET" else "repeatable")).answer()

    async def lines(self, path: str, *, query: Query = ()) -> AsyncIterator[bytes]:
        """Yield the lines of a response as they arrive."""
        async with self.opened("GET", path, query=query) as response:
            async for line in response.content:
                yield line.rstrip(b"\r\n")

    @asynccontextmanager
    async def opened(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a response for reading as it arrives. It may last, but must not be silent for long."""
        sent = {**self._headers, **(headers or {})}
        sending = Outgoing(method, path, body, tuple(query), sent, 0, long_poll=True)
        try:
            async with self._open(await self._pools.get(), sending) as response:
                if response.status != 200:
                    raise error_from(response.status, await response.read())
                yield response
        except _lost() as error:
            raise self.unreachable(error) from error

    async def send(self, sending: Outgoing) -> tuple[int, bytes]:
        """Send a request once."""
        connections = await self._pools.get()
        try:
            async with self._open(connections, sending) as response:
                return response.status, await response.read()
        except _cut_off():
            if self._pools.closed:
                raise StorageClosed("the client was closed") from None
            raise

    def _open(self, connections: ClientConnections, sending: Outgoing) -> Any:
        from aiohttp import ClientTimeout

        session = connections.long_poll if sending.long_poll else connections.short
        silence = SILENCE_SECONDS if sending.long_poll and not sending.timeout else None
        url = URL(self.base_url + sending.path, encoded=True)
        return session.request(
            sending.method,
            url.with_query(sending.query) if sending.query else url,
            data=_data(sending.body),
            headers=sending.headers,
            timeout=ClientTimeout(
                sending.timeout or None, sock_connect=self.connection_timeout, sock_read=silence
            ),
            allow_redirects=False,
        )

    async def is_healthy(self) -> bool:
        """Return whether the server is healthy, after a few retries."""
        if not self.health_retry_delays:
            return True
        for delay in (*self.health_retry_delays, None):
            if await self._probe():
                return True
            if delay is not None:
                await asyncio.sleep(delay)
        return False

    async def _probe(self) -> bool:
        try:
            sending = Outgoing("GET", HEALTH_PATH, None, (), self._headers, self.connection_timeout, False)
            status, _ = await self.send(sending)
        except _lost():
            return False
        return status == 200

    def unreachable(self, error: Exception) -> Unreachable:
        """Build the error for a failed network connection."""
        reason = str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            reason = "timed out"
        elif isinstance(getattr(error, "os_error", error.__cause__), ConnectionRefusedError):
            reason = "connection refused"
        return Unreachable(f"cannot reach {self.base_url}: {reason}")

    async def close(self) -> None:
        """Close the connections of all event loops."""
        await self._pools.close()


class _Trying:
    """One request with its retries."""

    def __init__(self, session: HttpSession, sending: Outgoing, effect: Effect) -> None:
        self._session = session
        self._sending = sending
        self._effect = effect
        self._reached = False
        self._perhaps_done = False

    async def answer(self) -> Answer:
        failure = await self._try()
        for delay in self._session.retry_delays:
            if isinstance(failure, Answer):
                return failure
            logger.info("%s %s: %s; again in %g s", *self._sending[:2], failure, delay)
            await asyncio.sleep(delay)
            if await self._session.is_healthy():
                failure = await self._try()
        if isinstance(failure, Answer):
            return failure
        raise self._verdict(failure)

    async def _try(self) -> Answer | PerdureError:
        """Return the response, or an error that can be retried."""
        repeated = self._reached
        try:
            status, body = await self._session.send(self._sending)
        except _never_sent() as error:
            return self._session.unreachable(error)
        except _lost() as error:
            self._reached = self._perhaps_done = True
            return self._checked(self._session.unreachable(error))
        if 200 <= status < 300:
            return Answer(body, repeated)
        self._reached = True
        failure = error_from(status, body)
        if status < 500 and status != 408:
            raise failure
        if status != 408 and not isinstance(failure, _NOTHING_CHANGED):
            self._perhaps_done = True
        return self._checked(failure)

    def _checked(self, failure: PerdureError) -> PerdureError:
        if self._effect == "once" and self._perhaps_done:
            raise self._verdict(failure)
        return failure

    def _verdict(self, failure: PerdureError) -> PerdureError:
        if self._effect == "none" or not self._perhaps_done or isinstance(failure, OutcomeUnknown):
            return failure
        method, path = self._sending[:2]
        lost = OutcomeUnknown(f"{method} {path} was sent, but its answer was lost: {failure}")
        lost.__cause__ = failure
        return lost


def _parsed(base_url: str) -> URL:
    try:
        url = URL(base_url)
        if url.scheme in ("http", "https") and url.host and not url.query_string and not url.fragment:
            return url
    except (TypeError, ValueError):
        pass
    raise InvalidInput("the server's address must look like http://127.0.0.1:4747")


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    # A large body is sent in pieces, so that it does not block the event loop.
    return io.BytesIO(body) if body is not None and len(body) > LARGE_BODY else body


def _headers(token: str | None, namespace: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {in_header(token, 'the token')}"
    if namespace is not None:
        headers[NAMESPACE_HEADER] = in_header(namespace, "namespace")
    return headers


def in_header(value: object, what: str) -> str:
    """Check that a text can be sent in a header, and return it."""
    text = check_text(value, what)
    if not text.isascii() or not text.isprintable() or text != text.strip():
        raise InvalidInput(f"{what} must be printable ASCII without spaces around it to be sent in a header")
    return text


def path_segment(value: object, what: str) -> str:
    """Quote an id as one segment of a path."""
    text = check_text(value, what)
    if not text:
        raise InvalidInput(f"{what} must not be empty")
    # A segment of only dots would be read as a parent directory.
    return quote(text, safe="") if text.strip(".") else "%2E" * len(text)


def error_from(status: int, body: bytes) -> PerdureError:
    """Build the error of a response, with the class that the server raised."""
    try:
        problem = decode_json(body)
    except InvalidInput:
        problem = None
    problem = problem if isinstance(problem, dict) else {}
    message = _message(problem.get("detail")) or f"the server answered with the status {status}"
    named = error_named(problem.get("code"), message)
    if named is not None:
        return named
    if status < 400 or status >= 500 or status == 408:
        return Unreachable(message)
    return next((kind(message) for kind in all_errors() if kind.http_status == status), InvalidInput(message))


def _message(detail: Any) -> str:
    """Return the message of an error, or its messages by field if a body was invalid."""
    if isinstance(detail, str):
        return detail
    errors = [error for error in detail if isinstance(error, dict)] if isinstance(detail, list) else []
    return "; ".join(
        f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}" for error in errors
    )
