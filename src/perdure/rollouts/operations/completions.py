"""Completions as they usually are: latest attempts, live and outside lines, that have succeeded.

They are read without a lock and written with guards on everything that was decided on, so that each row is
touched once. What has changed in between is not written, and the operation runs again with locks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perdure.kernel import changes
from perdure.kernel.clock import to_seconds
from perdure.kernel.storage.port import Tx
from perdure.rollouts import completion_sql as sql
from perdure.rollouts.completion_sql import CompletedAttempt, CompletedRollout, LatestAttempt
from perdure.rollouts.model import ATTEMPT, LIVE, ROLLOUT, SUCCEEDED, Kinds, outcome_of, reported
from perdure.rollouts.operations.conditions import LinesNeeded
from perdure.rollouts.operations.work import (
    ENDED_CHANNEL,
    ENDED_IN_QUEUE,
    EXECUTED,
    LATEST,
    ROLLOUT_ENDED,
    add_counts,
    ended_key,
)
from perdure.rollouts.operations.workers import Heard, Workers
from perdure.rollouts.rows import AttemptView

_EVENT = reported(SUCCEEDED)


async def complete(
    tx: Tx, attempts: Mapping[str, str], kind: str, kinds: Kinds
) -> dict[str, AttemptView] | None:
    """Complete attempts, given by their rollouts; they are answered by their rollouts, too.

    None, with nothing written, if one is not the latest of its rollout, or it or its rollout is not live.
    """
    rows = await tx.all(sql.LATEST_ATTEMPTS, ids=sorted(attempts), kind=kind)
    if len(rows) < len(attempts) or not all(_is_usual(row, attempts[row.rollout_id]) for row in rows):
        return None
    rows.sort()
    writes = sql.COMPLETE_ROLLOUTS.of(_rollouts(tx, rows)), sql.COMPLETE_ATTEMPTS.of(_attempts(tx, rows))
    workers = Workers(tx, kinds)
    for row in rows:
        if row.worker_id:
            workers.hear(Heard(row.worker_id, row.rollout_id, row.id, kind, SUCCEEDED))
    if workers.have_heard:
        # Workers are locked after what they hold.
        if await tx.write(*writes) != [len(rows), len(rows)]:
            await _look_again()
        await tx.defer(*await workers.changed())
    else:
        for write in writes:
            await tx.expect(write, _look_again)
    _tell(tx, rows, kind)
    return {row.rollout_id: _view(tx, row) for row in rows}


def _is_usual(row: LatestAttempt, attempt_id: str) -> bool:
    return row.status in LIVE and row.rollout_status in LIVE and attempt_id in (row.id, LATEST)


def _rollouts(tx: Tx, rows: Sequence[LatestAttempt]) -> list[CompletedRollout]:
    outcome, now = outcome_of(SUCCEEDED, SUCCEEDED), tx.now
    return [
        CompletedRollout(
            ROLLOUT.step(row.rollout_status, _EVENT),
            outcome,
            now,
            row.rollout_id,
            row.rollout_status,
            row.sequence_id,
        )
        for row in rows
    ]


def _attempts(tx: Tx, rows: Sequence[LatestAttempt]) -> list[CompletedAttempt]:
    now = tx.now
    return [
        CompletedAttempt(
            ATTEMPT.step(row.status, _EVENT),
            now,
            None,
            SUCCEEDED,
            row.rollout_id,
            row.id,
            row.status,
            row.worker_id,
            row.last_heartbeat_time,
            row.metadata,
        )
        for row in rows
    ]


def _view(tx: Tx, row: LatestAttempt) -> AttemptView:
    return AttemptView(
        row.rollout_id,
        row.sequence_id,
        row.id,
        SUCCEEDED,
        row.start_time,
        tx.now,
        row.worker_id,
        row.last_heartbeat_time,
        row.metadata,
    )


def _tell(tx: Tx, rows: Sequence[LatestAttempt], kind: str) -> None:
    """Count what has ended and how long it took, and publish it."""
    for was, count in Counter([row.rollout_status for row in rows]).items():
        add_counts(tx, {(kind, was): -count, (kind, SUCCEEDED): count})
    tx.count(ROLLOUT_ENDED, kind + "/" + SUCCEEDED, times=len(rows))
    for queue, count in Counter([row.queue for row in rows]).items():
        tx.count(ENDED_IN_QUEUE, SUCCEEDED + "/" + queue, times=count)
    for start, count in Counter([row.start_time for row in rows]).items():
        tx.count(EXECUTED, kind, to_seconds(max(tx.now - start, 0)), times=count)
    changes.tell(tx, "rollout", ((row.rollout_id, SUCCEEDED) for row in rows))
    for row in rows:
        tx.hint(ENDED_CHANNEL, ended_key(tx.ns, row.rollout_id))


async def _look_again() -> None:
    raise LinesNeeded
