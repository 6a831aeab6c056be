"""`perdure import`: data of other systems."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.options import CommandContext, CommandGroup, flag, text
from perdure.cli.shell.results import listing

if TYPE_CHECKING:
    from perdure.checkpoints.service import StoredCheckpoints
    from perdure.importing.records import ImportReport
    from perdure.runtime.services import Services

COLUMNS = ("kind", "found", "added", "present", "refused")
EMPTY = "There is nothing to import."

app = CommandGroup("Import data of other systems; what is there already is left as it is.")

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, readable=True)]
UrlArgument = Annotated[str, typer.Argument(metavar="URL")]
DryOption = Annotated[bool, flag("--dry-run", help="Count what would be added, and add nothing.")]


@asynccontextmanager
async def _importing(
    context: CommandContext, source: str, dry_run: bool
) -> AsyncIterator[tuple[Services, ImportReport]]:
    """Yield the services for the import and the report, and print the report at the end."""
    from perdure.importing.records import ImportReport

    report = ImportReport(source=source, dry_run=dry_run)
    async with context.connect(create=True) as connection:
        yield connection.own_services, report
    if context.as_json:
        context.output.document(report)
        return
    listing(context, report.counts, COLUMNS, _row, noun="kinds", empty=EMPTY)
    for refusal in report.refusals:
        context.output.print(f"{refusal.kind} {refusal.id}: {refusal.reason}")
    if dry_run:
        context.output.print("Nothing was added: this was a dry run.")


def _row(count: Any) -> tuple[Any, ...]:
    return tuple(getattr(count, name) for name in COLUMNS)


def _checkpoints(services: Services) -> StoredCheckpoints:
    from perdure.checkpoints.service import StoredCheckpoints

    return StoredCheckpoints(services.storage, namespace=services.threads.namespace)


@app.client_command("langgraph-sqlite")
async def import_langgraph_sqlite(
    context: CommandContext, file: FileArgument, dry_run: DryOption = False
) -> None:
    """Import the checkpoints of langgraph-checkpoint-sqlite, for PerdureSaver."""
    from perdure.importing.checkpoints import import_checkpoints
    from perdure.importing.langgraph_sqlite import read_sqlite_checkpoints

    async with _importing(context, "langgraph-sqlite", dry_run) as (services, report):
        await import_checkpoints(_checkpoints(services), read_sqlite_checkpoints(file), report)


@app.client_command("langgraph-postgres")
async def import_langgraph_postgres(
    context: CommandContext, url: UrlArgument, dry_run: DryOption = False
) -> None:
    """Import the checkpoints of langgraph-checkpoint-postgres."""
    from perdure.importing.checkpoints import import_checkpoints
    from perdure.importing.langgraph_postgres import check_tables, read_postgres_checkpoints
    from perdure.kernel.storage.postgres_foreign import foreign_postgres

    async with (
        _importing(context, "langgraph-postgres", dry_run) as (services, report),
        foreign_postgres(url) as fetch,
    ):
        await check_tables(fetch, "checkpoints", "checkpoint_blobs", "checkpoint_writes")
        await import_checkpoints(_checkpoints(services), read_postgres_checkpoints(fetch), report)


@app.client_command("langgraph-server")
async def import_langgraph_server(
    context: CommandContext, url: UrlArgument, dry_run: DryOption = False
) -> None:
    """Import the threads and checkpoints of a LangGraph server's PostgreSQL database.

    Not tested with a database of that server. Its runs are counted, not imported.
    """
    from perdure.importing.checkpoints import import_checkpoints
    from perdure.importing.langgraph_postgres import (
        ThreadStates,
        check_tables,
        import_threads,
        read_postgres_checkpoints,
    )
    from perdure.kernel.storage.postgres_foreign import foreign_postgres

    async with (
        _importing(context, "langgraph-server", dry_run) as (services, report),
        foreign_postgres(url) as fetch,
    ):
        tables = ("thread", "run", "checkpoints", "checkpoint_blobs", "checkpoint_writes")
        await check_tables(fetch, *tables)
        await import_threads(fetch, services.threads, report)
        graphs = _checkpoints(services)
        states = ThreadStates(graphs, services.threads)
        await import_checkpoints(graphs, read_postgres_checkpoints(fetch), report, states.store)


@app.client_command("last-light")
async def import_last_light(
    context: CommandContext,
    file: FileArgument,
    sessions: Annotated[
        Path | None, text("FOLDER", "Folder with the sessions, such as agent-sessions.", "--sessions")
    ] = None,
    dry_run: DryOption = False,
) -> None:
    """Import a Last Light database: executions that have ended, switches of workflows, and sessions.

    Workflow runs, approvals, schedules and chats are counted, not imported.
    """
    from perdure.importing.last_light import import_database, import_tree

    async with _importing(context, "last-light", dry_run) as (services, report):
        await import_database(file, services.executions, services.workflow_overrides, report)
        if sessions is not None:
            await import_tree(sessions, services.sessions, report)


@app.client_command("agent-memory")
async def import_agent_memory(
    context: CommandContext,
    address: Annotated[str, typer.Argument(metavar="ADDRESS")],
    dry_run: DryOption = False,
) -> None:
    """Import the events of an agent-memory daemon, through its gRPC service."""
    from perdure.client.grpc.memory import GrpcMemory
    from perdure.importing.agent_memory import import_events

    async with (
        _importing(context, "agent-memory", dry_run) as (services, report),
        GrpcMemory(address) as source,
    ):
        await import_events(source, services.memory, report)
