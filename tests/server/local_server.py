"""One HTTP server for the applications of many tests, because uvicorn takes 0.25 s to end."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.kernel.errors import StartRefused
from perdure.server.http.routes import STOPPING
from perdure.server.http.server import STOP_SECONDS, HttpServer

T = TypeVar("T")


class _Lifespan:
    """An application between its start and its end."""

    def __init__(self, application: ASGIApp) -> None:
        self.application = application
        self.state: dict[str, Any] = {}
        self.requests: set[asyncio.Task[Any]] = set()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
        self._messages.put_nowait({"type": "lifespan.startup"})
        running = self.application(scope, self._messages.get, self._answers.put)
        self._task = asyncio.ensure_future(running)
        answer = await self._answers.get()
        if answer["type"] == "lifespan.startup.failed":
            await self._task
            raise StartRefused(answer["message"])

    async def stop(self) -> None:
        """Finish running requests, then end, as the server does."""
        assert self._task is not None
        if STOPPING in self.state:
            self.state[STOPPING].set()
        if self.requests:
            _, late = await asyncio.wait(self.requests, timeout=STOP_SECONDS)
            for request in late:
                request.cancel()
        self._messages.put_nowait({"type": "lifespan.shutdown"})
        await self._task


class LocalServer:
    """Serves one application after another on one port, in its own thread."""

    def __init__(self) -> None:
        self._served: _Lifespan | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = HttpServer(self._answer)
        self._server.start()
        self.url = self._server.url

    async def mount(self, application: ASGIApp) -> None:
        lifespan = await self._there(self._begin(application))
        self._served = lifespan

    async def unmount(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            await self._there(served.stop())

    def close(self) -> None:
        self._server.stop()

    async def _begin(self, application: ASGIApp) -> _Lifespan:
        lifespan = _Lifespan(application)
        await lifespan.start()
        return lifespan

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's event loop."""
        assert self._loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._loop = asyncio.get_running_loop()
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        served, task = self._served, asyncio.current_task()
        assert served is not None, "a request came after the test"
        assert task is not None
        served.requests.add(task)
        try:
            await served.application({**scope, "state": dict(served.state)}, receive, send)
        finally:
            served.requests.discard(task)


_idle: list[LocalServer] = []


@asynccontextmanager
async def serving_locally(application: ASGIApp) -> AsyncIterator[str]:
    """Serve an application, and yield the URL."""
    server = _idle.pop() if _idle else await asyncio.to_thread(LocalServer)
    try:
        await server.mount(application)
        try:
            yield server.url
        finally:
            await server.unmount()
    finally:
        _idle.append(server)


@atexit.register
def _close() -> None:
    for server in _idle:
        server.close()
