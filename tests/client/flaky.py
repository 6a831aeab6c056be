"""A proxy on loopback that counts requests and loses some of them, as configured."""

from __future__ import annotations

import asyncio
import io
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

HEALTH = "/v1/agl/health"
LOST_AFTER = "the answer is lost after the work is done"
LOST_BEFORE = "the connection is cut before anything is done"
TOO_LATE = "the answer comes too late, after the work is done"
REFUSED = "the proxy says 503 and passes nothing on"
BUSY = "408, and nothing is done"
FAULTS = (LOST_AFTER, LOST_BEFORE, TOO_LATE, REFUSED, BUSY)
PERHAPS_DONE = (LOST_AFTER, LOST_BEFORE, TOO_LATE, REFUSED)


class FlakyServer:
    """Forwards requests to a server; each waiting fault affects the next request."""

    def __init__(self, behind: str = "") -> None:
        self.behind = behind
        self.faults: deque[str] = deque()
        self.ill = 0
        """Number of next health probes that fail."""
        self.requests: list[tuple[str, str]] = []
        self.keys: list[str | None] = []
        self.answers: deque[web.Response] = deque()
        """Prepared responses that replace those of the server."""
        self.pass_on: Callable[[web.BaseRequest], Awaitable[web.Response]] = self._ask
        self._released = asyncio.Event()

    @property
    def counts(self) -> Counter[str]:
        """Count requests by path, without probes."""
        return Counter(path for _, path in self.requests if path != HEALTH)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        self.keys.append(request.headers.get("Idempotency-Key"))
        if request.path == HEALTH:
            return self._health()
        fault = self.faults.popleft() if self.faults else None
        if fault == REFUSED:
            return web.Response(status=503, text="<html>no upstream</html>")
        if fault == BUSY:
            return web.Response(status=408)
        if fault == LOST_BEFORE:
            return self._cut(request)
        answer = self.answers.popleft() if self.answers else await self.pass_on(request)
        if fault == LOST_AFTER:
            return self._cut(request)
        if fault == TOO_LATE:
            await self._released.wait()
        return answer

    def _health(self) -> web.Response:
        if self.ill:
            self.ill -= 1
            return web.Response(status=503)
        return web.json_response({"status": "ok"})

    def _cut(self, request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _ask(self, request: web.BaseRequest) -> web.Response:
        headers = {
            name: value for name, value in request.headers.items() if name not in ("Host", "Content-Length")
        }
        # Read from the stream, which has no limit of its own.
        data = io.BytesIO(await request.content.read())
        url = self.behind + request.raw_path
        async with self._session.request(request.method, url, data=data, headers=headers) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )
