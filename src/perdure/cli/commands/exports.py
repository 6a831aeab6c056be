"""`perdure db export`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, get_args

import typer

from perdure.cli.shell.options import CommandContext, duration, number, parse_choice, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.cli.shell.target import CommandConnection

SPANS = "spans"
PAGE = 1000


async def export(
    context: CommandContext,
    kinds: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND...",
            help="rollouts, spans, runs, threads, workflow_runs, approvals, executions, schedules, "
            "memory_events, jobs or effects.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE (default: stdout).")
    ] = None,
    since: Annotated[float | None, duration("Only what began within this time", "--since")] = None,
    status: Annotated[str | None, text("STATUS", "Only what has this status.", "--status")] = None,
    limit: Annotated[int | None, number("At most N of each kind.", "--limit", min=1)] = None,
) -> None:
    """Write data as JSON Lines: one object a line, with `kind` and `data`, in the order of the ids.

    Progress goes to stderr; with --json, a summary follows there.
    """
    from perdure.retention.exports import ExportKind

    choices = (*get_args(ExportKind), SPANS)
    chosen = [parse_choice(kind, choices, "KIND") for kind in kinds]
    start = 0.0 if since is None else time.time() - since
    counts: dict[str, int] = {}
    async with context.connect() as connection:
        with _opened(output) as file:
            for kind in chosen:
                counts[kind] = 0
                async for record in _records(connection, kind, start, status):
                    file.write(
                        json.dumps({"kind": kind, "data": record}, ensure_ascii=False, default=str) + "\n"
                    )
                    counts[kind] += 1
                    if counts[kind] % PAGE == 0:
                        typer.echo(f"{kind}: {counts[kind]}", err=True)
                    if counts[kind] == limit:
                        break
    if context.as_json:
        typer.echo(
            json.dumps({"exported": counts, "file": None if output is None else str(output)}), err=True
        )
    else:
        summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        typer.echo(f"Exported {summary}{'' if output is None else f' to {output}'}.", err=True)


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    """Open stdout, or a file that gets its name only after it is complete."""
    if output is None:
        yield sys.stdout
        return
    from perdure.kernel.storage.sqlite_backup import new_file

    with new_file(output) as path, path.open("w", encoding="utf-8") as file:
        yield file
        file.flush()


async def _records(
    connection: CommandConnection, kind: str, since: float, status: str | None
) -> AsyncIterator[dict[str, Any]]:
    if kind != SPANS:
        async for row in _rows(connection, kind, since, status):
            yield row
        return
    async for rollout in _rows(connection, "rollouts", since, status):
        for span in await _spans(connection, rollout["id"]):
            yield span


async def _rows(
    connection: CommandConnection, kind: Any, since: float, status: str | None
) -> AsyncIterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        page = await connection.upkeep.export(kind, after=after, since=since, status=status, limit=PAGE)
        for row in page.items:
            yield row
        after = page.next


async def _spans(connection: CommandConnection, rollout_id: str) -> Sequence[dict[str, Any]]:
    return [span.model_dump() for span in await connection.store.query_spans(rollout_id)]
