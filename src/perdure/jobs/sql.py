"""SQL of jobs, written once for both engines."""

from __future__ import annotations

from perdure.jobs.model import EndedJobRow, JobEndRow, JobRow, JobWithRollout, ReadyNamespaceRow, WaitingRow
from perdure.jobs.tables import JOBS
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement

# New jobs.
ADD = BulkInsert(JOBS, JobRow)
# Jobs by their ids.
GET = statement("SELECT {columns} FROM jobs WHERE ns = :ns AND id {among:ids}", row=JobRow)
# Lock the jobs of a name that wait to start, by their keys: until the transaction ends, none of them starts.
LOCK_WAITING = statement(
    """
    SELECT {columns} FROM jobs WHERE ns = :ns AND name = :name AND waiting_key {among:keys}
    ORDER BY waiting_key {lock}
    """,
    row=WaitingRow,
)
# Lock the starting jobs that have a waiting key. Waits for transactions that have locked them.
LOCK_BEGINNING = statement(
    """
    SELECT {columns} FROM jobs WHERE ns = :ns AND id {among:ids} AND waiting_key IS NOT NULL
    ORDER BY name, waiting_key {lock}
    """,
    row=WaitingRow,
)
# Remove the waiting keys of jobs that have started.
BEGIN = statement("UPDATE jobs SET waiting_key = NULL WHERE ns = :ns AND id {among:ids}")
# Write the ends of jobs, or the error of their last attempt.
SAVE_ENDS = BulkUpdate(
    JOBS, JobEndRow, sets=("waiting_key", "ended_at", "error", "result"), keys=("ns", "id")
)
# The namespaces in which jobs of some names are ready.
READY_NAMESPACES = statement(
    """
    SELECT n.id, n.name FROM namespaces AS n
    WHERE EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = n.id AND r.queue = :queue
                  AND r.agent {among:names} AND r.ready IS NOT NULL)
    ORDER BY n.id
    """,
    row=ReadyNamespaceRow,
)
# Jobs that ended before a time, in all namespaces.
ENDED = statement(
    "SELECT {columns} FROM jobs WHERE ended_at < :before ORDER BY ended_at LIMIT :n", row=EndedJobRow
)
# Delete jobs.
DROP = statement("DELETE FROM jobs WHERE ns = :ns AND id {among:ids}")

# A job with the status of its rollout.
VIEW = statement(
    """
    SELECT j.id, j.name, j.key, r.status, r.outcome, r.attempts, j.created_at, j.ended_at, j.error, j.payload,
           j.result
    FROM jobs AS j JOIN rollouts AS r ON r.ns = j.ns AND r.id = j.id
    WHERE j.ns = :ns AND j.id {among:ids}
    """,
    row=JobWithRollout,
)

name_statements(globals())
