"""Lines: an order within which one rollout at a time is ready, executing or waiting for a retry.

Whoever enters or leaves a line has locked its row first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Tx
from perdure.rollouts import sql
from perdure.rollouts.model import ENDED
from perdure.rollouts.operations.work import READY_CHANNEL, RolloutRow


async def lock_lines(tx: Tx, names: Iterable[str]) -> dict[str, str | None]:
    """Make the lines that do not exist, lock them all, and tell who holds each."""
    wanted = sorted(set(names))
    await tx.execute_many(sql.OPEN_LINE, [{"line": line} for line in wanted])
    return {row[0]: row[1] for row in await tx.all(sql.LOCK_LINES, names=wanted)}


Holder = tuple[str, str | None, str | None]
"""A line, the rollout that holds it, and that rollout's attempt."""


def holding(tx: Tx, holders: Sequence[Holder]) -> Write:
    """Who holds each line from now on."""
    return sql.HOLD_LINES, [(holder, attempt, tx.ns, line) for line, holder, attempt in holders]


async def leave(tx: Tx, rollouts: Iterable[RolloutRow]) -> None:
    """Give the line of each ended rollout to the next one in it."""
    for rollout in rollouts:
        if rollout.line is not None and rollout.status in ENDED and rollout.was not in ENDED:
            await promote(tx, rollout.line, rollout.id)


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
    holders = await lock_lines(tx, [line for _, line in due])
    # Only under the locks is it certain who still waits for a time.
    due = [row for row in await tx.all(sql.DUE_IN_LINES, n=limit) if row[1] in holders]
    for rollout_id, line in due:
        if holders[line] is None:
            holders[line] = rollout_id
            await tx.write(holding(tx, [(line, rollout_id, None)]))
            await tx.execute(sql.PROMOTE, id=rollout_id)
        else:
            await tx.execute(sql.QUEUE_UP, id=rollout_id)
