"""A server in the foreground: its settings, its store, its services, and a graceful end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, StartRefused
from perdure.protocols.http.server import HttpServer, Service, bind, make_application
from perdure.runtime.app import App
from perdure.runtime.stores import open_configured

logger = logging.getLogger(__name__)

MEMORY = ("memory:", "memory://", ":memory:")
Work = Callable[[], Awaitable[None]]


def settings_from(explicit: Mapping[str, Any], api_key_file: Path | None = None) -> Settings:
    """The settings, where options of the command line win; None is an option that was not given."""
    given = {name: value for name, value in explicit.items() if value not in (None, False, [], ())}
    environment = dict(os.environ)
    if api_key_file is not None:
        environment.pop("PERDURE_API_KEY", None)
        environment["PERDURE_API_KEY_FILE"] = str(api_key_file)
    return load_settings(given, environment=environment)


def is_sqlite(url: str) -> bool:
    return url not in MEMORY and not url.startswith(("postgresql://", "postgres://"))


def listen(settings: Settings) -> socket.socket:
    """Take the port; if it is taken, say how to choose another."""
    try:
        return bind(settings.host, settings.port)
    except StartRefused as refusal:
        raise StartRefused(f"{refusal.message}. Choose another with --port; 0 takes any free one") from None


def address_of(settings: Settings, listening: socket.socket) -> str:
    """The URL of a socket, as a client on this machine would write it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def open_app(settings: Settings, url: str | None = None) -> App:
    """The app of the database that the settings name; `url` is where it will be served."""
    options = {"url": url} if is_sqlite(settings.database_url) else {}
    return App(open_configured(settings, **options), settings)


class Announcement:
    """Tells somebody that the server answers now."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    async def start(self) -> None:
        self._tell()

    async def stop(self) -> None:
        logger.info("stopping")


async def host(app: App, listening: socket.socket, services: Sequence[Service], work: Work | None = None) -> None:
    """Serve until a signal comes, or until `work` has ended if there is any; then close the store."""
    try:
        await app.check_start()
        application = make_application(app, services=services)
        server = HttpServer(application, host=app.settings.host, listening=listening)
        if work is None:
            await server.serve()
        else:
            await _serve_during(server, work)
    finally:
        await app.store.close()


async def _serve_during(server: HttpServer, work: Work) -> None:
    serving, working = asyncio.ensure_future(server.serve()), asyncio.ensure_future(work())
    try:
        await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            server.stop()
        await serving
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def run(serving: Awaitable[None]) -> None:
    """Run a server to its end: SIGTERM ends it with code 0, Ctrl-C with 130."""
    signal.signal(signal.SIGTERM, _leave)
    runner = _runner()
    with runner:
        runner.run(_as_coroutine(serving))


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _as_coroutine(serving: Awaitable[None]) -> None:
    await serving


def _leave(number: int, frame: object) -> None:
    """Reached once the server has stopped, since it keeps signals to itself while it serves."""
    sys.exit(0)


def refuse_workers(settings: Settings) -> None:
    """Only a database that several processes may open can be served by several."""
    if is_sqlite(settings.database_url) or settings.database_url in MEMORY:
        raise InvalidInput(
            "several workers need PostgreSQL: a SQLite file belongs to one process, and a store in memory lives "
            "in one. Give --database postgresql://…, or leave --workers at 1"
        )
    if sys.platform == "win32":
        raise InvalidInput("several workers share a socket in a way that Windows does not have")


async def watch_lifeline(lifeline: socket.socket) -> None:
    """Stop this process when whoever started it is gone."""
    lifeline.setblocking(False)
    with suppress(OSError):
        await asyncio.get_running_loop().sock_recv(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)
