"""The SQL of the threads room, written once for both engines."""

from __future__ import annotations

from typing import Final

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing
from perdure.threads.model import StateBody, StateKey
from perdure.threads.tables import CHECKPOINTS, RUN_STEPS, RUNS, THREAD_LIFETIMES, THREADS

# --- threads ----------------------------------------------------------------------------------------------

THREAD_VIEW = (
    "id, status, rest, temporary, gone_at, created_at, updated_at, state_at, checkpoint_id, steps, error,"
    " config, metadata"
)
GET_THREADS = statement("SELECT " + THREAD_VIEW + " FROM threads WHERE ns = :ns AND id {among:ids}")
LOCK_THREADS = statement(
    "SELECT " + THREAD_VIEW + " FROM threads WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}"
)
ADD_THREADS = BulkInsert(THREADS)
MOVE_THREADS = BulkUpdate(
    THREADS,
    sets=(
        "status",
        "rest",
        "gone_at",
        "updated_at",
        "state_at",
        "checkpoint_id",
        "steps",
        "error",
    ),
    keys=("ns", "id"),
)
EDIT_THREADS = BulkUpdate(THREADS, sets=("config", "metadata", "updated_at"), keys=("ns", "id"))
LIST_THREADS = Listing(
    THREAD_VIEW, "threads WHERE ns = :ns AND temporary IS NULL AND {plain:gone_at} IS NULL"
)
THREAD_FIELDS: Final = {
    "thread_id": Field("id", "text"),
    "status": Field("status", "text"),
    "created_at": Field("created_at", "time"),
    "updated_at": Field("updated_at", "time"),
    "state_updated_at": Field("state_at", "time"),
}
DROP_THREADS = statement("DELETE FROM threads WHERE ns = :ns AND id {among:ids}")
GONE_THREADS = statement("SELECT ns, id FROM threads WHERE gone_at <= :before ORDER BY gone_at LIMIT :n")
DROP_LINES = statement("DELETE FROM lines WHERE ns = :ns AND line {among:names} AND holder IS NULL")

# --- lifetimes --------------------------------------------------------------------------------------------

ADD_LIFETIMES = BulkInsert(THREAD_LIFETIMES)
GET_LIFETIMES = statement(
    """
    SELECT thread_id, expires_at, length, strategy
    FROM thread_lifetimes
    WHERE ns = :ns AND thread_id {among:ids}
    """
)
DROP_LIFETIMES = statement("DELETE FROM thread_lifetimes WHERE ns = :ns AND thread_id {among:ids}")
DUE_LIFETIMES = statement(
    "SELECT ns, thread_id FROM thread_lifetimes WHERE expires_at <= :now ORDER BY expires_at LIMIT :n"
)
POSTPONE_LIFETIME = statement(
    "UPDATE thread_lifetimes SET expires_at = :time WHERE ns = :ns AND thread_id = :thread_id"
)

# --- runs -------------------------------------------------------------------------------------------------

RUN_COLUMNS = (
    "n.id, n.thread_id, n.assistant_id, n.agent, r.status, r.outcome, r.metadata, r.input, n.strategy,"
    " n.created_at, n.updated_at, r.end_time, r.attempts, n.error, n.temporary, n.on_disconnect,"
    " n.on_completion, n.webhook, n.gone_at, r.config, r.resources_id"
)
RUNS_WITH_ROLLOUTS = "runs AS n JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id WHERE n.ns = :ns"
GET_RUNS = statement("SELECT " + RUN_COLUMNS + " FROM " + RUNS_WITH_ROLLOUTS + " AND n.id {among:ids}")
LIST_RUNS = Listing(RUN_COLUMNS, RUNS_WITH_ROLLOUTS + " AND n.gone_at IS NULL")
LIST_THREAD_RUNS = Listing(
    RUN_COLUMNS, RUNS_WITH_ROLLOUTS + " AND n.thread_id = :thread_id AND n.gone_at IS NULL"
)
LIST_KEPT_RUNS = Listing(
    RUN_COLUMNS, LIST_THREAD_RUNS.source + " AND (r.outcome IS NULL OR r.outcome <> :undone)"
)
RUN_FIELDS: Final = {
    "created_at": Field("n.created_at", "time"),
    "status": Field("r.status", "text"),
    "outcome": Field("r.outcome", "text"),
    "assistant_id": Field("n.assistant_id", "text"),
    "agent": Field("n.agent", "text"),
}
RUN_ORDER: Final = "n.created_at DESC, n.id DESC"
ADD_RUNS = BulkInsert(RUNS)
MOVE_RUNS = BulkUpdate(RUNS, sets=("live", "gone_at", "updated_at", "error"), keys=("ns", "id"))
LIVE_RUNS = statement(
    """
    SELECT n.thread_id, n.id
    FROM runs AS n
    WHERE n.ns = :ns AND n.thread_id {among:thread_ids} AND n.live IS NOT NULL
    ORDER BY n.thread_id, n.created_at
    """
)
LIVE_ANYWHERE = statement(
    """
    SELECT n.id
    FROM rollouts AS r
    JOIN runs AS n ON n.ns = r.ns AND n.id = r.id
    WHERE r.ns = :ns AND r.kind = :kind AND r.status {among:statuses}
    ORDER BY r.start_time
    LIMIT :n
    """
)
HIDE_RUNS = statement(
    "UPDATE runs SET gone_at = :now WHERE ns = :ns AND thread_id = :thread_id AND gone_at IS NULL"
)
RUNS_OF_THREADS = statement("SELECT id FROM runs WHERE ns = :ns AND thread_id {among:ids} LIMIT :n")
DROP_RUNS = statement("DELETE FROM runs WHERE ns = :ns AND id {among:ids}")
GONE_RUNS = statement("SELECT ns, id FROM runs WHERE gone_at <= :before ORDER BY gone_at LIMIT :n")
RUN_STATUSES = statement(
    "SELECT id, status, outcome, attempts FROM rollouts WHERE ns = :ns AND id {among:ids}"
)
STARTED = statement(
    """
    SELECT rollout_id, min(start_time)
    FROM attempts
    WHERE ns = :ns AND rollout_id {among:ids}
    GROUP BY rollout_id
    """
)

UNCHARGED = statement(
    """
    SELECT rollout_id, count(*)
    FROM attempts
    WHERE ns = :ns AND rollout_id {among:ids} AND charged = 0
    GROUP BY rollout_id
    """
)

# --- who holds what ---------------------------------------------------------------------------------------

LOCK_HOLDERS = statement(
    """
    SELECT line, holder, holder_attempt
    FROM lines
    WHERE ns = :ns AND line {among:names}
    ORDER BY line {lock}
    """
)
RELEASE_BY = statement("UPDATE lines SET release_by = :time WHERE ns = :ns AND line = :line")
LATEST_ATTEMPTS = statement(
    """
    SELECT a.rollout_id, a.id, a.status, a.sequence_id, r.status, r.outcome
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.id {among:ids}
    """
)

# --- checkpoints and steps --------------------------------------------------------------------------------

CHECKPOINT_VIEW = (
    "thread_id, id, position, step, parent_id, run_id, attempt, created_at, next, interrupts, metadata, body,"
    " state"
)
ADD_CHECKPOINTS = BulkInsert(CHECKPOINTS)
ADD_GRAPH_STATES = BulkInsert(CHECKPOINTS, on_conflict="NOTHING")
CHANGE_STATES = BulkUpdate(CHECKPOINTS, sets=("next", "interrupts", "body"), keys=("ns", "id", "thread_id"))
GET_CHECKPOINT = statement(
    "SELECT " + CHECKPOINT_VIEW + " FROM checkpoints WHERE ns = :ns AND thread_id = :thread_id AND id = :id"
)
# An expression, so that ids alone lead to the rows: with both in the index every pair would be looked up.
GET_CHECKPOINTS = statement(
    "SELECT " + CHECKPOINT_VIEW + " FROM checkpoints WHERE ns = :ns AND id {among:ids}"
    " AND thread_id || '' {among:thread_ids}"
)
NEXT_OF = statement(
    """
    SELECT thread_id, id, next
    FROM checkpoints
    WHERE ns = :ns AND id {among:ids} AND thread_id || '' {among:thread_ids}
    """
)
LATEST_WITHOUT = statement(
    """
    SELECT c.id, c.next
    FROM checkpoints AS c
    LEFT JOIN rollouts AS r ON r.ns = c.ns AND r.id = c.run_id
    WHERE c.ns = :ns AND c.thread_id = :thread_id AND (r.outcome IS NULL OR r.outcome <> :rollback)
      AND (c.run_id IS NULL OR c.run_id <> :run_id)
    ORDER BY c.position DESC
    LIMIT 1
    """
)
LIST_CHECKPOINTS = Listing(
    CHECKPOINT_VIEW, "checkpoints WHERE ns = :ns AND thread_id = :thread_id AND position < :before"
)
COPY_CHECKPOINTS = statement(
    """
    INSERT INTO checkpoints (ns, thread_id, id, position, step, parent_id, run_id, attempt, created_at, next,
      interrupts, metadata, body, state)
    SELECT ns, :copy, id, position, step, parent_id, NULL, attempt, created_at, next, interrupts, metadata,
      body, state
    FROM checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND (run_id IS NULL OR run_id NOT IN (SELECT r.id
    FROM rollouts AS r
    WHERE r.ns = :ns AND r.line = :thread_id AND r.outcome = :rollback))
    """
)
# The values of states, as they are stored.
GET_BODIES = statement(
    "SELECT {columns} FROM checkpoints WHERE ns = :ns AND id {among:ids}"
    " AND thread_id || '' {among:thread_ids}",
    row=StateBody,
)
# The states that runs have made.
STATES_OF_RUNS = statement(
    "SELECT {columns} FROM checkpoints WHERE ns = :ns AND run_id {among:ids}", row=StateKey
)
DROP_RUN_CHECKPOINTS = statement("DELETE FROM checkpoints WHERE ns = :ns AND run_id {among:ids}")
DROP_CHECKPOINTS = statement("DELETE FROM checkpoints WHERE ns = :ns AND thread_id {among:ids}")
DROP_EARLIER = statement("DELETE FROM checkpoints WHERE ns = :ns AND thread_id = :thread_id AND id <> :id")
KEEP_STEPS = BulkInsert(RUN_STEPS, on_conflict="NOTHING")
GET_STEPS = statement("SELECT run_id, name, body FROM run_steps WHERE ns = :ns AND run_id {among:ids}")
DROP_STEPS = statement("DELETE FROM run_steps WHERE ns = :ns AND run_id {among:ids}")

# --- statistics -------------------------------------------------------------------------------------------

COUNT_RUNS = statement(
    "SELECT status, sum(total) FROM rollout_counts WHERE ns = :ns AND kind = :kind GROUP BY status"
)
OLDEST_RUN = statement(
    """
    SELECT start_time
    FROM rollouts
    WHERE ns = :ns AND kind = :kind AND status = :status
    ORDER BY start_time
    LIMIT 1 OFFSET :at
    """
)

# --- why ---------------------------------------------------------------------------------------------------

WHY_ROLLOUTS = statement(
    """
    SELECT id, kind, queue, status, outcome, priority, ready, due_at, behind, line, attempts, start_time,
      end_time, config
    FROM rollouts
    WHERE ns = :ns AND id {among:ids}
    """
)
WHY_ATTEMPTS = statement(
    """
    SELECT a.rollout_id, a.sequence_id, a.id, a.status, a.start_time, a.end_time, a.worker_id,
      a.last_heartbeat_time, a.check_at, a.reason, a.charged, a.metadata
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.id {among:ids}
    """
)
WHY_LINE = statement("SELECT holder, release_by FROM lines WHERE ns = :ns AND line = :line")
# What is ahead is counted in two parts, each of which is a stretch of the index.
AHEAD_IN_QUEUE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL
      AND priority = :priority AND ready < :place LIMIT :n) AS ahead
    """
)
ABOVE_IN_QUEUE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL
      AND priority > :priority LIMIT :n) AS ahead
    """
)
AHEAD_IN_LINE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND line = :line AND behind IS NOT NULL
      AND priority = :priority AND behind < :place LIMIT :n) AS ahead
    """
)
ABOVE_IN_LINE = statement(
    """
    SELECT count(*)
    FROM (SELECT 1 AS one FROM rollouts WHERE ns = :ns AND line = :line AND behind IS NOT NULL
      AND priority > :priority LIMIT :n) AS ahead
    """
)
WHY_WORKERS = statement(
    """
    SELECT id, heartbeat_stats, last_heartbeat_time, last_dequeue_time, last_busy_time, last_idle_time
    FROM workers
    WHERE ns = :ns
    ORDER BY coalesce(last_heartbeat_time, last_dequeue_time, 0) DESC
    LIMIT :n
    """
)
HELD_BY_WORKERS = statement(
    """
    SELECT a.worker_id, count(*)
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.kind = :kind AND r.status {among:statuses} AND a.worker_id IS NOT NULL
    GROUP BY a.worker_id
    """
)
WHO_DID = statement(
    """
    SELECT actor, action, object, count
    FROM audit
    WHERE ns = :ns AND id >= :since AND id < :until
    ORDER BY id
    LIMIT :n
    """
)
MADE_WAY_FOR = statement(
    """
    SELECT n.id, n.strategy
    FROM runs AS n
    JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id
    WHERE n.ns = :ns AND n.thread_id = :thread_id AND n.created_at >= :since
      AND n.strategy {among:strategies} AND r.start_time >= :since AND r.start_time < :until
    ORDER BY r.start_time
    LIMIT 1
    """
)
LAST_RUN = statement(
    """
    SELECT id
    FROM runs
    WHERE ns = :ns AND thread_id = :thread_id AND gone_at IS NULL
    ORDER BY created_at DESC
    LIMIT 1
    """
)
ASKED = statement(
    "SELECT interrupts, next, run_id FROM checkpoints WHERE ns = :ns AND thread_id = :thread_id AND id = :id"
)
NAMESPACES_WITH = statement("SELECT DISTINCT ns FROM rollout_counts WHERE kind = :kind ORDER BY ns")

name_statements(globals())
