"""SQL of the search by id: for each kind, the ids with a prefix, and the newest row.

Each statement reads one range of an index. Times are in the unit of the table.
"""

from __future__ import annotations

from typing import NamedTuple

from perdure.access.model import TokenRow
from perdure.kernel.storage.dialect import name_statements, statement


class ObjectMatchRow(NamedTuple):
    """A row with an id, in short. `within` is the id of its owner."""

    id: str
    title: str | None
    status: str | int | None
    time: int | None
    within: str | None


class RolloutMatchRow(NamedTuple):
    """A rollout of any kind: a run, a phase, a job, a request."""

    id: str
    title: str
    status: str
    time: int
    within: str | None
    kind: str
    outcome: str | None


_FIRST = "id >= :first AND id < :last ORDER BY id LIMIT "
_RANGE = _FIRST + ":n"


def _select(table: str, *, title: str, status: str, time: str, within: str, more: str = "") -> str:
    """Return the beginning of a statement that reads rows with an `id`, up to its last condition."""
    columns = ("id", title + " AS title", status + " AS status", time + " AS time", within + " AS within")
    return "SELECT " + ", ".join(columns) + more + " FROM " + table + " WHERE ns = :ns AND "


_ROLLOUT = _select(
    "rollouts",
    title="coalesce(agent, queue)",
    status="status",
    time="start_time",
    within="line",
    more=", kind, outcome",
)

# Rollouts of all kinds.
ROLLOUTS = statement(_ROLLOUT + _RANGE, row=RolloutMatchRow)
# Rollouts of some kinds, among the first rollouts of the range.
ROLLOUTS_OF_KINDS = statement(
    "SELECT {columns} FROM ("
    + (_ROLLOUT + _FIRST + ":most) AS r ")
    + "WHERE kind {among:kinds} ORDER BY id LIMIT :n",
    row=RolloutMatchRow,
)
# The newest rollout of a kind with a status.
NEWEST_ROLLOUTS = statement(
    _ROLLOUT + "kind = :kind AND status = :status ORDER BY start_time DESC LIMIT 1", row=RolloutMatchRow
)
# The newest run.
NEWEST_RUNS = statement(
    """
    SELECT r.id, n.agent AS title, r.status, n.created_at AS time, n.thread_id AS within, r.kind, r.outcome
    FROM runs AS n
    JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id
    WHERE n.ns = :ns AND n.gone_at IS NULL AND {plain:r.kind} = :kind
    ORDER BY n.created_at DESC LIMIT 1
    """,
    row=RolloutMatchRow,
)

_ATTEMPT = _select("attempts", title="worker_id", status="status", time="start_time", within="rollout_id")

# Attempts.
ATTEMPTS = statement(_ATTEMPT + _RANGE, row=ObjectMatchRow)
# The latest attempt of a rollout.
LATEST_ATTEMPTS = statement(
    _ATTEMPT + "rollout_id = :rollout_id ORDER BY sequence_id DESC LIMIT 1", row=ObjectMatchRow
)

_THREAD = (
    _select("threads", title="NULL", status="status", time="created_at", within="NULL")
    + "{plain:gone_at} IS NULL AND "
)

# Threads.
THREADS = statement(_THREAD + _RANGE, row=ObjectMatchRow)
# The newest thread that is not temporary.
NEWEST_THREADS = statement(
    _THREAD + "temporary IS NULL ORDER BY created_at DESC LIMIT 1",
    row=ObjectMatchRow,
)
# Spans of the newest rollouts, because no index has the span ids; see ADR 28.
SPANS = statement(
    """
    SELECT s.span_id AS id, s.name AS title, s.status_code AS status, s.start_ns / 1000 AS time,
      s.rollout_id AS within
    FROM (SELECT ns, born, rollout_id, attempt_id, span_id FROM spans WHERE ns = :ns
      ORDER BY born DESC, rollout_id DESC, attempt_id DESC, span_id DESC LIMIT :most) AS newest
    JOIN spans AS s ON s.ns = newest.ns AND s.born = newest.born AND s.rollout_id = newest.rollout_id
      AND s.attempt_id = newest.attempt_id AND s.span_id = newest.span_id
    WHERE newest.span_id >= :first AND newest.span_id < :last
    LIMIT :n
    """,
    row=ObjectMatchRow,
)

_TRACE = """
    SELECT trace_id AS id, name AS title, errors AS status, start_ns / 1000 AS time, rollout_id AS within
    FROM traces
    WHERE ns = :ns AND """

# Traces.
TRACES = statement(
    _TRACE + "trace_id >= :first AND trace_id < :last ORDER BY trace_id LIMIT :n", row=ObjectMatchRow
)
# The newest trace.
NEWEST_TRACES = statement(_TRACE + "TRUE ORDER BY start_ns DESC, trace_id DESC LIMIT 1", row=ObjectMatchRow)

_MESSAGING_SESSION = _select(
    "messaging_sessions", title="platform", status="active", time="created_at", within="line"
)

# Messaging sessions.
MESSAGING_SESSIONS = statement(_MESSAGING_SESSION + _RANGE, row=ObjectMatchRow)
# The messaging session with the latest use.
NEWEST_MESSAGING_SESSIONS = statement(
    _MESSAGING_SESSION + "TRUE ORDER BY last_activity_at DESC, id DESC LIMIT 1", row=ObjectMatchRow
)

_WORKER = _select(
    "workers",
    title="NULL",
    status="status",
    time="coalesce(last_heartbeat_time, last_dequeue_time)",
    within="current_rollout_id",
)

# Workers.
WORKERS = statement(_WORKER + _RANGE, row=ObjectMatchRow)
# The worker with the latest sign of life.
NEWEST_WORKERS = statement(
    _WORKER + "TRUE ORDER BY coalesce(last_heartbeat_time, last_dequeue_time, 0) DESC LIMIT 1",
    row=ObjectMatchRow,
)

_WORKFLOW_RUN = _select(
    "workflow_runs", title="workflow_name", status="status", time="started_at", within="parent_run_id"
)

# Workflow runs.
WORKFLOW_RUNS = statement(_WORKFLOW_RUN + _RANGE, row=ObjectMatchRow)
# The newest workflow run.
NEWEST_WORKFLOW_RUNS = statement(_WORKFLOW_RUN + "TRUE ORDER BY started_at DESC LIMIT 1", row=ObjectMatchRow)

_APPROVAL = _select(
    "workflow_approvals", title="label", status="status", time="created_at", within="workflow_run_id"
)

# Approvals.
APPROVALS = statement(_APPROVAL + _RANGE, row=ObjectMatchRow)
# The newest approval that is open, or that is not.
NEWEST_APPROVALS = statement(
    _APPROVAL + "open = :open ORDER BY created_at DESC, id DESC LIMIT 1", row=ObjectMatchRow
)

_SCHEDULE = _select("schedules", title="name", status="enabled", time="created_at", within="NULL")

# Schedules by id.
SCHEDULES = statement(_SCHEDULE + _RANGE, row=ObjectMatchRow)
# Schedules by name.
NAMED_SCHEDULES = statement(
    _SCHEDULE + "name IS NOT NULL AND name >= :first AND name < :last ORDER BY name LIMIT :n",
    row=ObjectMatchRow,
)
# The newest schedule, including schedules of servers.
NEWEST_SCHEDULES = statement(
    _SCHEDULE + "coalesce(origin, :api) {among:origins} ORDER BY created_at DESC, id DESC LIMIT 1",
    row=ObjectMatchRow,
)

_ASSISTANT = _select("assistants", title="name", status="NULL", time="created", within="agent")

# Assistants.
ASSISTANTS = statement(_ASSISTANT + _RANGE, row=ObjectMatchRow)
# The newest assistant.
NEWEST_ASSISTANTS = statement(_ASSISTANT + "TRUE ORDER BY created DESC, id DESC LIMIT 1", row=ObjectMatchRow)

_EVENT = _select(
    "memory_events", title="agent", status="NULL", time="timestamp_ms * 1000", within="session_id"
)

# Events of memory.
MEMORY_EVENTS = statement(_EVENT + _RANGE, row=ObjectMatchRow)
# The latest event of memory.
NEWEST_MEMORY_EVENTS = statement(
    _EVENT + "TRUE ORDER BY timestamp_ms DESC, id DESC LIMIT 1", row=ObjectMatchRow
)

_NODE = """
    SELECT n.id, v.title, n.status, n.start_ms * 1000 AS time,
      n.parent_id AS within
    FROM memory_nodes AS n
    LEFT JOIN memory_node_versions AS v ON v.ns = n.ns AND v.node_id = n.id AND v.version = n.version
    WHERE n.ns = :ns AND """

# Nodes of the table of contents of memory.
MEMORY_NODES = statement(
    _NODE + "n.id >= :first AND n.id < :last ORDER BY n.id LIMIT :n",
    row=ObjectMatchRow,
)
# The latest node of a level.
NEWEST_MEMORY_NODES = statement(
    _NODE + "n.level = :level ORDER BY n.start_ms DESC, n.id DESC LIMIT 1", row=ObjectMatchRow
)

_GRIP = _select("memory_grips", title="excerpt", status="NULL", time="timestamp_ms * 1000", within="node_id")

# Grips of memory.
MEMORY_GRIPS = statement(_GRIP + _RANGE, row=ObjectMatchRow)
# The latest grip of memory, because an id begins with the time.
NEWEST_MEMORY_GRIPS = statement(_GRIP + "TRUE ORDER BY id DESC LIMIT 1", row=ObjectMatchRow)

_EFFECT = _select("outbox", title="consumer", status="status", time="created_at", within="subject")

# Effects of the outbox.
EFFECTS = statement(_EFFECT + _RANGE, row=ObjectMatchRow)
# The newest effect of the outbox.
NEWEST_EFFECTS = statement(_EFFECT + "TRUE ORDER BY id DESC LIMIT 1", row=ObjectMatchRow)

_RESOURCES = _select("resources", title="NULL", status="NULL", time="update_time", within="NULL")

# Resources.
RESOURCES = statement(_RESOURCES + _RANGE, row=ObjectMatchRow)
# The resources with the latest change.
NEWEST_RESOURCES = statement(_RESOURCES + "TRUE ORDER BY update_time DESC LIMIT 1", row=ObjectMatchRow)

# Tokens, which have no namespace.
TOKENS = statement(
    """
    SELECT {columns} FROM tokens
    WHERE ns = :ns AND id >= :first AND id < :last ORDER BY id LIMIT :n
    """,
    row=TokenRow,
)
# The newest tokens.
NEWEST_TOKENS = statement(
    "SELECT {columns} FROM tokens WHERE ns = :ns ORDER BY create_time DESC, id DESC LIMIT :n", row=TokenRow
)

name_statements(globals())
