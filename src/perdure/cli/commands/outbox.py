"""`perdure outbox`: what is to be delivered, what failed, and the dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.shell.ids import EXPLAINED, id_argument, id_option
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, flag, optional_choice, text
from perdure.cli.shell.output import ago, in_time, shorten
from perdure.cli.shell.results import listing, pages, showing

if TYPE_CHECKING:
    from perdure.outbox.model import Effect

EMPTY = """The outbox is empty. What must happen outside is stored here until it is done, such as a webhook:

  perdure run create greet '{"name": "Ann"}' --webhook https://example.com/hook"""
COLUMNS = ("entry_id", "state", "consumer", "attempts", "created", "last error")

app = CommandGroup("Show the outbox and retry what failed.")

IdArgument = Annotated[str, id_argument("ENTRY_ID", "effect")]
ConsumerOption = Annotated[str | None, text("NAME", "Filter by consumer, such as webhook.", "--consumer")]
SubjectOption = Annotated[
    str | None,
    id_option("ID", "Filter by what it is about, such as a run ID.", "--subject", kinds=EXPLAINED),
]


@app.client_command("list")
async def list_entries(
    context: CommandContext,
    state: Annotated[
        str | None,
        text("STATE", "Filter by state: pending, processing, completed or failed.", "--state", "-s"),
    ] = None,
    dead: Annotated[bool, flag("--dead", help="Show only dead letters: failed for good.")] = False,
    consumer: ConsumerOption = None,
    subject: SubjectOption = None,
    limit: LimitOption = 20,
) -> None:
    """List entries, newest first."""
    from perdure.outbox.model import DEAD, EFFECT_STATES

    chosen = optional_choice(state, EFFECT_STATES, "--state")
    async with context.connect() as connection:
        entries = await pages(
            lambda limit, cursor: connection.outbox.list(
                status=DEAD if dead else None,
                state=chosen,
                consumer=consumer,
                subject=subject,
                limit=limit,
                cursor=cursor,
            ),
            limit,
        )
    filtered = dead or any(option is not None for option in (state, consumer, subject))
    listing(context, entries, COLUMNS, _row, noun="entries", empty=EMPTY, filtered=filtered)


def _row(entry: Effect) -> tuple[Any, ...]:
    return (
        entry.id,
        _state(entry),
        entry.consumer,
        entry.attempts,
        ago(entry.created_at),
        None if entry.last_error is None else shorten(entry.last_error),
    )


def _state(entry: Effect) -> str:
    return "dead" if entry.status == "dead" else str(entry.state)


@app.client_command("show")
async def show_entry(context: CommandContext, entry_id: IdArgument) -> None:
    """Show an entry and its body."""
    async with context.connect() as connection:
        entry = await connection.outbox.get(entry_id)
    rows = (
        ("entry", entry.id),
        ("state", _state(entry)),
        ("consumer", entry.consumer),
        ("subject", entry.subject),
        ("target", entry.target),
        ("attempts", entry.attempts),
        ("created", ago(entry.created_at)),
        ("lease ends" if entry.state == "processing" else "next try", in_time(entry.due_at)),
        ("completed", ago(entry.delivered_at)),
        ("given up", ago(entry.died_at)),
        ("last error", entry.last_error),
        ("body", entry.body),
    )
    showing(context, entry, rows)


@app.client_command("retry")
async def retry_entries(
    context: CommandContext,
    entry_id: Annotated[str | None, id_argument("ENTRY_ID", "effect")] = None,
    dead: Annotated[bool, flag("--dead", help="Retry all dead letters.")] = False,
    consumer: ConsumerOption = None,
    subject: SubjectOption = None,
) -> None:
    """Retry an entry now, or all dead letters."""
    if (entry_id is None) != dead:
        raise typer.BadParameter("give an ENTRY_ID or --dead")
    async with context.connect() as connection:
        if entry_id is None:
            answer = await connection.outbox.retry_dead(consumer=consumer, subject=subject)
            context.answer(
                answer, f"Retrying {answer.retried} dead letter{'' if answer.retried == 1 else 's'}."
            )
            return
        entry = await connection.outbox.retry(entry_id)
    context.answer(entry, f"Entry {entry.id} is {entry.state} and will be delivered now.")
