"""SQL of retention: sizes, and data that is too old."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import name_statements, statement


class StatsRow(NamedTuple):
    """Size of a database, in all namespaces."""

    threads: int
    runs: int
    rollouts: int
    attempts: int
    spans: int
    traces: int
    checkpoints: int
    stream_events: int
    items: int
    schedules: int
    workflow_runs: int
    executions: int
    approvals: int
    conversations: int
    messages: int
    sessions: int
    session_lines: int
    memory_events: int
    memory_nodes: int
    memory_grips: int
    memory_vectors: int
    resources: int
    assistants: int
    workers: int
    jobs: int
    outbox: int
    queue_minutes: int
    usage_hours: int
    audit: int
    keys: int
    path: str | None
    bytes: int


class RunSessions(NamedTuple):
    """Columns that name the session of an open run."""

    id: str
    thread_id: str
    session_id: str | None
    agent_session_id: str | None


# Size of a database.
STATS = statement(
    """
    SELECT
      (SELECT count(*) FROM threads) AS threads,
      (SELECT count(*) FROM runs) AS runs,
      (SELECT count(*) FROM rollouts) AS rollouts,
      (SELECT count(*) FROM attempts) AS attempts,
      (SELECT count(*) FROM spans) AS spans,
      (SELECT count(*) FROM traces) AS traces,
      (SELECT count(*) FROM checkpoints) AS checkpoints,
      (SELECT CAST(coalesce(sum(coalesce(count, 1)), 0) AS BIGINT) FROM stream_events) AS stream_events,
      (SELECT count(*) FROM items) AS items,
      (SELECT count(*) FROM schedules) AS schedules,
      (SELECT count(*) FROM workflow_runs) AS workflow_runs,
      (SELECT count(*) FROM executions) AS executions,
      (SELECT count(*) FROM workflow_approvals) AS approvals,
      (SELECT count(*) FROM messaging_sessions) AS conversations,
      (SELECT count(*) FROM messaging_messages) AS messages,
      (SELECT count(*) FROM session_logs WHERE subpath = '') AS sessions,
      (SELECT count(*) FROM session_lines) AS session_lines,
      (SELECT count(*) FROM memory_events) AS memory_events,
      (SELECT count(*) FROM memory_nodes) AS memory_nodes,
      (SELECT count(*) FROM memory_grips) AS memory_grips,
      (SELECT count(*) FROM memory_vectors) AS memory_vectors,
      (SELECT count(*) FROM resources) AS resources,
      (SELECT count(*) FROM assistants) AS assistants,
      (SELECT count(*) FROM workers) AS workers,
      (SELECT count(*) FROM jobs) AS jobs,
      (SELECT count(*) FROM outbox) AS outbox,
      (SELECT count(*) FROM queue_minutes) AS queue_minutes,
      (SELECT count(*) FROM usage_hours) AS usage_hours,
      (SELECT count(*) FROM audit) AS audit,
      (SELECT count(*) FROM idempotency) AS keys,
      {database} AS path,
      {database_bytes} AS bytes
    """,
    row=StatsRow,
)
# Number of audit entries before a time.
OLD_AUDIT = statement("SELECT count(*) FROM audit WHERE id < :before", row=int)
# Number of idempotency keys before a time.
OLD_KEYS = statement("SELECT count(*) FROM idempotency WHERE time < :before", row=int)
# Number of effects that ended before a time.
OLD_EFFECTS = statement("SELECT count(*) FROM outbox WHERE status = :status AND ended_at < :before", row=int)
# Number of jobs that ended before a time.
OLD_JOBS = statement("SELECT count(*) FROM jobs WHERE ended_at < :before", row=int)
# Number of threads and runs that were deleted before a time.
OLD_REMOVED = statement(
    """
    SELECT (SELECT count(*) FROM threads WHERE gone_at <= :before)
      + (SELECT count(*) FROM runs WHERE gone_at <= :before)
    """,
    row=int,
)
# The ids that are runs.
RUNS_AMONG = statement("SELECT id FROM runs WHERE ns = :ns AND id {among:ids}", row=str)
# IDs started by a schedule that still waits for their end.
FOLLOWED_AMONG = statement(
    "SELECT started_id FROM firings WHERE ns = :ns AND open IS NOT NULL AND started_id {among:ids}", row=str
)
# Threads that a schedule continues.
SCHEDULED_THREADS = statement(
    "SELECT thread_id FROM schedules WHERE ns = :ns AND thread_id {among:ids}", row=str
)
# The threads of runs.
THREADS_OF_RUNS = statement("SELECT DISTINCT thread_id FROM runs WHERE ns = :ns AND id {among:ids}", row=str)
# The open runs, with the sessions named by each run and by its chat.
SESSIONS_OF_RUNS = statement(
    """
    SELECT n.id, n.thread_id, n.session_id, m.agent_session_id FROM runs AS n
    LEFT JOIN messaging_sessions AS m ON m.ns = n.ns AND m.line = n.thread_id
    WHERE n.ns = :ns AND n.live IS NOT NULL ORDER BY n.thread_id, n.created_at
    """,
    row=RunSessions,
)
# The open workflow runs.
OPEN_WORKFLOW_RUNS = statement(
    """
    SELECT id FROM workflow_runs WHERE ns = :ns AND active IS NOT NULL ORDER BY workflow_name, trigger_id
    """,
    row=str,
)
# The sessions of the executions of workflow runs.
SESSIONS_OF_WORKFLOWS = statement(
    """
    SELECT DISTINCT session_id FROM executions
    WHERE ns = :ns AND workflow_run_id {among:ids} AND session_id IS NOT NULL
    """,
    row=str,
)
# One open execution of workflow runs.
ANY_OPEN_EXECUTION = statement(
    """
    SELECT id FROM executions
    WHERE ns = :ns AND workflow_run_id {among:ids} AND {plain:finished_at} IS NULL LIMIT 1
    """,
    row=str,
)

name_statements(globals())
