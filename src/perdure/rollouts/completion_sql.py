"""The SQL of completions as they usually are, and its rows."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import BulkUpdate, name_statements, statement
from perdure.rollouts.tables import ATTEMPTS, ROLLOUTS


class LatestAttempt(NamedTuple):
    """The latest attempt of a rollout outside lines, and what a completion reads of the rollout."""

    rollout_id: str
    sequence_id: int
    id: str
    status: str
    start_time: int
    worker_id: str | None
    last_heartbeat_time: int | None
    metadata: str | None
    queue: str
    rollout_status: str


class CompletedRollout(NamedTuple):
    """A rollout that is completed, if it still is what `was` says."""

    status: str
    outcome: str | None
    end_time: int
    id: str
    was_status: str
    was_attempts: int


class CompletedAttempt(NamedTuple):
    """An attempt that is completed, if it still is what `was` says."""

    status: str
    end_time: int
    check_at: None
    reason: str
    rollout_id: str
    id: str
    was_status: str
    was_worker_id: str | None
    was_last_heartbeat_time: int | None
    was_metadata: str | None


# The latest attempts of rollouts outside lines. Nothing is locked: what is decided on them is written with
# guards. Namespace and kind are no constants to PostgreSQL, which would otherwise look for them alone while
# it takes a table for small.
LATEST_ATTEMPTS = statement(
    """
    SELECT a.rollout_id, a.sequence_id, a.id, a.status, a.start_time, a.worker_id, a.last_heartbeat_time,
      a.metadata, r.queue, r.status AS rollout_status
    FROM {each:ids} CROSS JOIN rollouts AS r
    JOIN attempts AS a ON a.ns = coalesce(r.ns, 0) AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = CASE WHEN ids.value IS NULL THEN 0 ELSE :ns END AND r.id = ids.value
      AND coalesce(r.kind, '') = :kind AND {plain:r.line} IS NULL
    """,
    row=LatestAttempt,
)
# Rollouts that are completed.
COMPLETE_ROLLOUTS = BulkUpdate(
    ROLLOUTS,
    CompletedRollout,
    sets=("status", "outcome", "end_time"),
    keys=("ns", "id"),
    guards=("status", "attempts"),
)
# Attempts that are completed. The id is a key too: one that was taken back left its number to another.
COMPLETE_ATTEMPTS = BulkUpdate(
    ATTEMPTS,
    CompletedAttempt,
    sets=("status", "end_time", "check_at", "reason"),
    keys=("ns", "rollout_id", "id"),
    guards=("status", "worker_id", "last_heartbeat_time", "metadata"),
)

name_statements(globals())
