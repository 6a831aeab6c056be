"""Walk over workflow runs that are too old, each with its child runs, phases and approvals.

A tree is kept while any run of it is live or has pending work, while one of its phases is executed, and while
a schedule follows it. A run that waits for a person is live; its end withdraws its approvals.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.executions.model import PHASE
from perdure.kernel.storage.port import Tx
from perdure.retention import sql
from perdure.retention.walking import Dropped, DueItem, DueItems, Walk
from perdure.rollouts.operations.remove import delete_unused, has_used_child, list_children, lock_unused
from perdure.threads.operations.remove import count_removed, give_up_threads, traces_of_removed
from perdure.workflows.model import ENDED
from perdure.workflows.operations.remove import (
    FOUND_RUNS,
    delete_run,
    has_ended,
    list_tree,
    lock_tree,
    old_runs,
)
from perdure.workflows.removal_sql import OldRun, TreeRun

PHASES = 100
"""Number of phases that one transaction deletes."""


async def _find(tx: Tx, age: int, place: OldRun | None, status: str) -> DueItems:
    before = tx.now - age
    page = await old_runs(tx, status, before, place or OldRun(-1, ""))
    trees = [await list_tree(tx, row.id) for row in page]
    due = [DueItem(tree[0].id, len(tree)) for tree in trees if await _is_due(tx, tree, before)]
    return due, page[-1] if len(page) == FOUND_RUNS else None


async def _is_due(tx: Tx, tree: Sequence[TreeRun], before: int) -> bool:
    ids = [run.id for run in tree]
    return (
        has_ended(tree, before)
        and not await tx.all(sql.FOLLOWED_AMONG, ids=ids)
        and await tx.one(sql.ANY_OPEN_EXECUTION, ids=ids) is None
        and not await has_used_child(tx, ids, before)
    )


async def _drop(tx: Tx, age: int, ids: Sequence[str], status: str) -> Dropped:
    """Delete a part of the first tree: its last run first, so that the rest can be found from its root."""
    root, *rest = ids
    before = tx.now - age
    tree = await list_tree(tx, root)
    if not tree:
        return Dropped(0, rest)
    last = tree[-1]
    phases = await list_children(tx, last.id, PHASES)
    unused, lines = await lock_unused(tx, phases, before)
    now = await lock_tree(tx, tree)
    if len(unused) < len(phases) or len(now) < len(tree) or not await _is_due(tx, now, before):
        return Dropped(0, rest)
    if phases:
        threads = await tx.all(sql.THREADS_OF_RUNS, ids=phases)
        await give_up_threads(tx, threads)
        traces = await traces_of_removed(tx, [row.id for row in unused])
        removal = await delete_unused(tx, unused, PHASE, lines)
        count_removed(tx, [row for row in traces if row.id in set(removal.gone)], -1)
        if removal.left or len(phases) == PHASES:
            return Dropped(0, ids)
    gone = await delete_run(tx, last)
    return Dropped(int(gone), rest if gone and last.id == root else ids)


WORKFLOW_RUNS = [Walk(_find, _drop, (status,)) for status in sorted(ENDED)]
