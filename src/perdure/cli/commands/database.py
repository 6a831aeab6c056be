"""`perdure db`: how much a database holds, deleting what is too old, backups and exports."""

from __future__ import annotations

from typing import Annotated

from perdure.cli.commands.backups import backup, restore, verify
from perdure.cli.commands.exports import export
from perdure.cli.shell.options import CommandContext, CommandGroup, flag
from perdure.cli.shell.output import human_duration

app = CommandGroup("Back up, restore, check and export a database; delete old data.")


@app.client_command("stats")
async def stats(context: CommandContext) -> None:
    """Show the rows of each kind of data, and the size of the database."""
    async with context.connect() as connection:
        found = await connection.upkeep.stats()
    if context.as_json:
        context.output.document(found)
        return
    context.output.print(f"{found.database} ({found.engine}): {found.bytes / 1e6:.1f} MB")
    context.output.table(("data", "rows"), [(each.kind, each.rows) for each in found.items])


@app.client_command("gc")
async def gc(
    context: CommandContext,
    dry_run: Annotated[bool, flag("--dry-run", help="Count only; delete nothing.")] = False,
) -> None:
    """Delete what is older than the settings `retention_…` keep it. The server does so every hour."""
    async with context.connect() as connection:
        report = await connection.upkeep.gc(dry_run=dry_run)
    if context.as_json:
        context.output.document(report)
        return
    columns = ("data", "kept", "would be deleted" if dry_run else "deleted")
    rows = [
        (each.kind, None if each.days is None else human_duration(each.days * 86_400), each.deleted)
        for each in report.items
    ]
    context.output.table(columns, rows)


app.client_command("backup")(backup)
app.client_command("restore")(restore)
app.client_command("verify")(verify)
app.client_command("export")(export)
