"""The HTTP server: uvicorn on a socket that is bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.kernel.background import new_loop
from perdure.kernel.config import Settings
from perdure.kernel.errors import StartRefused
from perdure.kernel.lifecycle import Step, StopPhase
from perdure.runtime.app import StoreApp
from perdure.runtime.tls import Tls
from perdure.server.http.application import Application as Application
from perdure.server.http.application import make_application as make_application
from perdure.server.http.connections import ConnectionLimits, ServerConnections
from perdure.server.http.routes import STOPPING, Stopping

START_SECONDS = 10.0
STOP_SECONDS = 5
GRACE_SECONDS = 1
"""Time for requests that arrive while accepted ones are finished."""
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes any free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StartRefused(f"the server cannot listen on {host} port {port}: {reason}") from None
    bound.set_inheritable(True)
    return bound


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on this port."""
    try:
        bind(host, port).close()
    except StartRefused:
        return False
    return True


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a new event loop, the fast one if it is installed."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main)


class _Server(uvicorn.Server):
    """uvicorn, except that endless responses are ended before it waits for all responses.

    The owner of the process handles signals.
    """

    def __init__(self, config: uvicorn.Config, accepting: asyncio.Event) -> None:
        super().__init__(config)
        self._accepting = accepting

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._accepting.set()

    def end_streams(self) -> None:
        stopping: Stopping | None = self.lifespan.state.get(STOPPING)
        if stopping is not None:
            stopping.set()

    async def finish_requests(self, seconds: float) -> None:
        """Wait for the requests accepted so far. Other requests are still accepted and answered."""
        for connection in list(self.server_state.connections):
            # This closes an idle connection, and any other one after its response.
            connection.shutdown()
        accepted = set(self.server_state.tasks)
        if accepted:
            await asyncio.wait(accepted, timeout=seconds)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.end_streams()
        await super().shutdown(sockets)


class HttpServer:
    """Serves an application, in a separate thread or in the caller's event loop."""

    def __init__(
        self,
        application: ASGIApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        listening: socket.socket | None = None,
        limits: ConnectionLimits | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._application = application
        self._tls = tls
        self._limits = limits or ConnectionLimits.of(Settings())
        self._host = host
        self.port = port
        """The port that it listens on. It stays the same after the first start."""
        self._socket = listening
        self.accepting = asyncio.Event()
        """Set while the server accepts requests."""
        self._failure = ""
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def thread(self) -> threading.Thread | None:
        """The server's own thread, while it runs in one."""
        return self._thread

    def start(self) -> int:
        """Serve in a thread. Return the port when the server accepts requests."""
        server, bound = self._make()
        self._thread = threading.Thread(
            target=run, args=(self._serve(server, bound),), name="perdure-http", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not server.started and self._thread.is_alive() and time.monotonic() < deadline:
            # uvicorn signals its start only by an attribute.
            time.sleep(0.001)
        if not server.started:
            self.stop()
            raise StartRefused(self._failure or f"the server did not start up within {START_SECONDS:.0f} s")
        return self.port

    async def serve(self) -> None:
        """Serve in this event loop until `stop` ends it."""
        server, bound = self._make()
        try:
            await self._serve(server, bound)
        finally:
            self._forget()
        if not server.started:
            raise StartRefused(self._failure or "the server was stopped before it had started")

    def end_streams(self) -> None:
        """End the endless responses."""
        if self._server is not None:
            self._server.end_streams()

    async def finish_requests(self, seconds: float) -> None:
        """Answer accepted requests for at most `seconds`; the server keeps listening.

        Requests accepted in the meantime get a short time after that.
        """
        if self._server is not None:
            self._server.config.timeout_graceful_shutdown = GRACE_SECONDS
            await self._server.finish_requests(seconds)

    async def _serve(self, server: uvicorn.Server, bound: socket.socket) -> None:
        # uvicorn exits the process if the start fails; here the caller decides about that.
        with contextlib.suppress(SystemExit):
            await server.serve([bound])

    def stop(self) -> None:
        """Finish accepted requests, then stop."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS * 2)
            self._forget()

    def leave(self) -> None:
        """Close the port in a forked process, because it belongs to the parent."""
        if self._socket is not None:
            os.close(self._socket.detach())
        self._socket = self._server = self._thread = None

    def _make(self) -> tuple[_Server, socket.socket]:
        if self._socket is None:
            self._socket = bind(self._host, self.port)
        self.port = int(self._socket.getsockname()[1])
        self._failure = ""
        config = uvicorn.Config(
            self._run,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=cast(int, self._limits.keep_alive_timeout),
            timeout_graceful_shutdown=STOP_SECONDS,
            loop="auto",
            http=cast(type[asyncio.Protocol], ServerConnections(self._limits).protocol),
            ws="none",
            lifespan="on",
            interface="asgi3",
        )
        config.load()
        config.ssl = None if self._tls is None else self._tls.context
        self._server = _Server(config, self.accepting)
        return self._server, self._socket

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, and keep the error of a failed startup for the caller of `start`."""
        if scope["type"] != "lifespan":
            return await self._application(scope, receive, send)

        async def send_noting_failure(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                self._failure = message["message"]
            await send(message)

        return await self._application(scope, receive, send_noting_failure)

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._server = self._thread = None
        self.accepting.clear()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def drain_seconds(settings: Settings) -> float:
    """Return how long requests have at a shutdown: half of the time that running runs do not need."""
    return max((settings.seconds_to_stop - settings.shutdown_grace_period) / 2, 1.0)


class HttpService:
    """The HTTP server of a process, in its event loop. It listens until its requests are answered."""

    def __init__(self, app: StoreApp, server: HttpServer, *, drain: float) -> None:
        self._app = app
        self._server = server
        self._drain = drain
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve())
        accepting = asyncio.create_task(self._server.accepting.wait())
        try:
            await asyncio.wait((self._serving, accepting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            accepting.cancel()
        if self._serving.done():
            self._serving.result()

    async def ended(self) -> None:
        """Wait until the server ends by itself, which is an error."""
        if self._serving is not None:
            await asyncio.wait((self._serving,))
            self._serving.result()
            raise StartRefused("the HTTP server has ended")

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {
            StopPhase.ANNOUNCE: self._announce,
            StopPhase.STREAMS: self._end_streams,
            StopPhase.REQUESTS: self.stop,
        }

    async def _announce(self) -> None:
        self._app.stopping = True

    async def _end_streams(self) -> None:
        self._server.end_streams()

    async def stop(self) -> None:
        """Answer accepted requests, then stop listening."""
        serving, self._serving = self._serving, None
        if serving is None or serving.done():
            return
        try:
            await self._server.finish_requests(self._drain)
        finally:
            self._server.stop()
        await asyncio.wait((serving,))
