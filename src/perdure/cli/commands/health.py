"""`perdure health`: whether the server and its database are well."""

from __future__ import annotations

import typer

from perdure.cli.shell.options import CommandContext, at_desk
from perdure.cli.shell.output import make_table, shorten
from perdure.kernel.errors import Unauthorized

WELL = ("ok", "ready", "healthy")


@at_desk
async def health(desk: CommandContext) -> None:
    """Ask the server, or a database, how it is; the exit code is 1 if it is not well."""
    async with desk.target.open() as connection:
        facts = await connection.health()
        try:
            statistics = dict(await connection.store.statistics())
        except Unauthorized:
            # Whether it is well, anybody may know; what it holds, only who shows a token.
            statistics = {}
    if desk.as_json:
        desk.output.document({**facts, "statistics": statistics})
    else:
        rows = [*facts.items(), *statistics.items()]
        desk.output.show(make_table(("health", ""), [(name, shorten(value)) for name, value in rows]))
    if facts.get("status") not in WELL:
        raise typer.Exit(1)
