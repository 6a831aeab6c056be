"""`get_client()` without a URL inside a graph: the SDK's client talks to the server that runs the graph.

The SDK registers the transport of such a client and lets the server connect it. Requests run in the
application's event loop, since a graph runs in another one, and responses are streamed. These requests come
from the operator's own code, so they need no token.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.agents.loading import DEFER_LOOPBACK

if TYPE_CHECKING:
    import httpx

LOOPBACK: Final = "perdure.loopback"
"""Key in the scope of a request that only code in this process can set."""

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

logger = logging.getLogger(__name__)


class LoopbackConnection(Protocol):
    """Connection of the clients without a URL."""

    async def send(self, request: httpx.Request) -> httpx.Response: ...


class InProcess:
    """Sends requests to an ASGI application, in the event loop that created this object."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._loop = asyncio.get_running_loop()

    async def send(self, request: httpx.Request) -> httpx.Response:
        import httpx

        exchange = _Exchange(request, await request.aread(), self._loop)
        exchange.begin(self._application)
        try:
            status, headers = await exchange.start()
        except BaseException:
            exchange.close()
            raise
        return httpx.Response(status, headers=headers, stream=_build_stream(exchange))


class OverHttp:
    """Sends requests to the server at a URL, with a token."""

    def __init__(self, url: str, token: str | None, namespace: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        if namespace is not None:
            self._headers["x-perdure-namespace"] = namespace

    async def send(self, request: httpx.Request) -> httpx.Response:
        import httpx

        request.url = httpx.URL(self._url + request.url.raw_path.decode())
        request.headers.update({**self._headers, "host": request.url.netloc.decode()})
        # A connection belongs to one event loop, and each run may have its own.
        transport = httpx.AsyncHTTPTransport()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await transport.aclose()
            raise
        response.stream = _closing(response.stream, transport)
        return response


class Loopback:
    """Connects the SDK's clients without a URL from `start` to `stop`; nothing happens without the SDK."""

    def __init__(self, connect: Callable[[], LoopbackConnection]) -> None:
        self._connect = connect
        self._registered: list[Any] | None = None

    async def start(self) -> None:
        if find_spec("langgraph_sdk") is None:
            return
        os.environ.setdefault(DEFER_LOOPBACK, "true")
        utilities, client = _sdk()
        if not hasattr(utilities, "_registered_transports"):
            logger.warning("this release of langgraph_sdk needs a URL: get_client(url=…)")
            return
        self._registered = utilities._registered_transports
        connected = _Connected(self._connect())
        for transport in self._registered:
            connected.append(transport)
        utilities._registered_transports = client._registered_transports = connected

    async def stop(self) -> None:
        if self._registered is not None:
            utilities, client = _sdk()
            utilities._registered_transports = client._registered_transports = self._registered
            self._registered = None


def _sdk() -> tuple[Any, Any]:
    return import_module("langgraph_sdk._shared.utilities"), import_module("langgraph_sdk._async.client")


class _Connected(list[Any]):
    """The SDK's list of transports. It connects each new one instead of storing it."""

    def __init__(self, connection: LoopbackConnection) -> None:
        super().__init__()
        self._connection = connection

    def append(self, transport: Any) -> None:
        transport.handle_async_request = self._connection.send


# --- one request ------------------------------------------------------------------------------------------


class _Exchange:
    """Request and response, between the event loops of the caller and of the application."""

    def __init__(self, request: httpx.Request, body: bytes, there: asyncio.AbstractEventLoop) -> None:
        self._scope = _build_scope(request)
        self._body: bytes | None = body
        self._here = asyncio.get_running_loop()
        self._there = there
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._disconnected = asyncio.Event()
        self._running: Any = None

    def begin(self, application: Application) -> None:
        self._running = asyncio.run_coroutine_threadsafe(self._run(application), self._there)

    async def _run(self, application: Application) -> None:
        try:
            await application(self._scope, self._receive, self._send)
        finally:
            self._put(None)

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._put(message)

    def _put(self, message: Message | None) -> None:
        if not self._here.is_closed():
            self._here.call_soon_threadsafe(self._messages.put_nowait, message)

    async def start(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return the status and the headers."""
        message = await self._messages.get()
        if message is None:
            await asyncio.wrap_future(self._running)
            raise ConnectionError("the server ended the request without a response")
        return int(message["status"]), list(message["headers"])

    async def parts(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    def close(self) -> None:
        self._there.call_soon_threadsafe(self._disconnected.set)


def _build_scope(request: httpx.Request) -> Message:
    url = request.url
    path, _, query = url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": path,
        "query_string": query,
        "server": (url.host, url.port),
        "client": None,
        "root_path": "",
        "state": {},
        LOOPBACK: True,
    }


def _build_stream(exchange: _Exchange) -> Any:
    import httpx

    class ExchangeStream(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in exchange.parts():
                yield part

        async def aclose(self) -> None:
            exchange.close()

    return ExchangeStream()


def _closing(inner: Any, transport: Any) -> Any:
    import httpx

    class ClosingStream(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in inner:
                yield part

        async def aclose(self) -> None:
            await inner.aclose()
            await transport.aclose()

    return ClosingStream()
