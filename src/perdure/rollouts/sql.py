"""The SQL of rollouts, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Listing
from perdure.rollouts.tables import (
    ATTEMPTS,
    COUNTS,
    LINES,
    ROLLOUTS,
    SPAN_COUNTERS,
    SPAN_PARTS,
    SPANS,
    WORKERS,
)

# --- rollouts and attempts: reading under a lock, writing back --------------------------------------------

ROLLOUT_STATE = (
    "id, kind, queue, status, outcome, priority, position, ready, due_at, behind, line, queued_as, attempts,"
    " end_time"
)
ROLLOUT_VIEW = "id, start_time, end_time, mode, resources_id, status, config, metadata, input, attempts"
ATTEMPT_VIEW = (
    "rollout_id, sequence_id, id, status, start_time, end_time, worker_id, last_heartbeat_time, metadata"
)

LOAD_ROLLOUTS = statement(
    "SELECT " + ROLLOUT_STATE + ", config, start_time FROM rollouts"
    " WHERE ns = :ns AND id {among:ids} AND {plain:kind} {among:kinds} ORDER BY id {lock}"
)
TRY_ROLLOUTS = statement(
    "SELECT " + ROLLOUT_STATE + ", config, start_time FROM rollouts"
    " WHERE ns = :ns AND id {among:ids} ORDER BY id {skip}"
)
LOAD_ATTEMPTS = statement(
    "SELECT " + ATTEMPT_VIEW + ", check_at, reason, charged, kind, born FROM attempts"
    " WHERE ns = :ns AND rollout_id {among:ids} ORDER BY rollout_id, sequence_id {lock}"
)
MOVE_ROLLOUTS = BulkUpdate(
    ROLLOUTS,
    sets=("status", "outcome", "position", "ready", "due_at", "behind", "attempts", "end_time"),
    keys=("ns", "id"),
    guards=("status",),
)
EDIT_ROLLOUT = BulkUpdate(
    ROLLOUTS, sets=("mode", "resources_id", "config", "metadata", "input"), keys=("ns", "id")
)
MOVE_ATTEMPTS = BulkUpdate(
    ATTEMPTS,
    sets=(
        "status",
        "end_time",
        "worker_id",
        "last_heartbeat_time",
        "check_at",
        "reason",
        "charged",
        "metadata",
    ),
    keys=("ns", "rollout_id", "sequence_id"),
    guards=("status",),
)
HEARTBEAT = BulkUpdate(ATTEMPTS, sets=("last_heartbeat_time",), keys=("ns", "rollout_id", "sequence_id"))
ADD_ROLLOUTS = BulkInsert(ROLLOUTS)
ADD_ATTEMPTS = BulkInsert(ATTEMPTS)
DROP_ATTEMPT = statement(
    """
    DELETE
    FROM attempts
    WHERE ns = :ns AND rollout_id = :id AND sequence_id = :sequence_id
    """
)
GET_ROLLOUTS = statement(
    "SELECT "
    + ROLLOUT_VIEW
    + " FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:kind} {among:kinds}"
)
GET_ENDED = statement(
    "SELECT "
    + ROLLOUT_VIEW
    + ", kind FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:status} {among:ended}"
)
PRESENT = statement("SELECT id FROM rollouts WHERE ns = :ns AND id {among:ids}")
ENDED_AMONG = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:status} {among:ended}"
)
GET_LATEST_ATTEMPTS = statement(
    """
    SELECT a.rollout_id, a.sequence_id, a.id, a.status, a.start_time, a.end_time, a.worker_id,
      a.last_heartbeat_time, a.metadata
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.id {among:ids} AND {plain:r.kind} {among:kinds}
    """
)
ROLLOUT_EXISTS = statement(
    "SELECT 1 FROM rollouts WHERE ns = :ns AND id = :id AND {plain:kind} {among:kinds}"
)

# --- the queue --------------------------------------------------------------------------------------------

BY_IDEMPOTENCY_KEY = statement(
    "SELECT idempotency_key, "
    + ROLLOUT_VIEW
    + " FROM rollouts WHERE ns = :ns AND idempotency_key {among:keys}"
)
CLAIM = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id
    FROM rollouts
    WHERE ns = :ns AND queue = :queue AND ready IS NOT NULL AND kind = :kind
    ORDER BY priority DESC, ready
    LIMIT :n {skip})
    UPDATE rollouts SET queued_as = status, status = :target, ready = NULL, attempts = attempts + 1
    FROM c
    WHERE rollouts.ns = c.ns AND rollouts.id = c.id
    RETURNING rollouts.id, rollouts.start_time, rollouts.end_time, rollouts.mode, rollouts.resources_id,
      rollouts.status, rollouts.config, rollouts.metadata, rollouts.input, rollouts.attempts,
      rollouts.kind, rollouts.priority, rollouts.position, rollouts.line, rollouts.queued_as
    """
)
GIVE_BACK = BulkUpdate(
    ROLLOUTS, sets=("status", "ready", "attempts"), keys=("ns", "id"), guards=("status", "attempts")
)
DUE_NAMESPACES = statement("SELECT DISTINCT {plain:ns} FROM rollouts WHERE due_at <= :now")
RIPEN = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id
    FROM rollouts
    WHERE due_at <= :now AND line IS NULL
    ORDER BY due_at
    LIMIT :n {skip})
    UPDATE rollouts SET ready = position, due_at = NULL
    FROM c
    WHERE rollouts.ns = c.ns AND rollouts.id = c.id
    RETURNING rollouts.ns, rollouts.queue
    """
)
DUE_IN_LINES = statement(
    """
    SELECT id, line, queue
    FROM rollouts
    WHERE {plain:ns} = :ns AND due_at <= :now AND {plain:line} IS NOT NULL
    ORDER BY due_at, position
    LIMIT :n
    """
)

# --- lines ------------------------------------------------------------------------------------------------

OPEN_LINES = BulkInsert(LINES, on_conflict="NOTHING")
LOCK_LINES = statement(
    """
    SELECT line, holder
    FROM lines
    WHERE ns = :ns AND line {among:names}
    ORDER BY line {lock}
    """
)
LOCK_LINES_OF = statement(
    """
    SELECT line
    FROM lines
    WHERE ns = :ns AND line IN (SELECT line
    FROM rollouts
    WHERE ns = :ns AND id {among:ids} AND {plain:line} IS NOT NULL)
    ORDER BY line {lock}
    """
)
TRY_LINES = statement("SELECT line FROM lines WHERE ns = :ns AND line {among:names} ORDER BY line {skip}")
HOLD_LINES = BulkUpdate(LINES, sets=("holder", "holder_attempt", "release_by"), keys=("ns", "line"))
HEADS_OF_LINES = statement(
    """
    SELECT l.line, l.holder, (SELECT r.id
    FROM rollouts AS r
    WHERE r.ns = l.ns AND r.line = l.line AND r.behind IS NOT NULL
    ORDER BY r.priority DESC, r.behind
    LIMIT 1)
    FROM lines AS l
    WHERE l.ns = :ns AND l.line {among:names}
    """
)
PROMOTE = statement(
    """
    UPDATE rollouts SET ready = position, behind = NULL, due_at = NULL
    WHERE ns = :ns AND id {among:ids}
    RETURNING queue
    """
)
QUEUE_UP = statement("UPDATE rollouts SET behind = position, due_at = NULL WHERE ns = :ns AND id = :id")

# --- the watchdog -----------------------------------------------------------------------------------------

OVERDUE_NAMESPACES = statement("SELECT DISTINCT {plain:ns} FROM attempts WHERE check_at <= :now")
LOCK_SWEEP = statement("SELECT id FROM namespaces WHERE id = :ns {lock}")
TRY_SWEEP = statement("SELECT id FROM namespaces WHERE id = :ns {skip}")
OVERDUE_ROLLOUTS = statement(
    """
    SELECT rollout_id
    FROM attempts
    WHERE {plain:ns} = :ns AND check_at <= :now
    ORDER BY check_at
    LIMIT :n
    """
)

# --- counts -----------------------------------------------------------------------------------------------

ADD_COUNTS = BulkInsert(COUNTS, on_conflict="UPDATE SET total = rollout_counts.total + excluded.total")
COUNT_BY_STATUS = statement(
    """
    SELECT status, sum(total)
    FROM rollout_counts
    WHERE ns = :ns AND kind {among:kinds} GROUP BY status
    """
)

# --- workers ----------------------------------------------------------------------------------------------

WORKER_VIEW = (
    "id, status, last_heartbeat_time, last_dequeue_time, last_busy_time, last_idle_time, current_rollout_id,"
    " current_attempt_id, heartbeat_stats"
)
LOAD_WORKERS = statement(
    "SELECT " + WORKER_VIEW + " FROM workers WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}"
)
GET_WORKERS = statement("SELECT " + WORKER_VIEW + " FROM workers WHERE ns = :ns AND id {among:ids}")
ADD_WORKERS = BulkInsert(WORKERS)
SAVE_WORKERS = BulkUpdate(
    WORKERS,
    sets=(
        "status",
        "last_heartbeat_time",
        "last_dequeue_time",
        "last_busy_time",
        "last_idle_time",
        "current_rollout_id",
        "current_attempt_id",
        "heartbeat_stats",
    ),
    keys=("ns", "id"),
)

# --- resources --------------------------------------------------------------------------------------------

RESOURCES_VIEW = "id, version, create_time, update_time, body"
GET_RESOURCES = statement("SELECT " + RESOURCES_VIEW + " FROM resources WHERE ns = :ns AND id = :id")
LOCK_RESOURCES = statement("SELECT version, create_time FROM resources WHERE ns = :ns AND id = :id {lock}")
LATEST_RESOURCES = statement(
    "SELECT " + RESOURCES_VIEW + " FROM resources WHERE ns = :ns ORDER BY update_time DESC LIMIT 1"
)
LATEST_RESOURCES_ID = statement("SELECT id FROM resources WHERE ns = :ns ORDER BY update_time DESC LIMIT 1")
SAVE_RESOURCES = statement(
    """
    UPDATE resources SET version = :version, update_time = :time, body = :body
    WHERE ns = :ns AND id = :id
    """
)

# --- spans ------------------------------------------------------------------------------------------------

ADD_SPANS = BulkInsert(SPANS, on_conflict="NOTHING")
ADD_TO_COUNTERS = BulkInsert(
    SPAN_COUNTERS,
    on_conflict="""
    UPDATE SET sequence = {larger:span_counters.sequence,excluded.sequence},
      spans = span_counters.spans + excluded.spans, bytes = span_counters.bytes + excluded.bytes
    """,
)
TAKE_SEQUENCES = statement(
    """
    INSERT INTO span_counters (ns, rollout_id, sequence, spans, bytes, evicted)
    VALUES (:ns, :rollout_id, :first, :spans, :bytes, 0)
    ON CONFLICT (ns, rollout_id)
    DO UPDATE SET sequence = {greatest:span_counters.sequence,floor} + :n,
      spans = span_counters.spans + excluded.spans, bytes = span_counters.bytes + excluded.bytes
    RETURNING sequence
    """
)
SAVE_PARTS = BulkInsert(SPAN_PARTS, on_conflict="NOTHING")
GET_PARTS = statement("SELECT hash, body FROM span_parts WHERE ns = :ns AND hash {among:hashes}")
IS_EVICTED = statement("SELECT evicted FROM span_counters WHERE ns = :ns AND rollout_id = :rollout_id")
EVICTION_ORDER = statement(
    """
    SELECT c.ns, c.rollout_id, c.bytes
    FROM span_counters AS c
    JOIN rollouts AS r ON r.ns = c.ns AND r.id = c.rollout_id
    WHERE c.spans > 0
    ORDER BY r.start_time
    LIMIT :n
    """
)
MARK_EVICTED = statement(
    """
    UPDATE span_counters SET spans = 0, bytes = 0, evicted = 1
    WHERE ns = :ns AND rollout_id = :rollout_id
    """
)
DROP_SPANS = statement(
    """
    DELETE FROM spans WHERE ns = :ns AND rollout_id = :rollout_id
      AND born = (SELECT start_time FROM rollouts WHERE ns = :ns AND id = :rollout_id)
    """
)

# --- listings ---------------------------------------------------------------------------------------------

SPAN_VIEW = (
    "rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, resource_hash, scope_hash,"
    " format, body"
)
LIST_ROLLOUTS = Listing(ROLLOUT_VIEW, "rollouts WHERE ns = :ns AND kind = :kind")
LIST_ATTEMPTS = Listing(ATTEMPT_VIEW, "attempts WHERE ns = :ns AND rollout_id = :rollout_id")
SPANS_OF = (
    "spans WHERE ns = :ns AND rollout_id = :rollout_id"
    " AND born = (SELECT start_time FROM rollouts WHERE ns = :ns AND id = :rollout_id)"
)
LIST_SPANS = Listing(SPAN_VIEW, SPANS_OF)
LIST_ATTEMPT_SPANS = Listing(SPAN_VIEW, SPANS_OF + " AND attempt_id = :attempt_id")
LIST_RESOURCES = Listing(RESOURCES_VIEW, "resources WHERE ns = :ns")
LIST_WORKERS = Listing(WORKER_VIEW, "workers WHERE ns = :ns")

# --- statistics -------------------------------------------------------------------------------------------

COUNT_ATTEMPTS = statement("SELECT count(*) FROM attempts WHERE ns = :ns")
COUNT_RESOURCES = statement("SELECT count(*) FROM resources WHERE ns = :ns")
COUNT_WORKERS = statement("SELECT count(*) FROM workers WHERE ns = :ns")
COUNT_SPANS = statement(
    """
    SELECT coalesce(sum(spans), 0), coalesce(sum(bytes), 0)
    FROM span_counters
    WHERE ns = :ns
    """
)

# --- the overview, in as many namespaces as are asked for -------------------------------------------------

VERSIONS_VIEW = "r.id, v.version, r.create_time, v.time, v.body"
VERSIONS_OF = (
    "resource_versions AS v JOIN resources AS r ON r.ns = v.ns AND r.id = v.id"
    " WHERE v.ns = :ns AND v.id = :id"
)
LIST_VERSIONS = Listing(VERSIONS_VIEW, VERSIONS_OF)
GET_VERSION = statement("SELECT " + VERSIONS_VIEW + " FROM " + VERSIONS_OF + " AND v.version = :version")
ROLLOUTS_BY_STATUS = statement(
    """
    SELECT ns, status, sum(total)
    FROM rollout_counts
    WHERE ns {among:numbers} GROUP BY ns, status
    ORDER BY ns, status
    """
)
WORKERS_BY_STATUS = statement(
    """
    SELECT ns, status, count(*)
    FROM workers
    WHERE ns {among:numbers} GROUP BY ns, status
    ORDER BY ns, status
    """
)
READY_BY_QUEUE = statement(
    """
    SELECT ns, queue, count(*), min(ready)
    FROM rollouts
    WHERE ns {among:numbers} AND ready IS NOT NULL GROUP BY ns, queue
    """
)
DUE_BY_QUEUE = statement(
    """
    SELECT {plain:ns}, queue, count(*)
    FROM rollouts
    WHERE {plain:ns} {among:numbers} AND due_at IS NOT NULL GROUP BY 1, queue
    """
)
# The bound of the priority holds for all; it leads to the index of those that wait.
BEHIND_BY_QUEUE = statement(
    """
    SELECT r.ns, r.queue, count(*)
    FROM lines AS l
    CROSS JOIN rollouts AS r
    WHERE l.ns {among:numbers} AND l.holder IS NOT NULL
      AND r.ns = l.ns AND r.line = l.line AND r.priority > -2147483649 AND r.behind IS NOT NULL
    GROUP BY r.ns, r.queue
    """
)

name_statements(globals())
