"""Lines: an order within which one rollout at a time is ready, executing or waiting for a retry.

Whoever enters or leaves a line has locked its row first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import LIVE
from perdure.rollouts.operations.work import READY_CHANNEL, RolloutRow, Work


async def lock_lines(tx: Tx, names: Iterable[str]) -> dict[str, str | None]:
    """Make the lines that do not exist, lock them all, and tell who holds each."""
    wanted = sorted(set(names))
    await tx.execute_many(sql.OPEN_LINE, [{"line": line} for line in wanted])
    return {row[0]: row[1] for row in await tx.all(sql.LOCK_LINES, names=wanted)}


Holder = tuple[str, str | None, str | None]
"""A line, the rollout that holds it, and that rollout's attempt."""


def holding(tx: Tx, holders: Sequence[Holder]) -> Write:
    """Who holds each line from now on."""
    return sql.HOLD_LINES, [(holder, attempt, None, tx.ns, line) for line, holder, attempt in holders]


async def leave(work: Work) -> None:
    """Give the line of each ended rollout to the next one in it, unless its executor has still to stop."""
    for rollout in work.rollouts.values():
        if rollout.line is not None and rollout.has_ended and not _is_executed(work, rollout):
            await promote(work.tx, rollout.line, rollout.id)
    for kind in {rollout.kind for rollout in work.stopped}:
        handler = work.kinds[kind].on_stopped
        if handler is not None:
            await handler(work.tx, [rollout.id for rollout in work.stopped if rollout.kind == kind])
    for rollout in work.stopped:
        if rollout.line is not None:
            await promote(work.tx, rollout.line, rollout.id)


def _is_executed(work: Work, rollout: RolloutRow) -> bool:
    attempt = work.latest(rollout.id)
    return work.kinds[rollout.kind].final and attempt is not None and attempt.status in LIVE


async def promote(tx: Tx, line: str, leaver: str) -> None:
    """Make the head of a line ready, if `leaver` held the line."""
    rows = await tx.all(sql.LOCK_LINES, names=[line])
    if not rows or rows[0][1] != leaver:
        return
    head = await tx.one(sql.HEAD_OF_LINE, line=line)
    await tx.write(holding(tx, [(line, head[0] if head else None, None)]))
    if head is not None:
        await tx.execute(sql.PROMOTE, id=head[0])
        tx.hint(READY_CHANNEL, head[2])


async def try_lines(tx: Tx, names: Iterable[str]) -> frozenset[str]:
    """Lock those of the lines that nobody else has locked; a claim never waits."""
    wanted = sorted(set(names))
    return frozenset(row[0] for row in await tx.all(sql.TRY_LINES, names=wanted)) if wanted else frozenset()


async def ripen_lines(tx: Tx, limit: int) -> None:
    """Let delayed rollouts whose time has come enter their lines."""
    due = await tx.all(sql.DUE_IN_LINES, n=limit)
    if not due:
        return
    holders = await lock_lines(tx, [line for _, line, _ in due])
    # Only under the locks is it certain who still waits for a time.
    due = [row for row in await tx.all(sql.DUE_IN_LINES, n=limit) if row[1] in holders]
    for rollout_id, line, queue in due:
        if holders[line] is None:
            holders[line] = rollout_id
            await tx.write(holding(tx, [(line, rollout_id, None)]))
        if holders[line] == rollout_id:
            # One that waited for a retry has held its line all the while.
            await tx.execute(sql.PROMOTE, id=rollout_id)
            tx.hint(READY_CHANNEL, queue)
        else:
            await tx.execute(sql.QUEUE_UP, id=rollout_id)
