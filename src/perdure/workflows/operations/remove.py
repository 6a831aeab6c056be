"""Delete workflow runs that ended long ago, each together with the runs that it started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.workflows import removal_sql, sql
from perdure.workflows.hints import KIND
from perdure.workflows.model import ENDED
from perdure.workflows.removal_sql import OldRun, TreeRun
from perdure.workflows.rows import WorkflowCountRow

FOUND_RUNS: Final = 100
"""Number of old runs per page."""
PART_ROWS: Final = 500
"""Maximum number of rows of a run's parts that one transaction deletes."""


async def old_runs(tx: Tx, status: str, before: int, after: OldRun) -> list[OldRun]:
    """List the next runs without a parent that have a status and ended before a time, after a cursor."""
    return await tx.all(removal_sql.OLD_RUNS, status=status, before=before, **after._asdict(), n=FOUND_RUNS)


async def list_tree(tx: Tx, run_id: str) -> list[TreeRun]:
    """List a run and all runs below it, each after the run that started it."""
    root = await tx.one(removal_sql.GET_TREE_RUN, id=run_id)
    tree = [] if root is None else [root]
    level = tree
    while level:
        level = await tx.all(removal_sql.STARTED_BY, ids=[run.id for run in level])
        tree = [*tree, *level]
    return tree


def has_ended(tree: Sequence[TreeRun], before: int) -> bool:
    """Return whether all runs of a tree ended before a time and have no work due."""
    return all(
        run.status in ENDED
        and run.active is None
        and run.due_at is None
        and run.finished_at is not None
        and run.finished_at < before
        for run in tree
    )


async def lock_tree(tx: Tx, tree: Sequence[TreeRun]) -> list[TreeRun]:
    """Lock the runs and return their current rows. Phases and admission must be locked before."""
    return await tx.all(removal_sql.LOCK_TREE, ids=sorted(run.id for run in tree))


async def delete_run(tx: Tx, run: TreeRun) -> bool:
    """Delete some rows of a run, and finally the run itself. Return whether the run is gone.

    The run is locked and has no rollouts.
    """
    room = PART_ROWS
    for part in removal_sql.PARTS:
        room -= await tx.execute(part, run_id=run.id, n=room)
        if room <= 0:
            return False
    await tx.execute(removal_sql.DROP_RUN, run_id=run.id)
    await tx.write(sql.ADD_COUNTS.of([WorkflowCountRow(run.workflow_name, run.status, tx.shard, -1)]))
    changes.tell(tx, KIND, [(run.id, "deleted")])
    return True
