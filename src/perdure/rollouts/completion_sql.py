"""SQL of the most common completions, and its rows."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import name_statements, statement
from perdure.rollouts.rows import AttemptRecordRow


class CompletedRollout(NamedTuple):
    """A rollout that was completed; the column `queued_as` has its status before."""

    id: str
    attempts: int
    queue: str
    was: str


# Complete live rollouts outside lines. Namespace, kind and status are hidden from PostgreSQL's planner, which
# would otherwise search by one of these columns while it considers the table small.
COMPLETE_ROLLOUTS = statement(
    """
    UPDATE rollouts SET queued_as = status, status = :status, outcome = :outcome, end_time = :now
    FROM {each:ids}
    WHERE rollouts.ns = CASE WHEN ids.value IS NOT NULL THEN CAST(:ns AS BIGINT) END
      AND rollouts.id = ids.value
      AND coalesce(rollouts.kind, '') = :kind AND {plain:rollouts.line} IS NULL
      AND coalesce(rollouts.status, '') {among:live}
    RETURNING rollouts.id, rollouts.attempts, rollouts.queue, rollouts.queued_as AS was
    """,
    row=CompletedRollout,
)
# Complete the live attempts of rollouts with this sequence id.
COMPLETE_ATTEMPTS = statement(
    """
    UPDATE attempts SET status = :status, end_time = :now, check_at = NULL, reason = :status
    FROM {each:ids}
    WHERE attempts.ns = CASE WHEN ids.value IS NOT NULL THEN CAST(:ns AS BIGINT) END
      AND attempts.rollout_id = ids.value
      AND coalesce(attempts.sequence_id, 0) = :number AND attempts.status {among:live}
    RETURNING {columns:attempts}
    """,
    row=AttemptRecordRow,
)

name_statements(globals())
