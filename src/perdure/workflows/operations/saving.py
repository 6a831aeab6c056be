"""Write back runs that a transaction has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perdure.kernel.errors import Conflict
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.workflows import sql
from perdure.workflows.operations.ends import tell_ends
from perdure.workflows.operations.work import RunWork
from perdure.workflows.rows import WorkflowCountRow, WorkflowRunRow


def build_counts(tx: Tx, runs: Iterable[WorkflowRunRow], *, new: bool = False) -> Write:
    """Build the change of the counts of runs by workflow and status."""
    totals: dict[tuple[str, str], int] = {}
    for run in runs:
        if new or run.status != run.was_status:
            totals[run.workflow_name, run.status] = totals.get((run.workflow_name, run.status), 0) + 1
            if not new:
                before = run.workflow_name, run.was_status
                totals[before] = totals.get(before, 0) - 1
    return sql.ADD_COUNTS.of(
        [
            WorkflowCountRow(name, status, tx.shard, more)
            for (name, status), more in sorted(totals.items())
            if more
        ]
    )


async def save_all(tx: Tx, works: Sequence[RunWork]) -> None:
    """Write back runs that were locked and changed."""
    if not works:
        return
    writes: dict[Any, list[Any]] = {}
    for work in works:
        for bulk, rows in await work.save():
            writes.setdefault(bulk, []).extend(rows)
    runs = [work.run for work in works]
    moved, *_ = await tx.write(sql.MOVE_RUNS.of(runs), *writes.items())
    if moved != len(runs):
        raise Conflict("a workflow run changed while it was locked")
    # Counts are locked last.
    await tx.defer(build_counts(tx, runs))
    await tell_ends(tx, runs)
    for work in works:
        work.run.was_status = work.run.status
