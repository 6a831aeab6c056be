"""`perdure worker`: runs a worker, or lists the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.hosting.worker import start
from perdure.cli.shell.arguments import choices_of
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, text
from perdure.cli.shell.output import ago
from perdure.cli.shell.results import listing

if TYPE_CHECKING:
    from perdure import Worker

EMPTY = """No workers yet. Start one that executes runs:

  perdure worker --agents ./agents.py:agents

A program that claims rollouts under a name is listed too:

  claimed = await store.dequeue_rollout(worker_id="worker-1")"""
COLUMNS = ("worker_id", "status", "rollout_id", "last claim", "last heartbeat")

app = CommandGroup()
app.callback(invoke_without_command=True, no_args_is_help=False)(start)


@app.client_command("list")
async def list_workers(
    context: CommandContext,
    status: Annotated[
        list[str] | None,
        text("STATUS", "Filter by status: idle, busy or unknown; repeatable.", "--status", "-s"),
    ] = None,
    limit: LimitOption = 100,
) -> None:
    """List workers with their status and last heartbeat."""
    from perdure.rollouts.records import WORKER_STATUSES

    statuses = choices_of(status, WORKER_STATUSES, "--status")
    async with context.connect() as connection:
        page = await connection.store.query_workers(status_in=statuses, limit=limit)
    listing(context, page, COLUMNS, _row, noun="workers", empty=EMPTY, filtered=statuses is not None)


def _row(worker: Worker) -> tuple[Any, ...]:
    return (
        worker.worker_id,
        worker.status,
        worker.current_rollout_id,
        ago(worker.last_dequeue_time),
        ago(worker.last_heartbeat_time),
    )
