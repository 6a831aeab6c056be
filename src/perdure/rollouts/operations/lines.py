"""Lines: an order within which one rollout at a time is ready, executing or waiting for a retry.

Whoever enters or leaves a line has locked its row first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import LIVE
from perdure.rollouts.operations.work import READY_CHANNEL, Work, ready_key
from perdure.rollouts.rows import LineRow, RolloutRow


async def lock_lines(tx: Tx, names: Iterable[str]) -> dict[str, str | None]:
    """Make the lines that do not exist, lock them all, and tell who holds each."""
    wanted = sorted(set(names))
    holders: dict[str, str | None] = {}
    # One that is removed between the two statements is made again.
    while missing := [line for line in wanted if line not in holders]:
        await tx.write(sql.OPEN_LINES.of([LineRow(line) for line in missing]))
        holders.update(await tx.all(sql.LOCK_LINES, names=missing))
    return holders


async def leave(work: Work) -> None:
    """Give the line of each ended rollout to the next one in it, unless its executor has still to stop."""
    ended = [each for each in work.rollouts.values() if each.has_ended and not _is_executed(work, each)]
    for kind in sorted({rollout.kind for rollout in work.stopped}):
        handler = work.kinds[kind].on_stopped
        if handler is not None:
            await handler(work.tx, [rollout.id for rollout in work.stopped if rollout.kind == kind])
    left = [each for each in (*ended, *work.stopped) if each.line is not None]
    if left:
        await promote(work.tx, {str(each.line) for each in left}, {each.id for each in left})


def _is_executed(work: Work, rollout: RolloutRow) -> bool:
    attempt = work.latest(rollout.id)
    return work.kinds[rollout.kind].final and attempt is not None and attempt.status in LIVE


async def promote(tx: Tx, lines: Iterable[str], leavers: Container[str]) -> None:
    """Make the heads of those lines ready that one of the leavers held."""
    heads = [row for row in await tx.all(sql.HEADS_OF_LINES, names=sorted(lines)) if row.holder in leavers]
    await tx.defer(sql.HOLD_LINES.of([LineRow(each.line, each.head) for each in heads]))
    promoted = [each.head for each in heads if each.head is not None]
    if promoted:
        for row in await tx.all(sql.PROMOTE, ids=promoted):
            tx.hint(READY_CHANNEL, ready_key(row.queue, row.agent))


async def try_lines(tx: Tx, names: Iterable[str]) -> frozenset[str]:
    """Lock those of the lines that nobody else has locked; a claim never waits."""
    wanted = sorted(set(names))
    return frozenset(await tx.all(sql.TRY_LINES, names=wanted)) if wanted else frozenset()


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
