"""Deleting workflow runs that ended long ago: a run goes with the runs that it has started, whole."""

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
"""How many runs a page has of what is too old."""
PART_ROWS: Final = 500
"""How many rows of a run's parts one transaction deletes."""


async def old_runs(tx: Tx, status: str, before: int, after: OldRun) -> list[OldRun]:
    """The next runs of a status that ended before a time and that no run has started, after a place."""
    return await tx.all(removal_sql.OLD_RUNS, status=status, before=before, **after._asdict(), n=FOUND_RUNS)


async def list_tree(tx: Tx, run_id: str) -> list[TreeRun]:
    """A run, and below it all that it has started, each after the one that started it."""
    found = await tx.one(removal_sql.GET_TREE_RUN, id=run_id)
    tree = [] if found is None else [found]
    level = tree
    while level:
        level = await tx.all(removal_sql.STARTED_BY, ids=[run.id for run in level])
        tree = [*tree, *level]
    return tree


def has_ended(tree: Sequence[TreeRun], before: int) -> bool:
    """Whether all runs of a tree ended before a time, and nothing is left to be done for one."""
    return all(
        run.status in ENDED
        and run.active is None
        and run.due_at is None
        and run.finished_at is not None
        and run.finished_at < before
        for run in tree
    )


async def lock_tree(tx: Tx, tree: Sequence[TreeRun]) -> list[TreeRun]:
    """The same runs as they are now, locked; phases and admission are locked before runs."""
    return await tx.all(removal_sql.LOCK_TREE, ids=sorted(run.id for run in tree))


async def delete_run(tx: Tx, run: TreeRun) -> bool:
    """Delete some of what belongs to a run that is locked and has no rollouts, or in the end the run itself;
    gives whether it is gone."""
    room = PART_ROWS
    for part in removal_sql.PARTS:
        room -= await tx.execute(part, run_id=run.id, n=room)
        if room <= 0:
            return False
    await tx.execute(removal_sql.DROP_RUN, run_id=run.id)
    await tx.write(sql.ADD_COUNTS.of([WorkflowCountRow(run.workflow_name, run.status, tx.shard, -1)]))
    changes.tell(tx, KIND, [(run.id, "deleted")])
    return True
