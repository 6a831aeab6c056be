"""`perdure webhook`: what was told to others, and what could not be told."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.shell.arguments import choice_of
from perdure.cli.shell.options import CommandContext, LimitOption, at_desk
from perdure.cli.shell.output import ago, facts_table, make_table, shorten

CONSUMER = "webhook"
EMPTY = """No webhooks yet. A run tells its end to an address if it is asked to:

  perdure run create greet '{"name": "Ann"}' --webhook https://example.com/hook"""

app = typer.Typer(help="Look at webhooks, and deliver them again.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="WEBHOOK_ID")]


@app.command("list", hidden=True)
@app.command("ls")
@at_desk
async def list_webhooks(
    desk: CommandContext,
    status: Annotated[str | None, typer.Option("--status", "-s", help="pending, delivered or dead.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only of this run.")] = None,
    limit: LimitOption = 20,
) -> None:
    """List webhooks, the newest first."""
    from perdure.outbox.model import EFFECT_STATUSES

    choice_of(status, EFFECT_STATUSES, "--status")
    async with desk.target.open() as connection:
        page = await connection.outbox.list(
            status=status, consumer=CONSUMER, subject=run, limit=min(limit, 1000)
        )
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
    elif not page:
        desk.output.say(EMPTY if status is None and run is None else "No webhook is like that.")
    else:
        rows = [
            (
                each.id,
                each.status,
                each.attempts,
                each.subject,
                each.target,
                ago(each.created_at),
                _error(each),
            )
            for each in page
        ]
        columns = ("webhook_id", "status", "tries", "run_id", "where", "made", "last error")
        desk.output.show(make_table(columns, rows))


def _error(effect: Any) -> str | None:
    return None if effect.last_error is None else shorten(effect.last_error)


@app.command("show", hidden=True)
@app.command("get")
@at_desk
async def get_webhook(desk: CommandContext, webhook_id: IdArgument) -> None:
    """Show a webhook, with what it tells."""
    async with desk.target.open() as connection:
        found = await connection.outbox.get(webhook_id)
    if desk.as_json:
        desk.output.document(found)
    else:
        desk.output.show(facts_table(_rows(found)))


def _rows(effect: Any) -> list[tuple[str, Any]]:
    return [
        ("webhook", effect.id),
        ("status", effect.status),
        ("run", effect.subject),
        ("where", effect.target),
        ("tries", effect.attempts),
        ("made", ago(effect.created_at)),
        ("delivered", ago(effect.delivered_at)),
        ("given up", ago(effect.died_at)),
        ("last error", effect.last_error),
        ("body", effect.body),
    ]


@app.command("retry")
@at_desk
async def retry_webhook(desk: CommandContext, webhook_id: IdArgument) -> None:
    """Deliver a webhook now that waits, or was given up."""
    async with desk.target.open() as connection:
        found = await connection.outbox.retry(webhook_id)
    if desk.as_json:
        desk.output.document(found)
    else:
        desk.output.say(f"{found.id} is {found.status}, and due now")
