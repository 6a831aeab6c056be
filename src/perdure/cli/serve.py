"""`perdure serve`: the server in the foreground, in one process or in several."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import CorsOption, LogLevelOption

if TYPE_CHECKING:
    from perdure.kernel.config import Settings
    from perdure.protocols.http.server import Service
    from perdure.runtime.app import App

logger = logging.getLogger(__name__)

ServedDatabase = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="memory:, sqlite:///file or postgresql://…; sqlite:///perdure.db if nothing names another.",
    ),
]
HostOption = Annotated[str | None, typer.Option("--host", help="The address to listen on; 127.0.0.1.")]
PortOption = Annotated[
    int | None, typer.Option("--port", min=0, max=65_535, help="The port; 4747. 0 takes any free one.")
]
GrpcPortOption = Annotated[
    int | None, typer.Option("--grpc-port", min=0, max=65_535, help="Take OTLP over gRPC here as well.")
]
NoAuthOption = Annotated[
    bool, typer.Option("--insecure-no-auth", help="Let everyone in, whatever address it listens on.")
]


def serve(
    database: ServedDatabase = None,
    host: HostOption = None,
    port: PortOption = None,
    grpc_port: GrpcPortOption = None,
    workers: Annotated[
        int,
        typer.Option("--workers", min=1, max=256, help="So many processes; more than 1 on PostgreSQL only."),
    ] = 1,
    api_key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", metavar="FILE", help="A file that holds the server's key."),
    ] = None,
    insecure_no_auth: NoAuthOption = False,
    cors_origin: CorsOption = None,
    log_level: LogLevelOption = None,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
    lifeline: Annotated[int | None, typer.Option("--lifeline", hidden=True)] = None,
) -> None:
    """Serve a store over HTTP until Ctrl-C or SIGTERM."""
    from perdure.cli.hosting import settings_from

    settings = settings_from(
        {
            "database_url": database,
            "host": host,
            "port": port,
            "grpc_port": grpc_port,
            "insecure_no_auth": insecure_no_auth,
            "cors_allow_origins": cors_origin,
            "log_level": log_level,
        },
        api_key_file,
    )
    if fd is not None and lifeline is not None:
        _serve_as_worker(settings, fd, lifeline)
    else:
        serve_with(settings, workers)


def serve_with(settings: Settings, workers: int = 1, more: Sequence[Callable[[App], Service]] = ()) -> None:
    """Serve in the foreground, in one process or in several; `more` makes services that run along."""
    from perdure.cli import hosting, logs

    if workers > 1:
        hosting.refuse_workers(settings)
    logs.configure(settings)
    with hosting.listen(settings) as listening:
        url = hosting.address_of(settings, listening)
        if workers > 1:
            _supervise(settings, listening, url, workers)
            return
        app = hosting.open_app(settings, url)
        announcement = hosting.Announcement(app, lambda closed: _announce(settings, url, closed))
        services = [*hosting.services_of(app), *(make(app) for make in more), announcement]
        hosting.run(hosting.host(app, listening, services))


def _serve_as_worker(settings: Settings, fd: int, lifeline: int) -> None:
    from perdure.cli import hosting, logs

    logs.configure(settings)
    with socket.socket(fileno=fd) as listening, socket.socket(fileno=lifeline) as line:
        app = hosting.open_app(settings)
        services = [*hosting.services_of(app), hosting.Lifeline(line)]
        hosting.run(hosting.host(app, listening, services))


def _supervise(settings: Settings, listening: socket.socket, url: str, workers: int) -> None:
    from perdure.cli import hosting
    from perdure.cli.supervisor import Supervisor

    async def run() -> bool:
        # What cannot start is said once, and not by every worker again and again.
        closed = await hosting.check(settings)
        supervisor = Supervisor(settings, listening, workers)
        return await supervisor.run(lambda: _announce(settings, url, closed, workers))

    if asyncio.run(run()):
        raise typer.Exit(130)


def _announce(settings: Settings, url: str, closed: bool, workers: int = 1) -> None:
    from perdure.kernel.config import mask_url

    several = f" with {workers} workers" if workers > 1 else ""
    lines = [f"perdure listens on {url}{several}", f"  database   {mask_url(settings.database_url)}"]
    if settings.grpc_port is not None:
        lines.append(f"  OTLP gRPC  port {settings.grpc_port}")
    lines.append(f"  callers    {who_may_come(settings, closed)}")
    typer.echo("\n".join(lines))


def who_may_come(settings: Settings, closed: bool) -> str:
    """What a caller needs, in words."""
    if settings.insecure_no_auth:
        return "anyone who reaches it, without a key (insecure_no_auth)"
    if closed:
        return "need the server's key or a token (perdure token create)"
    return "need no key, until a token is made (perdure token create) or PERDURE_API_KEY is set"
