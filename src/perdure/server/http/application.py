"""The ASGI application: authenticate the caller, find the route, read the body, call the handler."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from perdure.agents.sections import Cors
from perdure.kernel.errors import (
    Forbidden,
    InvalidInput,
    PerdureError,
    StorageClosed,
    UnknownRoute,
    UnsupportedMedia,
)
from perdure.langgraph.loopback import LOOPBACK
from perdure.runtime.app import ANONYMOUS, StoreApp
from perdure.runtime.components import Component
from perdure.server.http import bodies
from perdure.server.http.bodies import NATIVE, internal_error, public_error
from perdure.server.http.gate import ANY, Origins, RequestGate, Sender
from perdure.server.http.long_responses import CallerWatch, DisconnectWatch
from perdure.server.http.mounted import Mounted, MountedResponse
from perdure.server.http.routes import (
    STOPPING,
    STOPS,
    Admitting,
    Call,
    Readmit,
    Route,
    RouteMatch,
    RouteTable,
    Stopping,
)
from perdure.service.callers import Caller, allows

logger = logging.getLogger(__name__)

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
EXPOSED = ("X-Request-ID", "X-Pagination-Total", "X-Pagination-Next", "Location", "Content-Location")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
COUNTED_METHODS = frozenset({*METHODS, "HEAD", "OPTIONS"})
OTHER_METHOD = "other"
MAX_PATH = 8192
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROCESS = secrets.token_hex(4)
_numbers = itertools.count(1)


class _QuickHeaders(Headers):
    """Headers of a request. If a header is repeated, the first one counts."""

    def __init__(self, scope: Connection) -> None:
        super().__init__(scope=scope)
        self._first = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self._list)
        }

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def get(self, key: str, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)


class CallerLeft(Exception):
    """The client has disconnected."""


class Application:
    """Handles requests by the route table."""

    def __init__(
        self,
        app: StoreApp,
        routes: tuple[Route, ...],
        components: Sequence[Component] = (),
        mounted: Mounted | None = None,
        *,
        closed: bool = False,
    ) -> None:
        self.app = app
        self._mounted = mounted
        self.table = RouteTable(routes)
        self._gate = RequestGate(app, closed=closed)
        own = () if mounted is None else (mounted,)
        self._components: Sequence[Component] = (*components, *own)
        self._prefix = app.http.mount_prefix.split("/")[1:]
        self._counters: dict[tuple[str, str, int], tuple[Any, Any]] = {}
        self._stack = AsyncExitStack()

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            request._headers = _QuickHeaders(scope)
            await self._answer(request, send)
        elif scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, request: Request, send: Send) -> None:
        started = time.perf_counter()
        request_id = _request_id(request.headers.get("x-request-id"))
        label = "unknown"
        try:
            match = self._match(request)
            label = match.route.path if isinstance(match, RouteMatch) else label
            response = await self._respond(request, match, request_id)
        except CallerLeft:
            self._count(request.method, label, 499, started)
            return
        _complete(response, request_id)
        if isinstance(response, MountedResponse):
            await response(request.scope, request.receive, send)
            self._count(request.method, label, response.status_code, started)
            return
        self._count(request.method, label, response.status_code, started)
        await response(request.scope, request.receive, send)

    def _match(self, request: Request) -> RouteMatch | PerdureError:
        try:
            return self._find(request.method, _steps(request.scope))
        except UnknownRoute as error:
            mounted = None if self._mounted is None else self._mounted.match(request.method)
            return error if mounted is None else mounted
        except PerdureError as error:
            return error

    def _find(self, method: str, steps: list[str]) -> RouteMatch:
        """Return the route of a path, which may begin with the project's mount prefix."""
        try:
            return self.table.find(method, steps)
        except UnknownRoute:
            below = len(self._prefix)
            if not below or steps[:below] != self._prefix:
                raise
            return self.table.find(method, steps[below:] or [""])

    async def _respond(self, request: Request, match: RouteMatch | PerdureError, request_id: str) -> Response:
        protocol = (
            match.route.protocol
            if isinstance(match, RouteMatch)
            else self.table.find_protocol(request.url.path)
        )
        try:
            return await self._handle(request, match, request_id)
        except PerdureError as error:
            return protocol.refuse(public_error(error, request_id), request_id, request)
        except CallerLeft:
            raise
        except Exception:
            # Details belong in the log, not in the response.
            logger.exception("request %s failed: %s %s", request_id, request.method, request.url.path)
            return protocol.refuse(internal_error(request_id), request_id, request)

    async def _handle(self, request: Request, match: RouteMatch | PerdureError, request_id: str) -> Response:
        if LOOPBACK not in request.scope:
            self._gate.check_host(request.headers.get("host"))
        if isinstance(match, PerdureError):
            # An unauthenticated caller must not learn which paths exist.
            await self._gate.admit(request.headers.get, _sender(request))
            raise match
        caller, readmit = await self._admit(request, match.route)
        call = Call(request, self.app, caller, match.path, request_id, readmit, self.table.routes)
        await self._decode(call, match.route)
        answer = await self._run(call, match.route)
        if isinstance(answer, Response):
            return answer
        return Response(bodies.encode(answer), match.route.status, media_type=match.route.answer_form)

    async def _admit(self, request: Request, route: Route) -> tuple[Caller, Readmit | None]:
        """Return the caller, and a function that later checks whether it is still admitted."""
        if route.scope is None:
            return Caller(ANONYMOUS, frozenset(), self.app.namespace, ()), None
        if LOOPBACK in request.scope:
            own = self.app.namespace
            return Caller(LOOPBACK, frozenset({"read", "write"}), own, (own,)), None
        caller, readmit = await self._authenticate(request, route)
        if not allows(caller.scopes, route.scope):
            raise Forbidden(f"this needs a token with the scope {route.scope!r}")
        return caller, readmit

    async def _authenticate(self, request: Request, route: Route) -> tuple[Caller, Readmit | None]:
        """Authenticate the caller, by the route's protocol if that has its own authentication."""
        if self.app.auth is not None and isinstance(route.protocol, Admitting):
            caller = await route.protocol.admit(request, self.app)
            if caller is not None:
                self._gate.count(caller)
                # The operator's handler decides once per request.
                return caller, None
        opens_page = route.opens_in_tab and _opens_tab(request)
        # Clients of the other protocols send a token.
        cookie_for = request.method if route.protocol is NATIVE else None
        caller = await self._gate.admit(
            request.headers.get, _sender(request), opens_page=opens_page, cookie_for=cookie_for
        )
        return caller, partial(self._gate.readmit, request.headers.get, cookie_for=cookie_for)

    async def _decode(self, call: Call, route: Route) -> None:
        if route.query is not None:
            call.query = bodies.decode_query(call.request.query_params, route.query)
        if route.raw:
            return
        if route.body is None:
            if _brings_body(call.request):
                _check_form(call.request, route)
            return
        settings = self.app.settings
        limit = route.max_body or settings.max_body_bytes
        unpacked_limit = max(limit, settings.max_decompressed_bytes)
        data = await bodies.read(call.request, limit, unpacked_limit, settings.body_timeout)
        if route.body is bytes:
            call.body = data
            return
        if data:
            _check_form(call.request, route)
        call.body = bodies.decode_body(data, route.body, optional=route.body_optional)

    async def _run(self, call: Call, route: Route) -> Any:
        if not route.ends_with_caller:
            return await (self._read(call, route) if route.scope == "read" else route.handler(call))
        work = asyncio.ensure_future(route.handler(call))
        caller = CallerWatch(call.request.receive, call.stopping.future, at_once=True)
        try:
            await caller.wait(work)
            if work.done():
                return work.result()
            raise CallerLeft if caller.has_left else StorageClosed(STOPS)
        finally:
            await caller.end(work)

    async def _read(self, call: Call, route: Route) -> Any:
        """Run a read, and cancel it when its client disconnects."""
        watch = DisconnectWatch(call.request.receive)
        try:
            return await route.handler(call)
        except asyncio.CancelledError:
            if not watch.left:
                raise
            raise CallerLeft from None
        finally:
            watch.stop()

    def _count(self, method: str, label: str, status: int, started: float) -> None:
        # Callers can invent methods, and the server keeps every label until it stops.
        method = method if method in COUNTED_METHODS else OTHER_METHOD
        key = (method, label, status)
        counters = self._counters.get(key)
        if counters is None:
            metrics = self.app.metrics
            counters = (metrics.requests.labels(*key), metrics.seconds.labels(method, label))
            self._counters[key] = counters
        counters[0].inc()
        counters[1].observe(time.perf_counter() - started)

    # --- life -------------------------------------------------------------------------------------------

    async def _live(self, scope: Connection, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[STOPPING] = Stopping()
        await receive()
        try:
            await self._start()
        except PerdureError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stack.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        await self.app.check_start()
        async with AsyncExitStack() as stack:
            for component in self._components:
                await component.start()
                stack.push_async_callback(component.stop)
            self._stack = stack.pop_all()


def _request_id(given: str | None) -> str:
    if given and _REQUEST_ID.fullmatch(given):
        return given
    return f"{_PROCESS}{next(_numbers):08x}"


def _complete(response: Response, request_id: str) -> None:
    """Add the headers of every response that the handler has not set."""
    headers = response.raw_headers
    present = {name for name, _ in headers}
    headers += [header for header in _RAW_HEADERS if header[0] not in present]
    headers.append((b"x-request-id", request_id.encode()))


def _sender(request: Request) -> Sender:
    peer = request.client.host if request.client else "local"
    return Sender(peer, request.headers.getlist)


def _steps(scope: Connection) -> list[str]:
    """Return the segments of the path. Unquote them after the split, because an id may contain a slash."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    raw = raw.partition(b"?")[0]
    if len(raw) > MAX_PATH:
        raise InvalidInput("the path is too long")
    try:
        steps = [unquote_to_bytes(step).decode() for step in raw.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise InvalidInput("the path is not UTF-8") from None
    if any("\0" in step for step in steps):
        raise InvalidInput("the path must not contain NUL characters")
    return steps


def _opens_tab(request: Request) -> bool:
    """Return whether a browser sent the request to show the response as a page."""
    header = request.headers.get
    navigates = (header("sec-fetch-mode"), header("sec-fetch-dest")) == ("navigate", "document")
    return navigates and request.method == "GET"


def _brings_body(request: Request) -> bool:
    header = request.headers.get
    return header("content-length", "0") != "0" or header("transfer-encoding") is not None


def _check_form(request: Request, route: Route) -> None:
    """Refuse a body with another or no content type, because any web page may send such a body."""
    form = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if form not in ("application/json", route.body_form) and not form.endswith("+json"):
        raise UnsupportedMedia(f"the body needs the Content-Type {route.body_form}, not {form[:100]!r}")


def make_application(
    app: StoreApp,
    routes: tuple[Route, ...],
    components: Sequence[Component] = (),
    mounted: Mounted | None = None,
    *,
    closed: bool = False,
) -> ASGIApp:
    """Build the application for a route table, and for an application of the operator if there is one.

    If it is `closed`, a caller needs a key or a token even where none exists.
    """
    application = Application(app, routes, components, mounted, closed=closed)
    cors = app.http.cors or Cors()
    origins = Origins(app.settings.cors_allow_origins, cors)
    if origins.none:
        return application
    return CORSMiddleware(
        application,
        allow_origins=[ANY] if origins.any else [],
        allow_origin_regex=None if origins.any else origins.pattern.pattern,
        allow_methods=METHODS if cors.allow_methods is None else cors.allow_methods,
        allow_headers=[ANY] if cors.allow_headers is None else cors.allow_headers,
        allow_credentials=cors.allow_credentials and not origins.any,
        expose_headers=(*EXPOSED, *cors.expose_headers),
        max_age=cors.max_age,
    )


__all__ = ["NATIVE", "Application", "make_application"]
