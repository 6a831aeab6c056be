"""`perdure webhook`: webhooks and their deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.shell.ids import id_argument, id_option
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, optional_choice, text
from perdure.cli.shell.output import ago, shorten
from perdure.cli.shell.results import listing, pages, showing

if TYPE_CHECKING:
    from perdure.outbox.model import Effect

CONSUMER = "webhook"
EMPTY = """No webhooks yet. A run sends one when it ends, if it has a webhook URL:

  perdure run create greet '{"name": "Ann"}' --webhook https://example.com/hook"""
COLUMNS = ("webhook_id", "status", "attempts", "run_id", "url", "created", "last error")

app = CommandGroup("Show webhooks and retry their delivery.")

IdArgument = Annotated[str, id_argument("WEBHOOK_ID", "effect")]


@app.client_command("list")
async def list_webhooks(
    context: CommandContext,
    status: Annotated[
        str | None, text("STATUS", "Filter by status: pending, delivered or dead.", "--status", "-s")
    ] = None,
    run: Annotated[str | None, id_option("RUN_ID", "Filter by run.", "--run", kinds=["run"])] = None,
    limit: LimitOption = 20,
) -> None:
    """List webhooks, newest first."""
    from perdure.outbox.model import EFFECT_STATUSES

    chosen = optional_choice(status, EFFECT_STATUSES, "--status")
    async with context.connect() as connection:
        webhooks = await pages(
            lambda limit, cursor: connection.outbox.list(
                status=chosen, consumer=CONSUMER, subject=run, limit=limit, cursor=cursor
            ),
            limit,
        )
    filtered = status is not None or run is not None
    listing(context, webhooks, COLUMNS, _row, noun="webhooks", empty=EMPTY, filtered=filtered)


def _row(webhook: Effect) -> tuple[Any, ...]:
    return (
        webhook.id,
        webhook.status,
        webhook.attempts,
        webhook.subject,
        webhook.target,
        ago(webhook.created_at),
        None if webhook.last_error is None else shorten(webhook.last_error),
    )


@app.client_command("show")
async def show_webhook(context: CommandContext, webhook_id: IdArgument) -> None:
    """Show a webhook and its body."""
    async with context.connect() as connection:
        webhook = await connection.outbox.get(webhook_id)
    rows = (
        ("webhook", webhook.id),
        ("status", webhook.status),
        ("run", webhook.subject),
        ("url", webhook.target),
        ("attempts", webhook.attempts),
        ("created", ago(webhook.created_at)),
        ("delivered", ago(webhook.delivered_at)),
        ("given up", ago(webhook.died_at)),
        ("last error", webhook.last_error),
        ("body", webhook.body),
    )
    showing(context, webhook, rows)


@app.client_command("retry")
async def retry_webhook(context: CommandContext, webhook_id: IdArgument) -> None:
    """Retry the delivery of a pending or dead webhook now."""
    async with context.connect() as connection:
        webhook = await connection.outbox.retry(webhook_id)
    context.answer(webhook, f"Webhook {webhook.id} is {webhook.status} and will be delivered now.")
