"""The operator's own ASGI application: its lifespan and its requests.

It receives every path without a route, and callers are checked as for the routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from starlette.authentication import AuthCredentials
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.kernel.errors import PerdureError, TooLarge
from perdure.server.http.bodies import internal_error
from perdure.server.http.routes import Call, Route, RouteMatch, ServerProtocol

logger = logging.getLogger(__name__)

START_SECONDS = 30.0
STOP_SECONDS = 5.0
READS = frozenset({"GET", "HEAD", "OPTIONS"})
LABEL = "mounted"
FAILED = "lifespan.startup.failed"
USER = "langgraph_user"
"""Key in a request's scope of the user that custom auth has authenticated."""


class Mounted:
    """Serves an ASGI application, from its startup to its shutdown."""

    def __init__(self, application: ASGIApp, protocol: ServerProtocol, *, public: bool = False) -> None:
        self._application = application
        self._protocol = protocol
        self._running = False
        self._lifespan: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._answers: asyncio.Queue[Message] = asyncio.Queue()
        self._state: dict[str, Any] = {}
        self._routes = {
            reads: Route(
                method="GET" if reads else "POST",
                path=LABEL,
                handler=self._handle,
                protocol=protocol,
                scope=None if public else ("read" if reads else "write"),
                raw=True,
            )
            for reads in (True, False)
        }

    def match(self, method: str) -> RouteMatch | None:
        """Return the route for a path without a route; None while the application does not run."""
        return RouteMatch(self._routes[method in READS], {}) if self._running else None

    async def _handle(self, call: Call) -> Response:
        limit = call.app.settings.max_body_bytes
        length = call.request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise TooLarge(f"the body has {length} bytes; at most {limit} are taken")
        return MountedResponse(self._application, call, self._protocol, limit, self._state)

    # --- life -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Run the startup of the application. If it fails, log the error and don't serve the application."""
        self._lifespan = asyncio.create_task(self._live())
        self._events.put_nowait({"type": "lifespan.startup"})
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._answers.get()
        except TimeoutError:
            answer = {"type": FAILED, "message": f"no startup within {START_SECONDS:.0f} s"}
        self._running = answer["type"] != FAILED
        if not self._running:
            why = answer.get("message") or "its startup failed"
            logger.error("http.app does not start, and is not served: %s", why)
            self._lifespan.cancel()

    async def replace(self, application: ASGIApp) -> str | None:
        """Serve another application. Return a description of the change."""
        if application is self._application:
            return None
        await self.stop()
        self._application = application
        self._events, self._answers, self._state = asyncio.Queue(), asyncio.Queue(), {}
        await self.start()
        return "it is served anew" if self._running else "it does not start; see the log"

    async def _live(self) -> None:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self._state}
        try:
            await self._application(scope, self._events.get, self._answers.put)
        except Exception:
            if self._running:
                logger.exception("the lifespan of http.app ended with an error")
            else:
                # Many applications have no lifespan, and raise an error for its scope.
                logger.debug("http.app has no lifespan", exc_info=True)
        finally:
            self._answers.put_nowait({"type": "lifespan.over"})

    async def stop(self) -> None:
        lifespan, self._running = self._lifespan, False
        if lifespan is None:
            return
        self._events.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait((lifespan,), timeout=STOP_SECONDS)
        lifespan.cancel()
        await asyncio.gather(lifespan, return_exceptions=True)


class MountedResponse(Response):
    """The response of the application. Its status is known after the application has started to respond."""

    def __init__(
        self, application: ASGIApp, call: Call, protocol: ServerProtocol, limit: int, state: dict[str, Any]
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self.raw_headers = []
        self._application = application
        self._call = call
        self._left = limit
        self._state = state
        self._began = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded() -> Message:
            message = await receive()
            self._left -= len(message.get("body") or b"")
            if self._left < 0:
                raise ValueError("the body is too large")
            return message

        async def with_headers(message: Message) -> None:
            if self._left < 0 and not self._began:
                # The application answers the error that it got; its caller must get the reason instead.
                return
            if message["type"] == "http.response.start":
                self._began = True
                self.status_code = int(message["status"])
                message = {**message, "headers": self._all_headers(message.get("headers") or ())}
            await send(message)

        failure: Exception = RuntimeError("http.app ended without an answer")
        try:
            await self._application(self._scope(scope), bounded, with_headers)
        except Exception as error:  # noqa: BLE001 - the application is third-party code
            failure = error
            if self._began:
                self._log(error)
        if not self._began:
            too_large = TooLarge("the body is too large") if self._left < 0 else None
            await self._refused(too_large or failure)(scope, receive, send)

    def _refused(self, error: Exception) -> Response:
        """Build the response for an application that failed; the details belong in the log."""
        call = self._call
        if not isinstance(error, PerdureError):
            self._log(error)
            error = internal_error(call.request_id)
        self.status_code = error.http_status
        response = self._protocol.refuse(error, call.request_id, call.request)
        response.raw_headers = self._all_headers(response.raw_headers)
        return response

    def _log(self, error: Exception) -> None:
        logger.error("request %s failed in http.app", self._call.request_id, exc_info=error)

    def _all_headers(self, theirs: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the application's headers, plus ours that it has not set."""
        present = {name.lower() for name, _ in theirs}
        return [*theirs, *(header for header in self.raw_headers if header[0] not in present)]

    def _scope(self, scope: Scope) -> Scope:
        user = scope.get(USER)
        own: dict[str, Any] = {"state": dict(self._state)}
        if user is not None:
            own |= {"user": user, "auth": AuthCredentials(["authenticated", *user.permissions])}
        return {**scope, **own, **_below(scope, self._call.app.http.mount_prefix)}


def _below(scope: Scope, prefix: str) -> dict[str, Any]:
    """Return the scope's root path if the path begins with the project's mount prefix."""
    path: str = scope["path"]
    if not prefix or not path.startswith(prefix + "/"):
        return {}
    return {"root_path": scope.get("root_path", "") + prefix}
