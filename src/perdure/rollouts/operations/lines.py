"""Lines: an order in which one rollout at a time is ready, executing or waiting for a retry.

A transaction locks the row of a line before a rollout enters or leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import LIVE
from perdure.rollouts.operations.work import READY_CHANNEL, LockedRollouts, ready_key
from perdure.rollouts.rows import LineRow, RolloutRow


async def lock_lines(tx: Tx, names: Iterable[str]) -> dict[str, str | None]:
    """Create missing lines, lock all lines, and return their holders."""
    wanted = sorted(set(names))
    return dict(await tx.all(sql.OPEN_LINES, names=wanted)) if wanted else {}


async def leave(work: LockedRollouts) -> None:
    """Pass the line of each ended rollout to the next in it, unless its executor has not stopped yet."""
    ended = [row for row in work.rollouts.values() if row.has_ended and not _is_executed(work, row)]
    for kind in sorted({rollout.kind for rollout in work.stopped}):
        handler = work.kinds[kind].on_stopped
        if handler is not None:
            await handler(work.tx, [rollout.id for rollout in work.stopped if rollout.kind == kind])
    leavers = {row.id: row for row in (*ended, *work.stopped) if row.line is not None}
    holders = [row for row in leavers.values() if work.holders.get(str(row.line)) == row.id]
    if holders:
        await _promote(work, holders)


def _is_executed(work: LockedRollouts, rollout: RolloutRow) -> bool:
    attempt = work.latest(rollout.id)
    return work.kinds[rollout.kind].final and attempt is not None and attempt.status in LIVE


async def _promote(work: LockedRollouts, leavers: Sequence[RolloutRow]) -> None:
    """Pass each line from its holder to the next rollout in the line, which becomes ready."""
    tx = work.tx
    heads = {str(rollout.line): rollout.head for rollout in leavers}
    # A rollout that this transaction has loaded may have left its line too.
    unsure = sorted(line for line, head in heads.items() if head in work.rollouts)
    if unsure:
        heads.update(await tx.all(sql.HEADS_OF_LINES, names=unsure))
    await tx.defer(sql.HOLD_LINES.of([LineRow(line, head) for line, head in sorted(heads.items())]))
    promoted = [head for head in heads.values() if head is not None]
    if promoted:
        for row in await tx.all(sql.PROMOTE, ids=promoted):
            tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))


async def promote_due_in_lines(tx: Tx, limit: int) -> None:
    """Let due delayed rollouts enter their lines."""
    due = await tx.all(sql.DUE_IN_LINES, n=limit)
    if not due:
        return
    holders = await lock_lines(tx, [row.line for row in due])
    # Read again under the locks, because other transactions may have changed the rows.
    due = [row for row in await tx.all(sql.DUE_IN_LINES, n=limit) if row.line in holders]
    for row in due:
        if holders[row.line] is None:
            holders[row.line] = row.id
            await tx.write(sql.HOLD_LINES.of([LineRow(row.line, row.id)]))
        if holders[row.line] == row.id:
            # A rollout that waited for a retry still holds its line.
            await tx.all(sql.PROMOTE, ids=[row.id])
            tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))
        else:
            await tx.execute(sql.QUEUE_UP, id=row.id)
