"""`perdure worker`: runs a worker, or lists the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.hosting.worker import start
from perdure.cli.shell.arguments import choices_of
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, text
from perdure.cli.shell.output import ago
from perdure.cli.shell.results import listing, pages

if TYPE_CHECKING:
    from perdure.rollouts.records import WorkerDetails

EMPTY = """No workers yet. Start one that executes runs:

  perdure worker --agents ./agents.py:agents

A program that claims rollouts under a name is listed too:

  claimed = await store.dequeue_rollout(worker_id="worker-1")"""
SHOWN = 3
COLUMNS = ("worker_id", "status", "executes", "agents", "last claim", "last heartbeat")

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
    """List workers with their status, what they execute and their last heartbeat."""
    from perdure.rollouts.records import WORKER_STATUSES

    statuses = choices_of(status, WORKER_STATUSES, "--status")
    async with context.connect() as connection:
        page = await pages(
            lambda limit, offset: connection.workers.search(status=statuses, limit=limit, offset=offset),
            limit,
        )
    listing(context, page, COLUMNS, _row, noun="workers", empty=EMPTY, filtered=statuses is not None)


def _row(worker: WorkerDetails) -> tuple[Any, ...]:
    held = [each.rollout_id for each in worker.held]
    agents = (worker.heartbeat_stats or {}).get("agents")
    return (
        worker.worker_id,
        worker.status if worker.stopped_at is None or held else "stopped",
        _some(held),
        _some(agents) if isinstance(agents, list) else None,
        ago(worker.last_dequeue_time),
        ago(worker.last_heartbeat_time),
    )


def _some(names: list[str]) -> str | None:
    """The first of some names, and how many more there are."""
    first = ", ".join(names[:SHOWN])
    return f"{first} and {len(names) - SHOWN} more" if len(names) > SHOWN else first or None
