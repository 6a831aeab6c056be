"""Completions in the common case: successes of latest attempts that are live and outside lines.

Each row is written once, by an update that checks every condition it depends on. If a condition
does not hold, the operation runs again with locks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perdure.kernel import changes
from perdure.kernel.clock import to_seconds
from perdure.kernel.storage.port import Tx
from perdure.rollouts import completion_sql as sql
from perdure.rollouts.completion_sql import CompletedRollout
from perdure.rollouts.model import LIVE, ROLLOUT, RUNNING, SUCCEEDED, Kinds, compute_outcome, reported
from perdure.rollouts.operations.conditions import LINES_LOCKED
from perdure.rollouts.operations.work import (
    ENDED_CHANNEL,
    ENDED_IN_QUEUE,
    EXECUTED,
    LATEST,
    ROLLOUT_ENDED,
    add_counts,
    ended_key,
)
from perdure.rollouts.operations.workers import WorkerAttempt, WorkerChanges
from perdure.rollouts.rows import AttemptRecordRow
from perdure.service.conditions import Unmet

_STATUS = ROLLOUT.step(RUNNING, reported(SUCCEEDED))
_OUTCOME = compute_outcome(SUCCEEDED, SUCCEEDED)
_LIVE = sorted(LIVE)


async def complete(
    tx: Tx, attempts: Mapping[str, str], kind: str, kinds: Kinds
) -> dict[str, AttemptRecordRow] | None:
    """Complete attempts, given by rollout; return the attempts by rollout.

    Return None, with nothing written, if no rollout is live and outside lines. `LINES_LOCKED` is unmet if
    only some are, or if an attempt is not live or not the latest of its rollout.
    """
    ids = sorted(attempts)
    rollouts = await tx.all(
        sql.COMPLETE_ROLLOUTS, ids=ids, kind=kind, live=_LIVE, status=_STATUS, outcome=_OUTCOME
    )
    if not rollouts:
        return None
    if len(rollouts) < len(attempts):
        raise Unmet(LINES_LOCKED)
    views: list[AttemptRecordRow] = []
    # Most attempts are the first of their rollout, so that this is usually one statement.
    for number in sorted({row.attempts for row in rollouts}):
        ids = sorted([row.id for row in rollouts if row.attempts == number])
        views += await tx.all(sql.COMPLETE_ATTEMPTS, ids=ids, number=number, live=_LIVE, status=SUCCEEDED)
    if len(views) < len(attempts) or any(attempts[row.rollout_id] not in (row.id, LATEST) for row in views):
        raise Unmet(LINES_LOCKED)
    workers = WorkerChanges(tx, kinds)
    for row in views:
        if row.worker_id:
            workers.follow_attempt(WorkerAttempt(row.worker_id, row.rollout_id, row.id, kind, SUCCEEDED))
    if workers.has_changes:
        await tx.defer(*await workers.changed())
    _count_ends(tx, rollouts, views, kind)
    return {row.rollout_id: row for row in views}


def _count_ends(
    tx: Tx, rollouts: Sequence[CompletedRollout], attempts: Sequence[AttemptRecordRow], kind: str
) -> None:
    """Count the ended rollouts and their durations, and publish the ends."""
    for was, count in Counter([row.was for row in rollouts]).items():
        add_counts(tx, {(kind, was): -count, (kind, SUCCEEDED): count})
    tx.count(ROLLOUT_ENDED, kind + "/" + SUCCEEDED, times=len(rollouts))
    for queue, count in Counter([row.queue for row in rollouts]).items():
        tx.count(ENDED_IN_QUEUE[SUCCEEDED], queue, times=count)
    for start, count in Counter([row.start_time for row in attempts]).items():
        tx.count(EXECUTED, kind, to_seconds(max(tx.now - start, 0)), times=count)
    changes.tell(tx, "rollout", ((row.id, SUCCEEDED) for row in rollouts))
    for row in rollouts:
        tx.hint(ENDED_CHANNEL, ended_key(tx.ns, row.id))
