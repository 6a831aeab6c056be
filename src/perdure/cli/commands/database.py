"""`perdure db`: how much a database holds, deleting what is too old, backups and exports."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from perdure.cli.commands.backups import backup, restore, verify
from perdure.cli.commands.exports import export
from perdure.cli.shell.options import CommandContext, CommandGroup, flag, text
from perdure.cli.shell.output import human_duration, warn
from perdure.kernel.errors import InvalidInput

app = CommandGroup("Back up, restore, check and export a database; delete old data.")


@app.client_command("stats")
async def stats(context: CommandContext) -> None:
    """Show the rows of each kind of data, and the size of the database."""
    async with context.connect() as connection:
        statistics = await connection.upkeep.stats()
    if context.as_json:
        context.output.document(statistics)
        return
    context.output.print(f"{statistics.database} ({statistics.engine}): {statistics.bytes / 1e6:.1f} MB")
    context.output.table(("data", "rows"), [(item.kind, item.rows) for item in statistics.items])


@app.client_command("gc")
async def gc(
    context: CommandContext,
    dry_run: Annotated[bool, flag("--dry-run", help="Count only; delete nothing.")] = False,
    older_than: Annotated[
        list[str] | None,
        text(
            "KIND=DAYS",
            "Delete a kind from this age on, whatever the settings say; repeatable.",
            "--older-than",
        ),
    ] = None,
) -> None:
    """Delete what is older than the settings `retention_…` keep it. The server does so every hour."""
    ages = dict(_age(given) for given in older_than or ())
    deleted: Counter[str] = Counter()
    async with context.connect() as connection:
        while True:
            report = await connection.upkeep.gc(dry_run=dry_run, older_than=ages or None)
            deleted.update({item.kind: item.deleted for item in report.items})
            if report.complete or dry_run:
                break
            warn(f"deleted {deleted.total():,} so far, going on")
    for item in report.items:
        item.deleted = deleted[item.kind]
    if context.as_json:
        context.output.document(report)
        return
    columns = ("data", "older than", "would be deleted" if dry_run else "deleted")
    rows = [
        (item.kind, "kept" if item.days is None else human_duration(item.days * 86_400), item.deleted)
        for item in report.items
    ]
    context.output.table(columns, rows)
    if not report.complete:
        context.output.print("There is more: counting stopped after some seconds.")


def _age(given: str) -> tuple[str, float]:
    kind, _, days = given.partition("=")
    try:
        return kind, float(days)
    except ValueError:
        raise InvalidInput(f"--older-than is {given!r}; it must be a kind and days, as in spans=30") from None


app.client_command("backup")(backup)
app.client_command("restore")(restore)
app.client_command("verify")(verify)
app.client_command("export")(export)
