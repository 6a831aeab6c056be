"""Claiming rollouts from the queue, and giving a claim back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.access.operations import audit, keyed_as
from perdure.kernel import changes
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import Write
from perdure.kernel.storage.port import Row, Tx
from perdure.rollouts import sql, tables
from perdure.rollouts.model import PREPARING, QUEUING, REQUEUING, ROLLOUT, Kinds
from perdure.rollouts.operations import lines
from perdure.rollouts.operations.conditions import locks_lines, watched
from perdure.rollouts.operations.enqueue import attempt_view, new_attempt
from perdure.rollouts.operations.work import READY_CHANNEL, Work, counted
from perdure.rollouts.operations.workers import Workers

RIPEN_ROWS = 500

Claimed = tuple[Row, Row]
"""A rollout and its new attempt, as `ROLLOUT_VIEW` and `ATTEMPT_VIEW` show them."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's wish for up to `limit` rollouts."""

    worker_id: str | None
    limit: int


@watched
@keyed_as("dequeue_rollout")
async def claim_rollouts(
    tx: Tx, claims: Sequence[Claim], queue: str, kind: str, kinds: Kinds
) -> list[list[Claimed]]:
    """Give each claim of a caller the next rollouts of the queue."""
    answers = await claim(tx, claims, queue, kind, kinds)
    await audit(tx, "dequeue_rollout", [_attempt(*pair) for share in answers for pair in share])
    return answers


def _attempt(rollout: Row, attempt: Row) -> str:
    """What an attempt is called in the audit."""
    return str(rollout[0]) + "/" + str(attempt[2])


async def claim(tx: Tx, claims: Sequence[Claim], queue: str, kind: str, kinds: Kinds) -> list[list[Claimed]]:
    """Give each claim the next rollouts of the queue, each with its new attempt, in one transaction."""
    await promote_due(tx)
    wanted = sum(item.limit for item in claims)
    rows = list(
        await tx.all(sql.CLAIM, queue=queue, kind=kind, n=wanted, target=ROLLOUT.step(QUEUING, "claimed"))
    )
    rows.sort(key=lambda row: (-row[11], row[12]))
    rows = await _hold_lines(tx, rows)
    answers, attempts = _share(tx, claims, rows)
    changes.tell(tx, "rollout", ((row[0], row[5]) for row in rows))
    workers = await _tell_workers(tx, claims, answers)
    begun = [(sql.ADD_ATTEMPTS, attempts), _holding(tx, rows, attempts)]
    later = [*workers.changed(), counted(tx, _moved(rows))]
    handler = kinds[kind].on_claimed
    if rows and handler is not None:
        # The kind is told before what comes later in the order of locks.
        await tx.write(*begun)
        await handler(tx, [(attempt[1], attempt[3]) for attempt in attempts])
        begun = []
    await tx.defer(*begun, *later)
    return answers


def _share(
    tx: Tx, claims: Sequence[Claim], rows: Sequence[Row]
) -> tuple[list[list[Claimed]], list[tuple[Any, ...]]]:
    """Deal the rollouts out in the order of the claims."""
    attempts: list[tuple[Any, ...]] = []
    answers: list[list[Claimed]] = []
    left = iter(rows)
    for item in claims:
        share: list[Claimed] = []
        for _, row in zip(range(item.limit), left, strict=False):
            attempt = new_attempt(tx, (row[0], row[10], row[1], row[6]), row[9], item.worker_id)
            attempts.append(attempt)
            share.append((tuple(row)[:10], attempt_view(attempt)))
        answers.append(share)
    return answers, attempts


def _moved(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        kind, status, was = row[10], row[5], row[14]
        counts[kind, was] = counts.get((kind, was), 0) - 1
        counts[kind, status] = counts.get((kind, status), 0) + 1
    return counts


async def _tell_workers(tx: Tx, claims: Sequence[Claim], answers: Sequence[Sequence[Claimed]]) -> Workers:
    """A worker is linked to the last rollout it got; one that got none is idle."""
    workers = Workers(tx)
    await workers.load([item.worker_id for item in claims])
    for item, share in zip(claims, answers, strict=True):
        if share:
            rollout, attempt = share[-1]
            workers.claimed(item.worker_id, rollout[0], attempt[2], dequeued=True)
        else:
            workers.found_nothing(item.worker_id)
    return workers


async def _hold_lines(tx: Tx, rows: list[Row]) -> list[Row]:
    """Lock the lines of the claimed rollouts; where another has a line's lock, its rollout goes back."""
    names = [row[13] for row in rows if row[13] is not None]
    if not names:
        return rows
    locked = await lines.try_lines(tx, names)
    refused = [row for row in rows if row[13] is not None and row[13] not in locked]
    if refused:
        back = [(row[14], row[12], row[9] - 1, tx.ns, row[0], row[5], row[9]) for row in refused]
        await tx.update_many(sql.GIVE_BACK, back)
    return [row for row in rows if row[13] is None or row[13] in locked]


def _holding(tx: Tx, rows: Sequence[Row], attempts: Sequence[tuple[Any, ...]]) -> Write:
    """The attempts that hold lines from now on."""
    holders = [
        (row[13], row[0], attempt[3])
        for row, attempt in zip(rows, attempts, strict=True)
        if row[13] is not None
    ]
    return lines.holding(tx, holders)


async def promote_due(tx: Tx) -> None:
    """Make ready what waited for a time that has come."""
    if not await tx.probe(tables.DUE):
        return
    await lines.ripen_lines(tx, RIPEN_ROWS)
    for _, queue in await tx.all(sql.RIPEN, n=RIPEN_ROWS):
        tx.hint(READY_CHANNEL, queue)


@watched
@locks_lines
async def release_rollouts(
    tx: Tx, claimed: Sequence[tuple[str, str]], kinds: Kinds, lined: bool = False
) -> None:
    """Take back claims, (rollout_id, attempt_id), whose answer reached nobody.

    The attempt never began: it is removed, and the rollout is ready again at its old place.
    """
    work = Work(tx, kinds)
    await work.load([rollout_id for rollout_id, _ in claimed], kinds.names(), lined=lined)
    workers = Workers(tx)
    await workers.load([attempt.worker_id for rows in work.attempts.values() for attempt in rows])
    counts: dict[tuple[str, str], int] = {}
    for rollout_id, attempt_id in claimed:
        rollout = work.rollouts.get(rollout_id)
        latest = work.attempts[rollout_id][-1] if rollout and work.attempts[rollout_id] else None
        if rollout is None or latest is None or latest.id != attempt_id:
            continue
        if not latest.status == rollout.status == PREPARING:
            # Somebody has spoken of it meanwhile, so that there is something to keep.
            continue
        queued = rollout.queued_as or REQUEUING
        back = (
            queued,
            rollout.position,
            rollout.attempts - 1,
            tx.ns,
            rollout_id,
            rollout.status,
            rollout.attempts,
        )
        if await tx.update_many(sql.GIVE_BACK, [back]):
            await tx.execute(sql.DROP_ATTEMPT, id=rollout_id, sequence_id=latest.sequence_id)
            workers.released(latest.worker_id, attempt_id)
            work.attempts[rollout_id].pop()
            for previous in work.attempts[rollout_id][-1:]:
                # It is the latest again, and may have come back to life meanwhile.
                previous.watch(rollout.limits)
            counts[rollout.kind, rollout.status] = counts.get((rollout.kind, rollout.status), 0) - 1
            counts[rollout.kind, queued] = counts.get((rollout.kind, queued), 0) + 1
            tx.hint(READY_CHANNEL, rollout.queue)
            changes.tell(tx, "rollout", [(rollout_id, queued)])
    await work.save(*workers.changed(), counted(tx, counts))
    await audit(tx, "release_rollout", [rollout_id + "/" + attempt_id for rollout_id, attempt_id in claimed])


@watched
@locks_lines
@keyed_as("start_attempt")
async def start_attempts(
    tx: Tx, requests: Sequence[tuple[str, str | None]], kind: str, kinds: Kinds, lined: bool = False
) -> list[Claimed | NotFound]:
    """Begin another attempt of each (rollout_id, worker_id), whatever its status and its limits."""
    work = Work(tx, kinds)
    await work.load([rollout_id for rollout_id, _ in requests], [kind], lined=lined)
    workers = Workers(tx)
    await workers.load([worker_id for _, worker_id in requests])
    begun: list[tuple[Any, ...] | NotFound] = []
    for rollout_id, worker_id in requests:
        rollout = work.rollouts.get(rollout_id)
        if rollout is None:
            begun.append(NotFound(f"Rollout {rollout_id} not found"))
            continue
        for attempt in work.attempts[rollout_id]:
            if attempt.check_at is not None:
                attempt.check_at, attempt.dirty = None, True
        work.move(rollout, "attempt started")
        rollout.attempts += 1
        attempt_row = new_attempt(tx, rollout.identity, rollout.attempts, worker_id)
        begun.append(attempt_row)
        workers.claimed(worker_id, rollout_id, attempt_row[3], dequeued=False)
    made = [attempt for attempt in begun if not isinstance(attempt, NotFound)]
    await work.save((sql.ADD_ATTEMPTS, made), *workers.changed(), work.counted())
    views = {row[0]: row for row in await tx.all(sql.GET_ROLLOUTS, ids=list(work.rollouts), kinds=[kind])}
    await audit(tx, "start_attempt", [attempt[1] + "/" + attempt[3] for attempt in made])
    return [a if isinstance(a, NotFound) else (views[a[1]], attempt_view(a)) for a in begun]
