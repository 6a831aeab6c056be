"""`perdure queue`: list, pause and resume queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.shell.ids import complete_queue
from perdure.cli.shell.options import CommandContext, CommandGroup, name_argument
from perdure.cli.shell.output import ago, human_duration
from perdure.cli.shell.results import listing

if TYPE_CHECKING:
    from perdure.rollouts.overview import QueueState

EMPTY = """Nothing is queued. A run is in the queue agents until a worker claims it:

  perdure run create greet '{"name": "Ann"}'"""
COLUMNS = ("queue", "ready", "delayed", "waiting", "oldest", "paused")

QueueArgument = Annotated[str, name_argument("QUEUE", "Name of a queue, such as agents.", complete_queue)]

app = CommandGroup("List, pause and resume queues.")


@app.client_command("list")
async def list_queues(context: CommandContext) -> None:
    """List the queues in which something waits, and those that are paused."""
    async with context.connect() as connection:
        queues = await connection.rollouts.queues()
    listing(context, queues, COLUMNS, _row, noun="queues", empty=EMPTY)


def _row(queue: QueueState) -> tuple[Any, ...]:
    age = queue.oldest_age_seconds
    oldest = None if age is None else human_duration(age)
    return queue.queue, queue.ready, queue.delayed, queue.waiting, oldest, ago(queue.paused_since)


@app.client_command("pause")
async def pause_queue(context: CommandContext, queue: QueueArgument) -> None:
    """Pause a queue: nothing is claimed from it. What is executed goes on."""
    async with context.connect() as connection:
        state = await connection.workers.pause_queue(queue)
    context.answer(state, f"{queue} is paused; resume it with `perdure queue resume {queue}`")


@app.client_command("resume")
async def resume_queue(context: CommandContext, queue: QueueArgument) -> None:
    """Resume a queue that is paused."""
    async with context.connect() as connection:
        state = await connection.workers.resume_queue(queue)
    context.answer(state, f"{queue} is resumed")
