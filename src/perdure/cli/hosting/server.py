"""A server in the foreground: its settings, its store, its services, and a graceful shutdown."""

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

from perdure.agents.http_section import HttpSection, load_http
from perdure.agents.sections import load_auth, load_thread_ttl
from perdure.agents.store_section import ItemSetup, load_items
from perdure.cli.hosting.garbage import settle_garbage_collector
from perdure.cli.hosting.supervisor import READY
from perdure.cli.shell.output import warn
from perdure.kernel.background import new_loop
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, StartRefused
from perdure.langgraph.custom_auth import GraphAuth
from perdure.langgraph.loopback import InProcess, Loopback
from perdure.runtime.app import App
from perdure.runtime.components import Component, components_of
from perdure.runtime.local_secret import LocalSecret
from perdure.runtime.stores import open_configured, sqlite_file
from perdure.server.http.connections import ConnectionLimits
from perdure.server.http.server import HttpServer, bind
from perdure.server.table import application_of
from perdure.threads.records import Lifetime
from perdure.worker.registry import Agents

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[None]]


def settings_from(explicit: Mapping[str, Any], api_key_file: Path | None = None) -> Settings:
    """The settings; options of the command line win. An option that was not given is None."""
    given = {
        name: value
        for name, value in explicit.items()
        if value is not None and value is not False and value != []
    }
    if api_key_file is not None:
        # The processes of `serve --workers` inherit the environment.
        os.environ.pop("PERDURE_API_KEY", None)
        os.environ["PERDURE_API_KEY_FILE"] = str(api_key_file)
    return load_settings(given)


def listen(settings: Settings) -> socket.socket:
    """Bind the port; if it is in use, the error explains how to choose another."""
    try:
        return bind(settings.host, settings.port)
    except StartRefused as refusal:
        raise StartRefused(
            f"{refusal.message}. Choose another port with --port; 0 picks a free one"
        ) from None


def address_of(settings: Settings, listening: socket.socket) -> str:
    """The URL of a socket, as a client on this machine would write it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def open_app(settings: Settings, url: str | None = None) -> App:
    """The app for the database of the settings; `url` is the URL of its server."""
    options = {"served_at": url} if sqlite_file(settings.database_url) is not None else {}
    auth, items, http = auth_here(), items_here(), http_here()
    app = App(open_configured(settings, **options), settings, items, http)
    app.auth = auth
    threads = app.services.threads
    threads.policy = msgspec.structs.replace(threads.policy, lifetime=lifetime_here())
    return app


def lifetime_here() -> Lifetime | None:
    """The TTL of threads in the `langgraph.json` of this directory."""
    try:
        ttl = load_thread_ttl()
    except InvalidInput as error:
        raise StartRefused(error.message) from error
    return None if ttl.default_ttl is None else Lifetime(minutes=ttl.default_ttl, strategy=ttl.strategy)


def auth_here() -> GraphAuth | None:
    """The custom auth in the `langgraph.json` of this directory; an error in it refuses the start."""
    try:
        found = load_auth()
        return None if found is None else GraphAuth(found)
    except ModuleNotFoundError as error:
        raise StartRefused("custom auth needs langgraph_sdk: pip install 'perdure[langgraph]'") from error
    except InvalidInput as error:
        raise StartRefused(error.message) from error


def items_here() -> ItemSetup:
    """The settings of items in the `langgraph.json` of this directory; failures are printed."""
    setup = load_items()
    for failure in setup.failures:
        warn(failure)
    return setup


def http_here() -> HttpSection:
    """The sections `http` and `webhooks` in the `langgraph.json` of this directory; failures are printed."""
    section = load_http()
    for failure in section.failures:
        warn(failure)
    return section


def services_of(app: App, *, shared: bool = False, agents: Agents | None = None) -> list[Component]:
    """What runs along with the HTTP server; `shared` if other processes take the same ports."""
    components = components_of(app, agents or None)
    if app.settings.grpc_port is None:
        return components
    try:
        from perdure.server.otlp.grpc_server import GrpcServer
    except ModuleNotFoundError as error:
        raise InvalidInput("OTLP over gRPC needs grpcio: pip install 'perdure[grpc]'") from error
    return [*components, GrpcServer(app, shared=shared)]


def grpc_port_of(services: Sequence[Component]) -> int | None:
    """The port of the gRPC server, if there is one."""
    return next((int(each.port) for each in services if hasattr(each, "port")), None)


class Announcement:
    """Calls a function when the server is ready, with whether callers need a key."""

    def __init__(self, app: App, announce: Callable[[bool], None]) -> None:
        self._app = app
        self._announce = announce

    async def start(self) -> None:
        self._announce(await needs_key(self._app))

    async def stop(self) -> None:
        logger.info("stopping")


class Administration:
    """Lets the command on this machine in, by a secret in a file, while the server runs."""

    def __init__(self, app: App, url: str) -> None:
        self._app = app
        self._secret = LocalSecret(url)

    async def start(self) -> None:
        self._secret.publish()
        self._app.local_secret = self._secret.value

    async def stop(self) -> None:
        self._secret.remove()


class Lifeline:
    """A socket to the supervisor: reports that this process is ready, and ends it with the supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._connection.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(self._connection, READY)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await asyncio.get_running_loop().sock_recv(self._connection, 1)
        logger.warning("the supervisor has ended; stopping")
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
    return await app.services.authentication.is_closed()


async def check(settings: Settings) -> bool:
    """Check that a server can start on the database; gives whether callers need a key."""
    app = open_app(settings)
    try:
        await app.check_start()
        return await needs_key(app)
    finally:
        await app.close()


async def serve(
    app: App, listening: socket.socket, services: Sequence[Component], work: Work | None = None
) -> None:
    """Serve until a signal comes, or until `work` has ended; then close the store."""
    try:
        await app.check_start()
        # Fails here, with one line, if the database does not answer.
        await needs_key(app)
        loopback = Loopback(lambda: InProcess(application))
        application = application_of(app, [loopback, *services])
        limits = ConnectionLimits.of(app.settings)
        server = HttpServer(application, host=app.settings.host, listening=listening, limits=limits)
        settle_garbage_collector()
        if work is None:
            await server.serve()
        else:
            await _serve_during(server, work)
    finally:
        await app.close()


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
    """Run a server until it stops: SIGTERM exits with code 0, Ctrl-C with 130."""
    signal.signal(signal.SIGTERM, _exit)
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serving)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _exit(number: int, frame: object) -> None:
    """Called after the server has stopped, since it handles the signals while it serves."""
    sys.exit(0)


def check_process_count(settings: Settings) -> None:
    """Refuse several processes where only one may open the database."""
    if not settings.database_url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput(
            "more than one server process needs PostgreSQL: SQLite and memory belong to one process. "
            "Use --database postgresql://… or --workers 1"
        )
    if sys.platform == "win32":
        raise InvalidInput("more than one server process is not supported on Windows")
