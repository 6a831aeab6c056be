"""The SQL of diagnostics, written once for both engines."""

from __future__ import annotations

from perdure.diagnostics.model import (
    AskedRow,
    DiagnosedAttemptRow,
    DiagnosedAuditRow,
    DiagnosedRolloutRow,
    DiagnosedWorkerRow,
    HeldCountRow,
    HeldLineRow,
    OpenApprovalsRow,
    ReplacementRow,
)
from perdure.diagnostics.totals import ThreadTotals
from perdure.kernel.storage.dialect import name_statements, statement
from perdure.spans.rows import SpanRecordRow
from perdure.traces.outline import SpanOutlineRow

# A rollout.
GET_ROLLOUT = statement("SELECT {columns} FROM rollouts WHERE ns = :ns AND id = :id", row=DiagnosedRolloutRow)
# The status of a rollout.
GET_STATUS = statement("SELECT status FROM rollouts WHERE ns = :ns AND id = :id", row=str)
# The latest attempt of a rollout.
LATEST_ATTEMPT = statement(
    """
    SELECT {columns:a}
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.id = :id
    """,
    row=DiagnosedAttemptRow,
)
# Number of attempts of a rollout that do not count against its limit.
COUNT_UNCHARGED = statement(
    "SELECT count(*) FROM attempts WHERE ns = :ns AND rollout_id = :id AND charged = 0", row=int
)
# The latest attempts of a rollout, the latest first.
LATEST_ATTEMPTS = statement(
    """
    SELECT {columns} FROM attempts WHERE ns = :ns AND rollout_id = :id ORDER BY sequence_id DESC LIMIT :n
    """,
    row=DiagnosedAttemptRow,
)
# The earliest start among the first :n spans of an attempt in the order of their ids.
FIRST_SPAN = statement(
    """
    SELECT min(start_ns)
    FROM (SELECT start_ns FROM spans WHERE ns = :ns AND born = :born AND rollout_id = :id
      AND attempt_id = :attempt_id ORDER BY span_id LIMIT :n) AS found
    """,
    row=int,
)
# An attempt by its number.
SIDE_BY_NUMBER = statement(
    """
    SELECT {columns} FROM attempts
    WHERE ns = :ns AND rollout_id = :rollout_id AND sequence_id = :sequence_id
    """,
    row=DiagnosedAttemptRow,
)
# An attempt by its id.
SIDE_BY_ID = statement(
    "SELECT {columns} FROM attempts WHERE ns = :ns AND rollout_id = :rollout_id AND id = :id",
    row=DiagnosedAttemptRow,
)
# The outlines of an attempt's first spans.
OUTLINES = statement(
    """
    SELECT {columns} FROM spans
    WHERE ns = :ns AND born = :born AND rollout_id = :rollout_id AND attempt_id = :attempt_id
    ORDER BY sequence_id, ordinal
    LIMIT :n
    """,
    row=SpanOutlineRow,
)
# Spans of a rollout by their ids.
SPANS_OF = statement(
    """
    SELECT {columns} FROM spans
    WHERE ns = :ns AND rollout_id = :rollout_id AND span_id {among:ids}
      AND born = (SELECT start_time FROM rollouts WHERE ns = :ns AND id = :rollout_id)
    """,
    row=SpanRecordRow,
)
# The run that holds a line.
GET_LINE = statement("SELECT {columns} FROM lines WHERE ns = :ns AND line = :line", row=HeldLineRow)
# Number of rollouts without an agent that are ahead in a queue with the same priority, at most :n. Higher
# priorities have their own statement, so that each statement reads one range of the index.
AHEAD_IN_QUEUE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL
      AND agent IS NULL AND priority = :priority AND ready < :place LIMIT :n) AS ahead
    """,
    row=int,
)
# Number of rollouts without an agent that have a higher priority in a queue.
ABOVE_IN_QUEUE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL
      AND agent IS NULL AND priority > :priority LIMIT :n) AS ahead
    """,
    row=int,
)
# Number of rollouts of the same agent and priority that are ahead in a queue.
AHEAD_OF_AGENT = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL
      AND agent = :agent AND priority = :priority AND ready < :place LIMIT :n) AS ahead
    """,
    row=int,
)
# Number of rollouts of the same agent that have a higher priority in a queue.
ABOVE_OF_AGENT = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL
      AND agent = :agent AND priority > :priority LIMIT :n) AS ahead
    """,
    row=int,
)
# Number of rollouts of the same priority that are ahead in a line.
AHEAD_IN_LINE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND line = :line AND behind IS NOT NULL
      AND priority = :priority AND behind < :place LIMIT :n) AS ahead
    """,
    row=int,
)
# Number of rollouts of a higher priority in a line.
ABOVE_IN_LINE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND line = :line AND behind IS NOT NULL
      AND priority > :priority LIMIT :n) AS ahead
    """,
    row=int,
)
# The workers of a namespace, latest sign of life first.
LIST_WORKERS = statement(
    """
    SELECT {columns}
    FROM workers
    WHERE ns = :ns
    ORDER BY coalesce(last_heartbeat_time, last_dequeue_time, 0) DESC
    LIMIT :n
    """,
    row=DiagnosedWorkerRow,
)
# Number of rollouts that each worker executes.
HELD_BY_WORKERS = statement(
    """
    SELECT a.worker_id, count(*) AS held
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.kind = :kind AND r.status {among:statuses} AND a.worker_id IS NOT NULL
    GROUP BY a.worker_id
    """,
    row=HeldCountRow,
)
# The earliest entries of the audit between two times, earliest first.
AUDIT_AT = statement(
    """
    SELECT {columns}
    FROM audit
    WHERE ns = :ns AND id >= :since AND id < :until
    ORDER BY id
    LIMIT :n
    """,
    row=DiagnosedAuditRow,
)
# The latest entries of the audit between two times, latest first.
AUDIT_BEFORE = statement(
    """
    SELECT {columns}
    FROM audit
    WHERE ns = :ns AND id >= :since AND id < :until
    ORDER BY id DESC
    LIMIT :n
    """,
    row=DiagnosedAuditRow,
)
# The earliest run created on a thread between two times with one of these strategies, which stop other runs.
REPLACEMENT = statement(
    """
    SELECT {columns:n}
    FROM runs AS n
    JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id
    WHERE n.ns = :ns AND n.thread_id = :thread_id AND n.created_at >= :since
      AND n.strategy {among:strategies} AND r.start_time >= :since AND r.start_time < :until
    ORDER BY r.start_time
    LIMIT 1
    """,
    row=ReplacementRow,
)
# The runs of a thread that have not ended, oldest first.
LIVE_RUNS = statement(
    """
    SELECT id FROM runs
    WHERE ns = :ns AND thread_id = :thread_id AND live IS NOT NULL ORDER BY created_at
    """,
    row=str,
)
# The latest run of a thread.
LAST_RUN = statement(
    """
    SELECT id
    FROM runs
    WHERE ns = :ns AND thread_id = :thread_id AND gone_at IS NULL
    ORDER BY created_at DESC
    LIMIT 1
    """,
    row=str,
)
# The sums over the runs of a thread.
THREAD_TOTALS = statement(
    """
    SELECT count(*) AS runs, CAST(coalesce(sum(f.input_tokens), 0) AS BIGINT) AS input_tokens,
      CAST(coalesce(sum(f.output_tokens), 0) AS BIGINT) AS output_tokens,
      CAST(coalesce(sum(f.cached_tokens), 0) AS BIGINT) AS cached_tokens,
      CAST(coalesce(sum(f.cost), 0) AS BIGINT) AS cost
    FROM runs AS n
    LEFT JOIN rollout_figures AS f ON f.ns = n.ns AND f.rollout_id = n.id
    WHERE n.ns = :ns AND n.thread_id = :thread_id AND n.gone_at IS NULL
    """,
    row=ThreadTotals,
)
# The interrupts of a state, and its next nodes.
ASKED = statement(
    "SELECT {columns} FROM checkpoints WHERE ns = :ns AND thread_id = :thread_id AND id = :id", row=AskedRow
)
# The namespaces that have rollouts of a kind, or workers.
NAMESPACES_WITH = statement(
    "SELECT ns FROM rollout_counts WHERE kind = :kind UNION SELECT ns FROM workers ORDER BY ns", row=int
)
# The open approvals of namespaces, and when the oldest was requested.
OPEN_APPROVALS = statement(
    """
    SELECT ns, count(*) AS pending, min(created_at) AS oldest
    FROM workflow_approvals
    WHERE ns {among:numbers} AND open = 1
    GROUP BY ns
    """,
    row=OpenApprovalsRow,
)

name_statements(globals())
