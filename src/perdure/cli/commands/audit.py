"""`perdure audit`: who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.shell.options import CommandContext, LimitOption, client_command, text
from perdure.cli.shell.output import ago, printable, shorten
from perdure.cli.shell.results import listing, pages

if TYPE_CHECKING:
    from perdure.kernel.pages import Part
    from perdure.service.audit import AuditEntry

EMPTY = """The audit is empty. It records each change through a server: who, what, which object."""
COLUMNS = ("when", "actor", "action", "object", "count", "namespace")


@client_command
async def audit(
    context: CommandContext,
    actor: Annotated[
        str | None, text("ACTOR", "Filter by actor: the ID of a token, key, local or anonymous.", "--actor")
    ] = None,
    action: Annotated[
        str | None, text("ACTION", "Filter by action, such as create_token.", "--action")
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List what was changed, newest first: when, by whom, and which objects. It needs the scope admin."""
    from perdure.kernel.pages import Part

    async with context.connect() as connection:

        async def read(limit: int, cursor: str | None) -> Part[AuditEntry]:
            before = None if cursor is None else int(cursor)
            page = await connection.access.query_audit(actor=actor, action=action, limit=limit, before=before)
            return Part(items=page.items, next=None if page.before is None else str(page.before))

        entries = await pages(read, limit)
    filtered = actor is not None or action is not None
    listing(context, entries, COLUMNS, _row, noun="entries", empty=EMPTY, filtered=filtered)


def _row(entry: AuditEntry) -> tuple[Any, ...]:
    return (
        ago(entry.time),
        printable(entry.actor),
        entry.action,
        shorten(printable(entry.object)),
        entry.count,
        entry.namespace,
    )
