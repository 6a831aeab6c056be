"""A server in the foreground: settings, store, services, and graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from perdure.agents.sections import HttpSection, ItemSetup, load_auth, load_http, load_items, load_thread_ttl
from perdure.cli.hosting import logs
from perdure.cli.hosting.supervisor import READY
from perdure.cli.shell.output import warn
from perdure.kernel.background import new_loop
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, StartRefused, error_text
from perdure.kernel.lifecycle import Component, InPhase, Step, StopPhase, settle_garbage_collector
from perdure.langgraph.custom_auth import GraphAuth
from perdure.langgraph.loopback import InProcess, Loopback
from perdure.runtime.app import App
from perdure.runtime.components import add_handlers, build_components
from perdure.runtime.private_files import LocalSecret
from perdure.runtime.process import ServiceProcess, Work
from perdure.runtime.stores import StoreOptions, open_configured, sqlite_file
from perdure.server.http.connections import ConnectionLimits
from perdure.server.http.server import HttpServer, HttpService, bind, drain_seconds
from perdure.server.table import build_application
from perdure.threads.records import Lifetime
from perdure.worker.registry import Agents

if TYPE_CHECKING:
    from perdure.server.grpc.server import GrpcServer

logger = logging.getLogger(__name__)

EXIT_SECONDS = 2.0
"""Maximum seconds for the interpreter to end after everything was stopped."""
GRPC_PACKAGES = {"grpc_health": "grpcio-health-checking", "grpc_reflection": "grpcio-reflection"}
"""Packages that gRPC needs besides grpcio, by import name."""
EXIT_CODES: dict[int | None, int] = {2: 130, 1: 129}
"""Exit codes after Ctrl-C, and after the terminal was closed; SIGTERM exits with 0."""


def settings_from(explicit: Mapping[str, Any], api_key_file: str | None = None) -> Settings:
    """Load the settings; options of the command line have precedence. None means not given."""
    given = {
        name: value
        for name, value in explicit.items()
        if value is not None and value is not False and value != []
    }
    if api_key_file is not None:
        # The processes of `serve --workers` inherit the environment.
        os.environ.pop("PERDURE_API_KEY", None)
        os.environ["PERDURE_API_KEY_FILE"] = api_key_file
    return load_settings(given)


def listen(settings: Settings, *, any_port: bool = False) -> socket.socket:
    """Bind the port. If it is in use, take a free one or explain how to choose another."""
    try:
        return bind(settings.host, settings.port)
    except StartRefused as refusal:
        if any_port:
            return bind(settings.host, 0)
        raise StartRefused(
            f"{refusal.message}. Choose another port with --port; 0 picks a free one"
        ) from None


def build_url(settings: Settings, listening: socket.socket) -> str:
    """Build the URL of a socket for a client on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
    port = listening.getsockname()[1]
    scheme = "http" if settings.tls_cert_file is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def open_app(settings: Settings, url: str | None = None, place: str | os.PathLike[str] = ".") -> App:
    """Open the app for the database of the settings; `url` is the URL of its server.

    `place` is the directory of the project's `langgraph.json`, or that file.
    """
    options: StoreOptions = {"served_at": url} if sqlite_file(settings.database_url) is not None else {}
    auth, items, http = auth_here(place), items_here(place), http_here(place)
    app = App(open_configured(settings, **options), settings, items, http, lifetime_here(place))
    app.auth = auth
    return app


def lifetime_here(place: str | os.PathLike[str] = ".") -> Lifetime | None:
    """Load the TTL of threads from the `langgraph.json` of a directory."""
    try:
        ttl = load_thread_ttl(place)
    except InvalidInput as error:
        raise StartRefused(error.message) from error
    return None if ttl.default_ttl is None else Lifetime(minutes=ttl.default_ttl, strategy=ttl.strategy)


def auth_here(place: str | os.PathLike[str] = ".") -> GraphAuth | None:
    """Load custom auth from the `langgraph.json` of a directory; an error refuses the start."""
    try:
        auth = load_auth(place)
        return None if auth is None else GraphAuth(auth)
    except ModuleNotFoundError as error:
        raise StartRefused("custom auth needs langgraph_sdk: pip install 'perdure[langgraph]'") from error
    except InvalidInput as error:
        raise StartRefused(error.message) from error


def items_here(place: str | os.PathLike[str] = ".") -> ItemSetup:
    """Load the item settings from the `langgraph.json` of a directory; failures are printed."""
    setup = load_items(place)
    for failure in setup.failures:
        warn(failure)
    return setup


def http_here(place: str | os.PathLike[str] = ".") -> HttpSection:
    """Load the sections `http` and `webhooks` of a directory's `langgraph.json`; failures are printed."""
    section = load_http(place)
    for failure in section.failures:
        warn(failure)
    return section


def build_services(
    app: App,
    *,
    shared: bool = False,
    agents: Agents | None = None,
    without_agents: bool = False,
    further_ports: Sequence[int] = (),
    any_grpc_port: bool = False,
) -> list[Component]:
    """Build the components that run with the HTTP server; `shared` if other processes use the same ports.

    Without agents nothing is executed, or only phases if `without_agents`. gRPC also listens on those
    `further_ports` that are free; with `any_grpc_port` it takes a free port if its own is in use.
    """
    components = build_components(app, agents if agents or without_agents else None)
    if agents is not None:
        app.services.set_not_loaded(agents.not_loaded)
        add_handlers(app.services, agents.handlers, agents.conditions)
    if app.settings.grpc_port is None:
        return components
    grpc_server = load_grpc_server()
    drain = drain_seconds(app.settings)
    grpc = grpc_server(app, shared=shared, drain=drain, further=further_ports, any_port=any_grpc_port)
    return [*components, grpc]


def load_grpc_server() -> type[GrpcServer]:
    """Import the gRPC server. Raise InvalidInput for a missing or incompatible package."""
    install = "pip install 'perdure[grpc]'"
    try:
        from perdure.server.grpc.server import GrpcServer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "perdure":
            raise
        package = next((name for prefix, name in GRPC_PACKAGES.items() if error.name == prefix), "grpcio")
        raise InvalidInput(f"gRPC needs {package}: {install}") from error
    except (ImportError, RuntimeError, AttributeError, TypeError) as error:
        # Generated code refuses older releases of grpcio and protobuf.
        raise InvalidInput(f"gRPC cannot be loaded ({error_text(error)}): {install} --upgrade") from error
    return GrpcServer


class ServedDatabase:
    """The database of a server: checked before the start, and closed after everything else has ended."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.key_needed = False

    async def start(self) -> None:
        await self._app.check_start()
        # If the database does not answer, this fails with one line.
        self.key_needed = await needs_key(self._app)

    async def stop(self) -> None:
        await self._app.close()

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {StopPhase.STORAGE: self.stop}


class Administration:
    """Admits the command on this machine while the server runs, by a secret in a file."""

    def __init__(self, url: str, settings: Settings, app: App | None = None) -> None:
        self._app = app
        self._secret = LocalSecret(url)
        self._wanted = wants_local_secret(settings)

    async def start(self) -> None:
        if not self._wanted:
            return
        self._secret.publish()
        if self._app is not None:
            self._app.local_secret = self._secret.value

    async def stop(self) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the file; a forced end does this too."""
        self._secret.remove()

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {StopPhase.PROCESS: self.stop}


def wants_local_secret(settings: Settings) -> bool:
    """Return whether a server writes a local secret; by default only if there is no API key."""
    return {"on": True, "off": False}.get(settings.local_secret, settings.api_key is None)


class Lifeline:
    """A socket to the supervisor: reports that this process is ready, and stops it after the supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def start(self) -> None:
        self._connection.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(self._connection, READY)

    async def ended(self) -> None:
        """Wait until the supervisor has ended; this process then stops."""
        await asyncio.get_running_loop().sock_recv(self._connection, 1)
        logger.warning("the supervisor has ended; stopping")

    async def stop(self) -> None:
        """Do nothing; nothing runs."""


async def needs_key(app: App) -> bool:
    """Return whether a caller needs a key or a token."""
    return not app.settings.insecure_no_auth and await app.has_keys()


async def check(settings: Settings) -> bool:
    """Check that a server can start on the database. Return whether callers need a key."""
    app = open_app(settings)
    try:
        await app.check_start()
        return await needs_key(app)
    finally:
        await app.close()


class HttpServerProcess(ServiceProcess):
    """The process of a server: database, services, HTTP server; `last` starts after the server answers."""

    def __init__(
        self, app: App, listening: socket.socket, services: Sequence[Component], *last: Component
    ) -> None:
        settings = app.settings
        app.reloads.add("log level", logs.reload, settings=logs.SETTINGS)
        application = build_application(app)
        loopback = InPhase(StopPhase.SUPPORT, Loopback(lambda: InProcess(application)))
        limits = ConnectionLimits.of(settings)
        http = HttpServer(application, host=settings.host, listening=listening, limits=limits, tls=app.tls)
        server = HttpService(app, http, drain=drain_seconds(settings))
        self._database = ServedDatabase(app)
        super().__init__(
            [self._database, loopback, *services, server, *last],
            timeout=settings.seconds_to_stop,
            reloads=app.reloads,
            # A stop of a whole process group also signals the supervisor, which sends a second signal.
            forced_by_second_signal=not any(isinstance(component, Lifeline) for component in last),
        )
        for service in services:
            if isinstance(service, Administration):
                self.before_forced_end(service.remove)

    @property
    def key_needed(self) -> bool:
        """Whether callers need a key or a token; known after the start."""
        return self._database.key_needed


def run(process: ServiceProcess, work: Work | None = None) -> None:
    """Run a process until it stops. The exit code is 0 after SIGTERM, 130 after Ctrl-C."""
    settle_garbage_collector()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(process.run(work))
    if process.signal is not None:
        # Threads of agents may block the end of the interpreter.
        process.guard(EXIT_SECONDS)
    code = EXIT_CODES.get(process.signal, 0) or int(process.failed)
    if code:
        raise typer.Exit(code)


def check_process_count(settings: Settings) -> None:
    """Refuse several processes if only one may open the database."""
    if not settings.database_url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput(
            "more than one server process needs PostgreSQL: SQLite and memory belong to one process. "
            "Use --database postgresql://… or --workers 1"
        )
    if sys.platform == "win32":
        raise InvalidInput("more than one server process is not supported on Windows")
