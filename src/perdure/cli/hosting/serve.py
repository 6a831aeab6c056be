"""`perdure serve`: a server in the foreground, in one or several processes; and `perdure store`.

`perdure store` has the flags of `agl store`, so that scripts change only one word.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from perdure.cli.hosting.agents import AgentsOption, gather_agents, gather_handlers
from perdure.cli.shell.options import (
    CorsOption,
    JsonOption,
    LogLevelOption,
    flag,
    number,
    parse_choices,
    text,
    with_options,
)
from perdure.kernel.errors import PerdureError

if TYPE_CHECKING:
    from perdure.kernel.config import Settings
    from perdure.kernel.lifecycle import Component
    from perdure.runtime.app import App
    from perdure.runtime.process import ServiceProcess
    from perdure.worker.registry import Agents

logger = logging.getLogger(__name__)

SUPERVISOR_SECONDS = 5.0
"""Additional seconds for the supervisor to stop after its processes."""

ServedDatabase = Annotated[
    str | None,
    text(
        "URL",
        "Database: sqlite:///file, postgresql://… or memory: (default: sqlite:///perdure.db).",
        "--database",
    ),
]
HostOption = Annotated[str | None, text("ADDRESS", "Address to listen on (default: 127.0.0.1).", "--host")]
PortOption = Annotated[
    int | None, number("Port (default: 4747; 0 picks a free one).", "--port", min=0, max=65_535)
]
GrpcPortOption = Annotated[
    int | None,
    number("Port for gRPC: OTLP, memory and health (0 picks a free one).", "--grpc-port", min=0, max=65_535),
]
NoAuthOption = Annotated[
    bool, flag("--insecure-no-auth", help="Accept requests without a token, on any address.")
]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `serve`, `start` and `restart`; None, False and [] mean not given."""

    database: str | None = None
    host: str | None = None
    port: int | None = None
    grpc_port: int | None = None
    workers: int | None = None
    agents: list[str] | None = None
    no_worker: bool = False
    api_key_file: str | None = None
    insecure_no_auth: bool = False
    cors_origin: list[str] | None = None
    log_level: str | None = None

    def load_settings(self) -> Settings:
        """Load the settings; these options have precedence."""
        from perdure.cli.hosting.server import settings_from

        return settings_from(
            {
                "database_url": self.database,
                "host": self.host,
                "port": self.port,
                "grpc_port": self.grpc_port,
                "insecure_no_auth": self.insecure_no_auth,
                "cors_allow_origins": self.cors_origin,
                "log_level": self.log_level,
            },
            self.api_key_file,
        )

    @property
    def named(self) -> tuple[str, ...] | None:
        """The agents of the command line; None executes no runs."""
        return None if self.no_worker else tuple(self.agents or ())


def serve_options(
    database: ServedDatabase = None,
    host: HostOption = None,
    port: PortOption = None,
    grpc_port: GrpcPortOption = None,
    workers: Annotated[
        int | None,
        number("Number of server processes (default: 1; more need PostgreSQL).", "--workers", min=1, max=256),
    ] = None,
    agents: AgentsOption = None,
    no_worker: Annotated[bool, flag("--no-worker", help="Do not execute runs in this server.")] = False,
    api_key_file: Annotated[
        str | None, text("FILE", "File with the server's API key.", "--api-key-file")
    ] = None,
    insecure_no_auth: NoAuthOption = False,
    cors_origin: CorsOption = None,
    log_level: LogLevelOption = None,
) -> ServeOptions:
    """Collect the options of a server."""
    return ServeOptions(**locals())


@with_options(serve_options, first=True)
def serve(
    options: ServeOptions,
    as_json: JsonOption = False,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
) -> None:
    """Start a server in the foreground; it stops on Ctrl-C or SIGTERM."""
    if fd is not None and lifeline is not None:
        from perdure.cli.hosting.process_secrets import receive_secrets

        receive_secrets(lifeline)
        _serve_supervised(options.load_settings(), fd, lifeline, options.named)
    else:
        serve_with(options.load_settings(), options.workers or 1, as_json=as_json, named=options.named)


class Host(Protocol):
    """The host of a server: it prints the start report, and joins the process."""

    def announce(self, facts: dict[str, Any]) -> None:
        """Report that the server is ready."""
        ...

    def components(self) -> Sequence[Component]:
        """Return components that start after the database is open."""
        ...

    def join(self, process: ServiceProcess) -> None:
        """Join the process before it runs."""
        ...


class Terminal:
    """Prints the start report of a server."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def announce(self, facts: dict[str, Any]) -> None:
        announce(facts, as_json=self._as_json)

    def components(self) -> Sequence[Component]:
        return ()

    def join(self, process: ServiceProcess) -> None:
        """Do nothing; the terminal does not need the process."""


def serve_with(
    settings: Settings,
    workers: int = 1,
    more: Sequence[Callable[[App], Component]] = (),
    *,
    as_json: bool = False,
    named: Sequence[str] | None = None,
    host: Host | None = None,
) -> None:
    """Serve in this process, or in several child processes; `more` builds further services of the server.

    `named` are agents of the command line, in addition to those of the settings; None executes no runs.
    """
    from perdure.cli.hosting import logs, server
    from perdure.cli.hosting.process_secrets import protect_process

    protect_process(settings)
    host = host or Terminal(as_json=as_json or settings.log_json)
    if workers > 1:
        server.check_process_count(settings)
    logs.configure(settings)
    with server.listen(settings) as listening:
        url = server.build_url(settings, listening)
        if workers > 1:
            _supervise(settings, listening, url, workers, host, named)
            return
        agents = agents_for(settings, named)
        app = server.open_app(settings, url)
        services = [
            *host.components(),
            server.Administration(url, settings, app),
            *server.build_services(app, agents=agents),
            *(make(app) for make in more),
        ]

        process = server.HttpServerProcess(app, listening, services)
        host.join(process)

        def announce_start() -> None:
            closed, grpc_port = process.key_needed, next(iter(app.grpc_ports), None)
            agents_here = agents.names if agents else []
            host.announce(
                {**list_facts(settings, url, closed), "grpc_port": grpc_port, "agents": agents_here}
            )

        process.when_running(announce_start)
        server.run(process)


def agents_for(settings: Settings, named: Sequence[str] | None) -> Agents:
    """Load the agents that this process executes, and the handlers of crons; None executes no runs."""
    return gather_handlers(settings) if named is None else gather_agents(settings, named)


def _serve_supervised(settings: Settings, fd: int, lifeline: int, named: Sequence[str] | None) -> None:
    from perdure.cli.hosting import logs, server
    from perdure.cli.hosting.process_secrets import protect_process
    from perdure.runtime.private_files import read_local_secret

    protect_process(settings)
    logs.configure(settings)
    with socket.socket(fileno=fd) as listening, socket.socket(fileno=lifeline) as supervisor:
        agents = agents_for(settings, named)
        app = server.open_app(settings)
        if server.wants_local_secret(settings):
            app.local_secret = read_local_secret(server.build_url(settings, listening))
        services = server.build_services(app, shared=True, agents=agents)
        server.run(server.HttpServerProcess(app, listening, services, server.Lifeline(supervisor)))


def _supervise(
    settings: Settings,
    listening: socket.socket,
    url: str,
    workers: int,
    host: Host,
    named: Sequence[str] | None,
) -> None:
    from perdure.cli.hosting import logs, server
    from perdure.cli.hosting.supervisor import Supervisor
    from perdure.runtime.process import ServiceProcess
    from perdure.runtime.reloads import Reloads

    # Check once here, so that errors are not printed by every process.
    closed = asyncio.run(server.check(settings))
    agents = agents_for(settings, named)
    facts = {**list_facts(settings, url, closed, workers), "agents": agents.names if agents else []}
    options = (
        [part for path in named for part in ("--agents", path)] if named is not None else ["--no-worker"]
    )
    supervisor = Supervisor(settings, listening, workers, options)
    secret = server.Administration(url, settings)
    reloads = Reloads(settings)
    reloads.add("log level", logs.reload, settings=logs.SETTINGS)
    # Each process reports which settings need a restart.
    reloads.add("server processes", supervisor.reload, settings=settings.sources)
    process = ServiceProcess(
        [*host.components(), secret, supervisor],
        timeout=settings.seconds_to_stop + SUPERVISOR_SECONDS,
        reloads=reloads,
    )
    host.join(process)
    process.when_running(lambda: host.announce(facts))
    process.before_forced_end(supervisor.kill)
    process.before_forced_end(secret.remove)
    server.run(process)


def list_facts(settings: Settings, url: str, closed: bool, workers: int = 1) -> dict[str, Any]:
    """Build the start report of a server."""
    from perdure.kernel.config import mask_url

    return {
        "url": url,
        "database": mask_url(settings.database_url),
        "workers": workers,
        "grpc_port": settings.grpc_port,
        "key_needed": closed,
        "callers": _callers(settings, closed),
    }


def _callers(settings: Settings, closed: bool) -> str:
    if settings.insecure_no_auth:
        return "no token needed, on any address (insecure_no_auth)"
    if closed:
        return "need the server's API key or a token (perdure token create)"
    return "need no token, until one is created or PERDURE_API_KEY is set"


def announce(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print the start report of a server."""
    typer.echo(json.dumps(facts) if as_json else "\n".join(start_lines(facts)))


def start_lines(facts: dict[str, Any]) -> list[str]:
    """Format the start report of a server as lines."""
    several = f" with {facts['workers']} processes" if facts["workers"] > 1 else ""
    lines = [f"perdure is listening on {facts['url']}{several}", f"  database   {facts['database']}"]
    if facts["grpc_port"] is not None:
        lines.append(f"  gRPC       port {facts['grpc_port']} (OTLP, memory, health)")
    if facts["agents"]:
        lines.append(f"  agents     {', '.join(facts['agents'])}")
    return [*lines, f"  callers    {facts['callers']}"]


# --- perdure store ----------------------------------------------------------------------------------------


TRACKERS = ("prometheus", "console")
TRACK_SECONDS = 10.0


def store(
    more_trackers: Annotated[list[str] | None, typer.Argument(metavar="TRACKER", hidden=True)] = None,
    host: HostOption = None,
    port: PortOption = None,
    cors_origin: CorsOption = None,
    log_level: LogLevelOption = None,
    tracker: Annotated[
        list[str] | None,
        text(
            "NAME",
            "prometheus (always on, at /metrics) or console (log statistics every 10 s); repeatable.",
            "--tracker",
        ),
    ] = None,
    n_workers: Annotated[
        int,
        number("Number of server processes (more than 1 needs PostgreSQL).", "--n-workers", min=1, max=256),
    ] = 1,
    backend: Annotated[
        str | None,
        text("BACKEND", "Backend: memory, sqlite, sqlite:///file or postgresql://…", "--backend"),
    ] = None,
    insecure_no_auth: NoAuthOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start a drop-in replacement for `agl store`: same flags, durable by default.

    Use `--backend memory` for a store in memory, as before.
    """
    from perdure.cli.hosting.server import settings_from

    trackers = parse_choices([*(tracker or ()), *(more_trackers or ())], TRACKERS, "--tracker") or []
    settings = settings_from(
        {
            "database_url": get_backend_url(backend),
            "host": host,
            "port": port,
            "cors_allow_origins": cors_origin,
            "log_level": log_level.lower() if log_level else None,
            "insecure_no_auth": insecure_no_auth,
        }
    )
    serve_with(settings, n_workers, [Console] if "console" in trackers else [], as_json=as_json)


def get_backend_url(backend: str | None) -> str | None:
    """Return the database URL of a backend; None uses the settings."""
    if backend is None:
        return None
    if backend == "sqlite":
        return "sqlite:///perdure.db"
    if backend.startswith("mongo"):
        raise typer.BadParameter(
            "MongoDB is not supported; --backend takes memory, sqlite:///file or postgresql://…"
        )
    if backend in ("postgres", "postgresql"):
        raise typer.BadParameter("--backend needs the full URL: postgresql://user:password@host/database")
    return "memory:" if backend == "memory" else backend


class Console:
    """Logs the statistics of the store at intervals."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._track())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _track(self) -> None:
        while True:
            try:
                statistics = await self._app.store.statistics()
                logger.info("store: %s", ", ".join(f"{name} {value}" for name, value in statistics.items()))
            except PerdureError as error:
                logger.warning("store: %s: %s", error.code, error.message)
            await asyncio.sleep(TRACK_SECONDS)
