"""`perdure worker`: works by itself, or tells who works."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.hosting.worker import start
from perdure.cli.shell.options import CommandContext, LimitOption, at_desk
from perdure.cli.shell.output import ago, make_table

EMPTY = """No worker has come here yet. One that executes runs is started with

  perdure worker --agents ./agents.py:agents

and whoever claims a rollout under a name is one too:

  claimed = await store.dequeue_rollout(worker_id="worker-1")"""

app = typer.Typer()
app.callback(invoke_without_command=True)(start)


@app.command("ls", hidden=True)
@app.command("list")
@at_desk
async def list_workers(
    desk: CommandContext,
    status: Annotated[
        list[str] | None, typer.Option("--status", "-s", help="idle, busy or unknown; repeat it for more.")
    ] = None,
    limit: LimitOption = 100,
) -> None:
    """List the workers: what they do, and when they were last heard of."""
    from perdure.rollouts.records import WORKER_STATUSES

    known = {each: each for each in WORKER_STATUSES}
    unknown = [each for each in status or () if each not in known]
    if unknown:
        raise typer.BadParameter(f"--status is one of {', '.join(known)}, not {unknown[0]!r}")
    statuses = [each for each in WORKER_STATUSES if each in status] if status else None
    async with desk.target.open() as connection:
        page = await connection.store.query_workers(status_in=statuses, limit=limit)
    if desk.as_json:
        desk.output.document({"items": page.items, "total": page.total})
    elif not page:
        desk.output.say(EMPTY if statuses is None else "No worker is like that.")
    else:
        columns = ("worker_id", "status", "rollout_id", "last claim", "last heartbeat")
        rows = [
            (
                each.worker_id,
                each.status,
                each.current_rollout_id,
                ago(each.last_dequeue_time),
                ago(each.last_heartbeat_time),
            )
            for each in page
        ]
        desk.output.show(make_table(columns, rows))
