"""`perdure find`: what an id belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from perdure.cli.shell.ids import LAST
from perdure.cli.shell.options import CommandContext, client_command, number, parse_choices, text
from perdure.cli.shell.output import NOT_FOUND, ago
from perdure.cli.shell.results import listing

if TYPE_CHECKING:
    from perdure.diagnostics.finding import IdMatch

COLUMNS = ("kind", "id", "status", "when", "title")


@client_command
async def find(
    context: CommandContext,
    id: Annotated[
        str,
        typer.Argument(metavar="ID", help="ID, its first characters, the name of a cron, or `last`."),
    ],
    kind: Annotated[
        list[str] | None, text("KIND", "Look for this kind only, such as run; repeatable.", "--kind", "-k")
    ] = None,
    limit: Annotated[int, number("Maximum number of results.", "--limit", min=1, max=100)] = 20,
) -> None:
    """Find what an ID, or the beginning of one, belongs to (exit code 4 if nothing)."""
    from perdure.diagnostics.finding import Kind

    kinds = parse_choices([name.replace("-", "_") for name in kind or ()], get_args(Kind), "--kind")
    async with context.connect() as connection:
        matches = await connection.diagnostics.find(id, kind=kinds, limit=limit)
    empty = "Nothing is stored yet." if id == LAST else f"Nothing has an ID that begins with {id}."
    listing(context, matches, COLUMNS, _row, noun="ids", empty=empty)
    if not matches:
        raise typer.Exit(NOT_FOUND)


def _row(match: IdMatch) -> tuple[Any, ...]:
    return match.kind.replace("_", " "), match.id, match.status, ago(match.time), match.title
