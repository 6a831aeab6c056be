"""`perdure store`: a server with the flags of `agl store`, so that scripts change only one word."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.hosting.serve import HostOption, NoAuthOption, PortOption
from perdure.cli.shell.arguments import parse_choices
from perdure.cli.shell.options import CorsOption, JsonOption, LogLevelOption, number, text
from perdure.kernel.errors import PerdureError

if TYPE_CHECKING:
    from perdure.runtime.app import App

logger = logging.getLogger(__name__)

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
    from perdure.cli.hosting.serve import serve_with
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
