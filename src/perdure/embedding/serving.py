"""A server of an embedded database: on a loopback port, or mounted in another web app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.kernel.errors import PerdureError, StorageClosed
from perdure.kernel.lifecycle import Component, Step, StopPhase
from perdure.runtime.app import App
from perdure.server.http.bodies import NATIVE, public_error
from perdure.server.http.connections import ConnectionLimits
from perdure.server.http.routes import STOPPING, Stopping
from perdure.server.http.server import HttpServer, HttpService, bind, drain_seconds
from perdure.server.table import build_application

LOOPBACK: Final = "127.0.0.1"


class ServedPort:
    """A loopback port, bound before the database is opened: the lock of a SQLite file names its URL."""

    def __init__(self, port: int) -> None:
        self._socket = bind(LOOPBACK, port)
        self.url = f"http://{LOOPBACK}:{self._socket.getsockname()[1]}"

    def build_server(self, app: App) -> Component:
        """Build the component that serves the app on this port in the running event loop."""
        limits = ConnectionLimits.of(app.settings)
        http = HttpServer(build_application(app), host=LOOPBACK, listening=self._socket, limits=limits)
        return HttpService(app, http, drain=drain_seconds(app.settings))

    def close(self) -> None:
        """Close the port; further calls do nothing."""
        self._socket.close()


class MountableApp:
    """An ASGI application for another web app to mount. It answers while its `Perdure` is open.

    Every caller needs a key or a token, unless the setting `insecure_no_auth` is on.
    """

    def __init__(self, find_app: Callable[[], App]) -> None:
        self._find_app = find_app
        self._built: tuple[App, ASGIApp] | None = None
        self._stopping: Stopping | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        scope = _below_mount(scope)
        try:
            application = self._find_application()
        except StorageClosed as error:
            await _refuse(error, scope, receive, send)
            return
        if self._stopping is None:
            self._stopping = Stopping()
        scope["state"] = {**scope.get("state", {}), STOPPING: self._stopping}
        await application(scope, receive, send)

    async def end_streams(self) -> None:
        """End endless responses before the database is closed."""
        if self._stopping is not None:
            self._stopping.set()
        self._stopping = self._built = None

    def stop_steps(self) -> dict[StopPhase, Step]:
        return {StopPhase.STREAMS: self.end_streams}

    async def start(self) -> None:
        """Do nothing: the other web app accepts the requests."""

    stop = end_streams

    def _find_application(self) -> ASGIApp:
        app = self._find_app()
        if self._built is None or self._built[0] is not app:
            self._built = app, build_application(app, closed=True)
        return self._built[1]

    async def _live(self, receive: Receive, send: Send) -> None:
        """Accept the lifespan of a server that serves only this app; the program itself opens `Perdure`."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})


def _below_mount(scope: Scope) -> Scope:
    """Return the scope with the path below the mount; frameworks differ in whether they remove its prefix."""
    root, path = scope.get("root_path", ""), scope.get("path", "")
    if not root or not f"{path}/".startswith(f"{root}/"):
        return dict(scope)
    raw, prefix = scope.get("raw_path") or b"", root.encode()
    below = raw[len(prefix) :] if raw.startswith(prefix) else b""
    return dict(scope, path=path[len(root) :] or "/", raw_path=below)


async def _refuse(error: PerdureError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    response = NATIVE.refuse(public_error(error, "closed"), "closed", Request(scope))
    await response(scope, receive, send)
