"""SQL that finds threads and runs to remove."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.threads.tables import REMOVED_RUNS


class GoneRow(NamedTuple):
    """Deleted thread or run of any namespace, with the approximate number of its rows."""

    ns: int
    id: str
    weight: int


class OldThread(NamedTuple):
    """Thread without recent changes, and when it was created."""

    created_at: int
    id: str


class RemovedRun(NamedTuple):
    """Rollout whose run was removed."""

    id: str
    kind: str
    status: str


class RemovedRuns(NamedTuple):
    """Number of rollouts of a kind and a status whose runs were removed."""

    kind: str
    status: str
    shard: int
    total: int


# Threads deleted before a time, in all namespaces, with the approximate number of their rows.
GONE_THREADS = statement(
    """
    SELECT t.ns, t.id,
      (SELECT count(*) FROM checkpoints AS c WHERE c.ns = t.ns AND c.thread_id = t.id)
      + (SELECT count(*) FROM graph_checkpoints AS g WHERE g.ns = t.ns AND g.thread_id = t.id)
      + (SELECT coalesce(sum(s.last_seq), 0) FROM runs AS n
        CROSS JOIN streams AS s WHERE n.ns = t.ns AND n.thread_id = t.id AND s.ns = n.ns AND s.stream = n.id)
      AS weight
    FROM threads AS t WHERE t.gone_at <= :before ORDER BY t.gone_at LIMIT :n
    """,
    row=GoneRow,
)
# Idle threads unchanged since a time, after a cursor, the oldest first.
OLD_THREADS = statement(
    """
    SELECT t.created_at, t.id FROM threads AS t
    WHERE t.ns = :ns AND t.temporary IS NULL AND t.created_at >= :created_at AND t.created_at < :before
      AND (t.created_at, {plain:t.id}) > (:created_at, :id)
      AND t.updated_at < :before AND {plain:t.gone_at} IS NULL
      AND NOT EXISTS (SELECT 1 FROM runs AS n
        WHERE n.ns = t.ns AND n.thread_id = t.id AND n.live IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.ns = t.ns AND l.line = t.id AND l.holder IS NOT NULL)
    ORDER BY t.created_at, t.id LIMIT :n
    """,
    row=OldThread,
)
_CONTINUED = """
    (EXISTS (SELECT 1 FROM runs AS m WHERE m.ns = t.ns AND m.thread_id = t.id AND EXISTS (
      SELECT 1 FROM runs AS o WHERE o.ns = m.ns AND o.thread_id = m.thread_id AND o.id <> m.id))
    OR EXISTS (SELECT 1 FROM thread_lifetimes AS l WHERE l.ns = t.ns AND l.thread_id = t.id))
    """
# Idle threads like these that were created for one run, with no later run and no lifetime.
OLD_SINGLE_THREADS = statement(
    """
    SELECT t.created_at, t.id FROM threads AS t
    WHERE t.ns = :ns AND t.single IS NOT NULL AND t.created_at >= :created_at AND t.created_at < :before
      AND (t.created_at, {plain:t.id}) > (:created_at, :id)
      AND t.updated_at < :before AND {plain:t.gone_at} IS NULL
      AND NOT EXISTS (SELECT 1 FROM runs AS n
        WHERE n.ns = t.ns AND n.thread_id = t.id AND n.live IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.ns = t.ns AND l.line = t.id AND l.holder IS NOT NULL)
      AND NOT """
    + _CONTINUED
    + """
    ORDER BY t.created_at, t.id LIMIT :n
    """,
    row=OldThread,
)
# Threads, out of some IDs, that have more than one run, or a lifetime.
CONTINUED_THREADS = statement(
    "SELECT t.id FROM threads AS t WHERE t.ns = :ns AND t.id {among:ids} AND " + _CONTINUED, row=str
)
# Runs deleted before a time, in all namespaces, with the number of their events.
GONE_RUNS = statement(
    """
    SELECT n.ns, n.id,
      coalesce((SELECT s.last_seq FROM streams AS s WHERE s.ns = n.ns AND s.stream = n.id), 0) AS weight
    FROM runs AS n WHERE n.gone_at <= :before ORDER BY n.gone_at LIMIT :n
    """,
    row=GoneRow,
)
# Kinds and statuses of rollouts whose runs were removed.
TRACES_OF_REMOVED = statement(
    """
    SELECT r.id, r.kind, r.status FROM rollouts AS r
    WHERE r.ns = :ns AND r.id {among:ids}
      AND NOT EXISTS (SELECT 1 FROM runs AS n WHERE n.ns = r.ns AND n.id = r.id)
    """,
    row=RemovedRun,
)
# Increase the counts of rollouts whose runs were removed.
ADD_REMOVED_RUNS = BulkInsert(
    REMOVED_RUNS, RemovedRuns, on_conflict="UPDATE SET total = removed_runs.total + excluded.total"
)

name_statements(globals())
