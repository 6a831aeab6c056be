"""A server in the foreground: its settings, its store, its services, and a graceful end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from perdure.agents.sections import load_auth, load_thread_ttl
from perdure.agents.store_section import ItemSetup, load_items
from perdure.cli.hosting.supervisor import READY
from perdure.cli.shell.output import warn
from perdure.kernel.background import new_loop
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, StartRefused
from perdure.langgraph.custom_auth import GraphAuth
from perdure.runtime.app import App
from perdure.runtime.embedded_worker import EmbeddedWorker
from perdure.runtime.stores import open_configured, sqlite_file
from perdure.runtime.webhook_deliveries import Deliveries
from perdure.server.http.server import HttpServer, Service, bind, make_application
from perdure.threads.records import Lifetime
from perdure.worker.registry import Agents

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


def settings_from(explicit: Mapping[str, Any], api_key_file: Path | None = None) -> Settings:
    """The settings, where options of the command line win; None is an option that was not given."""
    given = {
        name: value
        for name, value in explicit.items()
        if value is not None and value is not False and value != []
    }
    if api_key_file is not None:
        # Workers, which inherit the environment, need it too.
        os.environ.pop("PERDURE_API_KEY", None)
        os.environ["PERDURE_API_KEY_FILE"] = str(api_key_file)
    return load_settings(given)


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
    options = {"served_at": url} if sqlite_file(settings.database_url) is not None else {}
    auth, items = auth_here(), items_here()
    app = App(open_configured(settings, **options), settings, items)
    app.auth = auth
    if app.threads is not None:
        app.threads.policy = msgspec.structs.replace(app.threads.policy, lifetime=lifetime_here())
    return app


def lifetime_here() -> Lifetime | None:
    """How long threads live, as the `langgraph.json` of this directory says."""
    try:
        ttl = load_thread_ttl()
    except InvalidInput as error:
        raise StartRefused(error.message) from error
    return None if ttl.default_ttl is None else Lifetime(minutes=ttl.default_ttl, strategy=ttl.strategy)


def auth_here() -> GraphAuth | None:
    """The custom auth that the `langgraph.json` of this directory names. What fails there lets nobody in."""
    try:
        found = load_auth()
        return None if found is None else GraphAuth(found)
    except ModuleNotFoundError as error:
        raise StartRefused("custom auth needs langgraph_sdk: pip install 'perdure[langgraph]'") from error
    except InvalidInput as error:
        raise StartRefused(error.message) from error


def items_here() -> ItemSetup:
    """How items are kept and found, as the `langgraph.json` of this directory says; what fails is told."""
    setup = load_items()
    for failure in setup.failures:
        warn(failure)
    return setup


def services_of(app: App, *, shared: bool = False, agents: Agents | None = None) -> list[Service]:
    """What runs along with the HTTP server; `shared` if other processes take the same ports."""
    services: list[Service] = [Deliveries(app)]
    services.append(app.services.schedule_timer)
    if agents:
        services.append(EmbeddedWorker(app, agents))
    if app.settings.grpc_port is None:
        return services
    try:
        from perdure.server.otlp.grpc_server import GrpcServer
    except ModuleNotFoundError as error:
        raise InvalidInput("OTLP over gRPC needs grpcio: pip install 'perdure[grpc]'") from error
    return [*services, GrpcServer(app, shared=shared)]


def grpc_port_of(services: Sequence[Service]) -> int | None:
    """The port that gRPC has got, if it is offered."""
    return next((int(each.port) for each in services if hasattr(each, "port")), None)


class Announcement:
    """Tells somebody that the server answers now, and whether callers need a key."""

    def __init__(self, app: App, tell: Callable[[bool], None]) -> None:
        self._app = app
        self._tell = tell

    async def start(self) -> None:
        self._tell(await needs_key(self._app))

    async def stop(self) -> None:
        logger.info("stopping")


class Lifeline:
    """A line to the process that started this one: it hears when this one answers, and is never outlived."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._line.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(self._line, READY)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await asyncio.get_running_loop().sock_recv(self._line, 1)
        logger.warning("the supervisor is gone")
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


async def needs_key(app: App) -> bool:
    """Whether a caller needs a key or a token."""
    settings = app.settings
    if settings.insecure_no_auth:
        return False
    if settings.api_key is not None or app.auth is not None:
        return True
    return app.access is not None and await app.access.is_closed()


async def check(settings: Settings) -> bool:
    """Open the database and see whether a server may start; gives whether callers need a key."""
    app = open_app(settings)
    try:
        await app.check_start()
        return await needs_key(app)
    finally:
        await app.store.close()


async def host(
    app: App, listening: socket.socket, services: Sequence[Service], work: Work | None = None
) -> None:
    """Serve until a signal comes, or until `work` has ended if there is any; then close the store."""
    try:
        await app.check_start()
        # A database that does not answer is said here, in one line.
        await needs_key(app)
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
    await asyncio.wait((serving, working), return_when=asyncio.FIRST_COMPLETED)
    ended = working.done()
    server.stop()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await serving
    if ended:
        working.result()


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Run a server to its end: SIGTERM ends it with code 0, Ctrl-C with 130."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serving)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _leave(number: int, frame: object) -> None:
    """Reached once the server has stopped, since it keeps signals to itself while it serves."""
    sys.exit(0)


def refuse_workers(settings: Settings) -> None:
    """Only a database that several processes may open can be served by several."""
    if not settings.database_url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput(
            "several workers need PostgreSQL: a SQLite file belongs to one process, and so does a store in "
            "memory. Give --database postgresql://…, or leave --workers at 1"
        )
    if sys.platform == "win32":
        raise InvalidInput("several workers share a socket in a way that Windows does not have")
