"""The SQL of retention: how much there is, and how much is too old."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import name_statements, statement


class StatsRow(NamedTuple):
    """How much a database holds, in all namespaces."""

    threads: int
    runs: int
    rollouts: int
    attempts: int
    spans: int
    checkpoints: int
    stream_events: int
    items: int
    schedules: int
    workflow_runs: int
    executions: int
    approvals: int
    memory_events: int
    memory_nodes: int
    jobs: int
    outbox: int
    audit: int
    keys: int
    path: str | None
    bytes: int


# How much a database holds.
STATS = statement(
    """
    SELECT
      (SELECT count(*) FROM threads) AS threads,
      (SELECT count(*) FROM runs) AS runs,
      (SELECT count(*) FROM rollouts) AS rollouts,
      (SELECT count(*) FROM attempts) AS attempts,
      (SELECT count(*) FROM spans) AS spans,
      (SELECT count(*) FROM checkpoints) AS checkpoints,
      (SELECT count(*) FROM stream_events) AS stream_events,
      (SELECT count(*) FROM items) AS items,
      (SELECT count(*) FROM schedules) AS schedules,
      (SELECT count(*) FROM workflow_runs) AS workflow_runs,
      (SELECT count(*) FROM executions) AS executions,
      (SELECT count(*) FROM workflow_approvals) AS approvals,
      (SELECT count(*) FROM memory_events) AS memory_events,
      (SELECT count(*) FROM memory_nodes) AS memory_nodes,
      (SELECT count(*) FROM jobs) AS jobs,
      (SELECT count(*) FROM outbox) AS outbox,
      (SELECT count(*) FROM audit) AS audit,
      (SELECT count(*) FROM idempotency) AS keys,
      {database} AS path,
      {database_bytes} AS bytes
    """,
    row=StatsRow,
)
# Entries of the audit before a time.
OLD_AUDIT = statement("SELECT count(*) FROM audit WHERE id < :before", row=int)
# Idempotency keys before a time.
OLD_KEYS = statement("SELECT count(*) FROM idempotency WHERE time < :before", row=int)
# Effects that ended before a time.
OLD_EFFECTS = statement("SELECT count(*) FROM outbox WHERE status = :status AND ended_at < :before", row=int)
# Jobs that ended before a time.
OLD_JOBS = statement("SELECT count(*) FROM jobs WHERE ended_at < :before", row=int)
# Threads and runs that were deleted before a time.
OLD_REMOVED = statement(
    """
    SELECT (SELECT count(*) FROM threads WHERE gone_at <= :before)
      + (SELECT count(*) FROM runs WHERE gone_at <= :before)
    """,
    row=int,
)

name_statements(globals())
