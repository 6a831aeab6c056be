"""`perdure worker`: runs a worker, lists and drains workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from perdure.cli.hosting.worker import start
from perdure.cli.shell.ids import id_argument
from perdure.cli.shell.options import CommandContext, CommandGroup, LimitOption, flag, parse_choices, text
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

    statuses = parse_choices(status, WORKER_STATUSES, "--status")
    async with context.connect() as connection:
        page = await pages(
            lambda limit, cursor: connection.workers.search(status=statuses, limit=limit, cursor=cursor),
            limit,
        )
    listing(context, page, COLUMNS, _row, noun="workers", empty=EMPTY, filtered=statuses is not None)


def _row(worker: WorkerDetails) -> tuple[Any, ...]:
    held = [rollout.rollout_id for rollout in worker.held]
    agents = (worker.heartbeat_stats or {}).get("agents")
    return (
        worker.worker_id,
        _status(worker),
        _some(held),
        _some(agents) if isinstance(agents, list) else None,
        ago(worker.last_dequeue_time),
        ago(worker.last_heartbeat_time),
    )


def _status(worker: WorkerDetails) -> str:
    if worker.stopped_at is not None and not worker.held:
        return "stopped"
    return worker.status if worker.draining_since is None else "draining" if worker.held else "drained"


@app.client_command("drain")
async def drain_worker(
    context: CommandContext,
    worker_id: Annotated[str, id_argument("WORKER_ID", "worker", help="ID of a worker.")],
    undo: Annotated[bool, flag("--undo", help="Let it claim again.")] = False,
) -> None:
    """Let a worker claim no more; it finishes what it executes."""
    async with context.connect() as connection:
        workers = connection.workers
        worker = await (workers.undrain(worker_id) if undo else workers.drain(worker_id))
    left = f"; it executes {len(worker.held)} more" if worker.held and not undo else ""
    context.answer(worker, f"{worker_id} is {_status(worker)}{left}")


def _some(names: list[str]) -> str | None:
    """Format the first names, and the number of the others."""
    first = ", ".join(names[:SHOWN])
    return f"{first} and {len(names) - SHOWN} more" if len(names) > SHOWN else first or None
