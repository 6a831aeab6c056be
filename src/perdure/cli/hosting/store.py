"""`perdure store`: the server with the flags of `agl store`, so that scripts move by changing one word."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.hosting.serve import HostOption, NoAuthOption, PortOption
from perdure.cli.shell.options import CorsOption, JsonOption, LogLevelOption
from perdure.kernel.errors import PerdureError

if TYPE_CHECKING:
    from perdure.runtime.app import App

logger = logging.getLogger(__name__)

TRACKERS = ("prometheus", "console")
TRACK_SECONDS = 10.0


def store(
    more_trackers: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: HostOption = None,
    port: PortOption = None,
    cors_origin: CorsOption = None,
    log_level: LogLevelOption = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(help="prometheus (always at /metrics) or console (a line in the log every 10 s)."),
    ] = None,
    n_workers: Annotated[int, typer.Option(min=1, max=256, help="So many processes, on PostgreSQL.")] = 1,
    backend: Annotated[
        str | None, typer.Option(help="memory, sqlite, a file, sqlite:///file or postgresql://…")
    ] = None,
    insecure_no_auth: NoAuthOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve a store, with the flags of `agl store`. It is durable: --backend memory is as before."""
    from perdure.cli.hosting.host import settings_from
    from perdure.cli.hosting.serve import serve_with

    trackers = check_trackers([*(tracker or ()), *(more_trackers or ())])
    settings = settings_from(
        {
            "database_url": database_of(backend),
            "host": host,
            "port": port,
            "cors_allow_origins": cors_origin,
            "log_level": log_level.lower() if log_level else None,
            "insecure_no_auth": insecure_no_auth,
        }
    )
    serve_with(settings, n_workers, [Console] if "console" in trackers else [], as_json=as_json)


def check_trackers(given: list[str]) -> list[str]:
    """The trackers that were named, one after the other or each with its own --tracker."""
    for name in given:
        if name not in TRACKERS:
            raise typer.BadParameter(f"--tracker is one of {', '.join(TRACKERS)}, not {name!r}")
    return given


def database_of(backend: str | None) -> str | None:
    """The database that a backend's name or URL stands for; None is the one that the settings name."""
    if backend is None:
        return None
    if backend == "sqlite":
        return "sqlite:///perdure.db"
    if backend.startswith("mongo"):
        raise typer.BadParameter(
            "there is no MongoDB here; --backend takes memory, sqlite:///file or postgresql://…"
        )
    if backend in ("postgres", "postgresql"):
        raise typer.BadParameter("--backend needs the whole URL: postgresql://user:password@host/database")
    return "memory:" if backend == "memory" else backend


class Console:
    """Writes what the store holds into the log, again and again."""

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
