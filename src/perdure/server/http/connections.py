"""Connections of the HTTP server: their number, and how long a client may keep one waiting."""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from typing import Any, Self, cast

import msgspec
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from perdure.kernel.config import Settings

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
RESERVE = 16
"""Connections beyond the limit. They reach only the health checks."""
OTHER_FILES = 128
"""Open files reserved for the database, the agents and the log."""
MOST_CONNECTIONS = 65_536
PROBES = frozenset({"/health", "/healthz", "/readyz", "/ok", "/v1/agl/health"})
"""Paths of the health checks."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def default_limit() -> int:
    """Return the limit of open files, minus the files that the process needs for other things."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(max(files - OTHER_FILES - RESERVE, files // 2), MOST_CONNECTIONS)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of connections, from the settings with the same names."""

    max_connections: int
    head_timeout: float
    keep_alive_timeout: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        possible = default_limit()
        wanted = settings.max_connections or possible
        if wanted > possible:
            logger.warning(
                "max_connections is %s, but the open files that this process may have allow %s connections:"
                " raise their limit (ulimit -n)",
                wanted,
                possible,
            )
        return cls(
            max_connections=wanted,
            head_timeout=settings.head_timeout,
            keep_alive_timeout=settings.keep_alive_timeout,
        )


class ServerConnections:
    """Connections of one server. Connections without a request are idle, in order of their idle time."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._idle: dict[HttpConnection, None] = {}
        self._idle_reserve: dict[HttpConnection, None] = {}

    def protocol(self, config: Config, server_state: ServerState, **options: Any) -> HttpConnection:
        """Build a connection for uvicorn."""
        return HttpConnection(self, config, server_state, **options)

    def add(self, connection: HttpConnection, count: int) -> None:
        """Add the `count`-th connection. Beyond the limit, close the connection that has been idle longest.

        If all connections serve requests, the new one belongs to the reserve.
        """
        over = count - self.limits.max_connections
        if over > 0 and not _close_first(self._idle):
            if over > RESERVE and not _close_first(self._idle_reserve):
                connection.transport.abort()
                return
            connection.reserved = True
            connection.app = partial(answer_probes, connection.app)
        self.set_idle(connection)

    def set_idle(self, connection: HttpConnection) -> None:
        (self._idle_reserve if connection.reserved else self._idle)[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Remove a connection that now serves a request or is closed from the idle ones."""
        (self._idle_reserve if connection.reserved else self._idle).pop(connection, None)


def _close_first(idle: dict[HttpConnection, None]) -> bool:
    first = next(iter(idle), None)
    if first is None:
        return False
    del idle[first]
    first.transport.abort()
    return True


async def answer_probes(application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer health checks, and 503 to all other requests."""
    if scope["path"] in PROBES:
        await application(scope, receive, send)
        return
    text = "too many connections (setting max_connections, or the limit of open files); try again later\n"
    refusal = PlainTextResponse(text, 503, {"Connection": "close", "Retry-After": "1"})
    await refusal(scope, receive, send)


class HeadWithBody:
    """The output of a response. It writes the head together with the beginning of the body.

    If the body comes later, as in a stream, the head is written in the next turn of the event loop.
    """

    __slots__ = ("_head", "_loop", "_next_turn", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._next_turn: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        if self._next_turn is None:
            self._head = data
            self._next_turn = self._loop.call_soon(self._write_head)
        elif self._head is None:
            self._transport.write(data)
        else:
            self._next_turn.cancel()
            head, self._head = self._head, None
            self._transport.writelines((head, data))

    def _write_head(self) -> None:
        head, self._head = self._head, None
        # The client may have disconnected since.
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        self._write_head()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, with limits on the time and the size of a request's head.

    The time counts from the start of the connection, or from the first byte after a response. It covers all
    data that arrives while no request is served, such as the unread rest of a body.
    """

    def __init__(
        self, tracker: ServerConnections, config: Config, server_state: ServerState, **options: Any
    ) -> None:
        super().__init__(config=config, server_state=server_state, **options)
        self.reserved = False
        self._tracker = tracker
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True

    @property
    def _serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()
        self._tracker.add(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._tracker.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._head_bytes = self._head_bytes + len(data) if self._in_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._head_timer is None and not self._serving:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        self._tracker.remove(self)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        cycle.transport = cast(asyncio.Transport, HeadWithBody(self.transport, self.loop))
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._serving and not self.transport.is_closing():
            self._tracker.set_idle(self)

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._tracker.limits.head_timeout, self._expire)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expire(self) -> None:
        self.transport.abort()
