"""Lines: an order within which one rollout at a time is ready, executing or waiting for a retry.

Whoever enters or leaves a line has locked its row first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import LIVE
from perdure.rollouts.operations.work import READY_CHANNEL, LockedRollouts, ready_key
from perdure.rollouts.rows import LineRow, RolloutRow


async def lock_lines(tx: Tx, names: Iterable[str]) -> dict[str, str | None]:
    """Make the lines that do not exist, lock them all, and tell who holds each."""
    wanted = sorted(set(names))
    return dict(await tx.all(sql.OPEN_LINES, names=wanted)) if wanted else {}


async def leave(work: LockedRollouts) -> None:
    """Give the line of each ended rollout to the next one in it, unless its executor has still to stop."""
    ended = [each for each in work.rollouts.values() if each.has_ended and not _is_executed(work, each)]
    for kind in sorted({rollout.kind for rollout in work.stopped}):
        handler = work.kinds[kind].on_stopped
        if handler is not None:
            await handler(work.tx, [rollout.id for rollout in work.stopped if rollout.kind == kind])
    left = {each.id: each for each in (*ended, *work.stopped) if each.line is not None}
    holders = [each for each in left.values() if work.holders.get(str(each.line)) == each.id]
    if holders:
        await _promote(work, holders)


def _is_executed(work: LockedRollouts, rollout: RolloutRow) -> bool:
    attempt = work.latest(rollout.id)
    return work.kinds[rollout.kind].final and attempt is not None and attempt.status in LIVE


async def _promote(work: LockedRollouts, leavers: Sequence[RolloutRow]) -> None:
    """Give the lines of their holders to the next ones in them, which are ready now."""
    tx = work.tx
    heads = {str(each.line): each.head for each in leavers}
    # One that this transaction has loaded may have left its line too.
    unsure = sorted(line for line, head in heads.items() if head in work.rollouts)
    if unsure:
        heads.update(await tx.all(sql.HEADS_OF_LINES, names=unsure))
    await tx.defer(sql.HOLD_LINES.of([LineRow(line, head) for line, head in sorted(heads.items())]))
    promoted = [head for head in heads.values() if head is not None]
    if promoted:
        for row in await tx.all(sql.PROMOTE, ids=promoted):
            tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))


async def promote_due_in_lines(tx: Tx, limit: int) -> None:
    """Let delayed rollouts whose time has come enter their lines."""
    due = await tx.all(sql.DUE_IN_LINES, n=limit)
    if not due:
        return
    holders = await lock_lines(tx, [row.line for row in due])
    # Only under the locks is it certain who still waits for a time.
    due = [row for row in await tx.all(sql.DUE_IN_LINES, n=limit) if row.line in holders]
    for row in due:
        if holders[row.line] is None:
            holders[row.line] = row.id
            await tx.write(sql.HOLD_LINES.of([LineRow(row.line, row.id)]))
        if holders[row.line] == row.id:
            # One that waited for a retry has held its line all the while.
            await tx.all(sql.PROMOTE, ids=[row.id])
            tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))
        else:
            await tx.execute(sql.QUEUE_UP, id=row.id)
