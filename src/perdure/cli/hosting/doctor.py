"""`perdure doctor`: the effective settings, and checks of everything they name."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands.about import list_versions, versions_line
from perdure.cli.hosting.agents import load_quietly
from perdure.cli.shell.options import CommandContext, client_command, flag
from perdure.cli.shell.output import human_duration
from perdure.diagnostics.doctor import SKEW_SECONDS, DoctorCheck, check_health, check_skew, check_space
from perdure.kernel.errors import DatabaseOwned, PerdureError

if TYPE_CHECKING:
    from perdure.kernel.config import Settings
    from perdure.kernel.storage.port import Tx

PACKAGES = (
    "apsw",
    "msgspec",
    "starlette",
    "uvicorn",
    "uvloop",
    "aiohttp",
    "asyncpg",
    "redis",
    "grpcio",
    "opentelemetry-sdk",
)
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "failed": ("FAILED", "bold red")}


@client_command
async def doctor(
    context: CommandContext,
    all_: Annotated[bool, flag("--all", help="Show settings that have their default, too.")] = False,
) -> None:
    """Check database, Redis, ports and agents; show the settings that were given, and their sources.

    A server that --url names tells what it finds of its own: database, clock, disk, Redis, workers, queues.
    """
    from perdure.kernel.config import load_settings

    given = {"database_url": context.target.database, "namespace": context.target.namespace}
    settings = load_settings({name: value for name, value in given.items() if value is not None})
    checks = [check async for check in _checks(settings, context)]
    if context.as_json:
        facts = {"settings": _shown(settings), "versions": list_versions(PACKAGES)}
        context.output.document({**facts, "checks": checks})
    else:
        _print(context, settings, checks, all_)
    if any(check.state == "failed" for check in checks):
        raise typer.Exit(1)


def _shown(settings: Settings) -> dict[str, dict[str, Any]]:
    from perdure.kernel.config import Secret, SecretKey, mask_url

    def shown(value: Any) -> Any:
        if isinstance(value, SecretKey):
            return "***"
        return mask_url(value) if isinstance(value, Secret) else value

    values = {name: getattr(settings, name) for name in settings.sources}
    return {name: {"value": shown(value), "source": settings.sources[name]} for name, value in values.items()}


def _print(
    context: CommandContext, settings: Settings, checks: list[DoctorCheck], with_defaults: bool
) -> None:
    _print_checks(context, checks)
    rows = [
        (name, setting["source"], None if setting["value"] in ((), {}, "") else setting["value"])
        for name, setting in _shown(settings).items()
        if with_defaults or setting["source"] != "default"
    ]
    context.output.print("")
    if rows:
        context.output.table(("setting", "from", "value"), rows)
    if not with_defaults:
        context.output.print(
            f"{'All other' if rows else 'All'} settings have their defaults: --all shows them."
        )
    context.output.print(f"\n{versions_line(list_versions(PACKAGES))}")


def _print_checks(context: CommandContext, checks: Sequence[DoctorCheck]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    for check in checks:
        table.add_row(Text(*MARKS[check.state]), Text(check.name), Text(check.found))
    context.output.show(table)


async def _checks(settings: Settings, context: CommandContext) -> AsyncIterator[DoctorCheck]:
    from perdure.runtime.stores import sqlite_file

    file = sqlite_file(settings.database_url)
    if file is not None:
        for check in _file_checks(Path(file)):
            yield check
    if file is None or _is_there(file):
        async for check in _database_checks(settings):
            yield check
    for check in _agent_checks(settings):
        yield check
    yield await _redis(settings)
    yield await _server(context)
    for check in await _findings(context):
        yield check
    yield _port("port", settings.host, settings.port)
    if settings.grpc_port is not None:
        yield _port("gRPC port", settings.host, settings.grpc_port)
    yield _connections(settings)


# --- agents -----------------------------------------------------------------------------------------------


def _agent_checks(settings: Settings) -> Iterator[DoctorCheck]:
    """Check the agents of `perdure.toml` and `langgraph.json`, and report unsupported sections."""
    from perdure.agents.loading import GRAPHS_FILE
    from perdure.agents.sections import load_http, load_items, unsupported

    loaded = load_quietly(settings)
    if loaded.agents.names:
        yield DoctorCheck("agents", "ok", ", ".join(loaded.agents.names))
    for failure in loaded.failures:
        yield DoctorCheck(f"agent {failure.agent}" if failure.agent else GRAPHS_FILE, "failed", str(failure))
    yield from _auth()
    for problem in (*unsupported(), *load_items().failures, *load_http().failures):
        yield DoctorCheck(GRAPHS_FILE, "note", problem)


def _auth() -> Iterator[DoctorCheck]:
    from perdure.cli.hosting.server import auth_here

    try:
        if auth_here() is not None:
            yield DoctorCheck(
                "auth", "ok", "custom auth on the LangGraph routes; the others need an API key or a token"
            )
    except PerdureError as error:
        yield DoctorCheck("auth", "failed", error.message)


# --- file ------------------------------------------------------------------------------------------------


def _is_there(file: str) -> bool:
    return Path(file).exists()


def _file_checks(file: Path) -> Iterator[DoctorCheck]:
    folder = file.absolute().parent
    if not folder.is_dir():
        yield DoctorCheck("folder", "failed", f"{folder} does not exist; create it or choose another file")
        return
    if os.access(folder, os.W_OK):
        yield DoctorCheck("folder", "ok", f"{folder} is writable")
    else:
        yield DoctorCheck("folder", "failed", f"{folder} is not writable by this user")
    yield check_space(shutil.disk_usage(folder).free)
    if not file.exists():
        yield DoctorCheck("database", "note", f"{file} does not exist yet; the first start creates it")
        return
    yield _mode(file)
    yield _clock(file)


def _mode(file: Path) -> DoctorCheck:
    mode = file.stat().st_mode & 0o777
    if mode & 0o077 and os.name != "nt":
        return DoctorCheck(
            "file mode", "note", f"{mode:o}: other users can access {file}; restrict it with chmod 600"
        )
    return DoctorCheck("file mode", "ok", f"{mode:o}")


def _clock(file: Path) -> DoctorCheck:
    ahead = file.stat().st_mtime - time.time()
    if ahead > SKEW_SECONDS:
        return DoctorCheck(
            "clock",
            "failed",
            f"the database was last written {human_duration(ahead)} in the future: the clock was set back",
        )
    return DoctorCheck("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


# --- database --------------------------------------------------------------------------------------------


async def _database_checks(settings: Settings) -> AsyncIterator[DoctorCheck]:
    from perdure.runtime.stores import open_configured, sqlite_file

    try:
        store = open_configured(settings, watchdog_interval=None)
        async with store:
            statistics = await store.statistics()
            health = await store.health()
            yield check_health(health, _counts(statistics))
            if sqlite_file(settings.database_url) is None and health.get("status"):
                before = time.time()
                yield check_skew(before, await store.storage.read(_server_time, ns=None), time.time())
    except DatabaseOwned as owned:
        yield DoctorCheck("database", "ok", f"{owned.message}; check it with `perdure health`")
    except PerdureError as error:
        yield DoctorCheck("database", "failed", f"{error.code}: {error.message}")


async def _server_time(tx: Tx) -> int:
    return tx.now


def _counts(statistics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{value} {name.removeprefix('total_')}"
        for name, value in statistics.items()
        if name.startswith("total_") and not name.endswith("bytes")
    )


# --- Redis, server, ports -----------------------------------------------------------------------------------


async def _redis(settings: Settings) -> DoctorCheck:
    if settings.redis_url is None:
        return DoctorCheck("Redis", "ok", "not configured, and not needed")
    named = f"set by {settings.sources['redis_url'].removeprefix('environment ')}"
    if not settings.database_url.startswith(("postgresql://", "postgres://")):
        return DoctorCheck("Redis", "note", f"{named}, but not used: Redis is used with PostgreSQL only")
    try:
        from perdure.kernel.signals.redis import examine

        seconds, what = await examine(settings.redis_url)
    except ModuleNotFoundError:
        return DoctorCheck(
            "Redis", "failed", f"{named}, but redis-py is missing: pip install 'perdure[redis]'"
        )
    except PerdureError as error:
        return DoctorCheck("Redis", "failed", f"{named}: {error.message}")
    except OSError as error:
        return DoctorCheck(
            "Redis", "failed", f"{named}, but does not answer ({error}); perdure polls the database instead"
        )
    return DoctorCheck("Redis", "ok", f"{named}: {what}, answered in {seconds * 1000:.1f} ms")


async def _findings(context: CommandContext) -> list[DoctorCheck]:
    """Return the findings of the server that the command line names."""
    if context.target.url is None or context.target.database is not None:
        return []
    try:
        async with context.connect() as connection:
            report = await connection.diagnostics.doctor()
    except PerdureError as error:
        return [DoctorCheck("server checks", "note", error.message)]
    return [DoctorCheck(f"server {item.name}", item.state, item.found) for item in report.items]


async def _server(context: CommandContext) -> DoctorCheck:
    from perdure.cli.shell.target import DEFAULT_URL, CommandTarget

    target = context.target
    url = target.url or DEFAULT_URL
    try:
        async with CommandTarget(url, target.token, target.namespace).open() as connection:
            health = await connection.health()
    except PerdureError as error:
        # A server is required only if --url names one.
        return DoctorCheck("server", "failed" if target.url else "note", f"{error.code}: {error.message}")
    return DoctorCheck("server", "ok", f"{url} is {health.get('status', 'ready')}")


def _port(name: str, host: str, port: int) -> DoctorCheck:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return DoctorCheck(name, "note", f"{host} port {port} is not available: {error.strerror or error}")
    return DoctorCheck(name, "ok", f"{host} port {port} is free")


def _connections(settings: Settings) -> DoctorCheck:
    from perdure.server.http.connections import default_limit

    possible = default_limit()
    wanted = settings.max_connections or possible
    if wanted > possible:
        text = f"max_connections is {wanted}, but the limit of open files allows {possible} (ulimit -n)"
        return DoctorCheck("connections", "note", text)
    return DoctorCheck("connections", "ok", f"at most {wanted} HTTP connections for each server process")
