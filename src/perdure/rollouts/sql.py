"""SQL of rollouts, written once for both engines."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Listing
from perdure.kernel.storage.rows import get_columns
from perdure.rollouts import rows
from perdure.rollouts.tables import (
    ATTEMPTS,
    COUNTS,
    LINES,
    RESOURCE_VERSIONS,
    RESOURCES,
    ROLLOUTS,
    TOTALS,
    WORKERS,
)
from perdure.spans.rows import EvictionRow, PartRow, SpanCounterRow, SpanRecordRow, SpanRow
from perdure.spans.tables import SPAN_COUNTERS, SPAN_PARTS, SPANS

# --- rollouts and attempts: reading under a lock, writing back --------------------------------------------

_LOADED = ", ".join("rollouts." + name for name in get_columns(rows.RolloutRow) if name != "head")
# Rollouts by their ids, locked, each with the next rollout in its line.
LOAD_ROLLOUTS = statement(
    "SELECT " + _LOADED + ", (SELECT r.id FROM rollouts AS r"
    " WHERE r.ns = rollouts.ns AND r.line = rollouts.line AND r.behind IS NOT NULL"
    " ORDER BY r.priority DESC, r.behind LIMIT 1) AS head"
    " FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:kind} {among:kinds} ORDER BY id {lock}",
    row=rows.RolloutRow,
)
# The given rollouts that no other transaction has locked.
TRY_ROLLOUTS = statement(
    "SELECT " + _LOADED + ", NULL AS head FROM rollouts WHERE ns = :ns AND id {among:ids} ORDER BY id {skip}",
    row=rows.RolloutRow,
)
# The attempts of rollouts, locked.
LOAD_ATTEMPTS = statement(
    "SELECT {columns} FROM attempts"
    " WHERE ns = :ns AND rollout_id {among:ids} ORDER BY rollout_id, sequence_id {lock}",
    row=rows.AttemptRow,
)
# Rollouts whose status has changed.
MOVE_ROLLOUTS = BulkUpdate(
    ROLLOUTS,
    rows.RolloutRow,
    sets=("status", "outcome", "position", "ready", "due_at", "behind", "attempts", "end_time"),
    keys=("ns", "id"),
    guards=("status",),
)
# Fields of a rollout that a caller edits.
EDIT_ROLLOUT = BulkUpdate(
    ROLLOUTS,
    rows.RolloutBodies,
    sets=("mode", "resources_id", "config", "metadata", "input"),
    keys=("ns", "id"),
)
# Attempts that have changed.
MOVE_ATTEMPTS = BulkUpdate(
    ATTEMPTS,
    rows.AttemptRow,
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
# Heartbeats of attempts without another change.
HEARTBEAT = BulkUpdate(
    ATTEMPTS,
    rows.HeartbeatRow,
    sets=("last_heartbeat_time",),
    keys=("ns", "rollout_id", "sequence_id"),
)
# New rollouts.
ADD_ROLLOUTS = BulkInsert(ROLLOUTS, rows.NewRolloutRow)
# New attempts.
ADD_ATTEMPTS = BulkInsert(ATTEMPTS, rows.AttemptRow)
# Delete an attempt that never started.
DROP_ATTEMPT = statement(
    "DELETE FROM attempts WHERE ns = :ns AND rollout_id = :id AND sequence_id = :sequence_id"
)
# Delete the attempts of rollouts.
DROP_ATTEMPTS = statement("DELETE FROM attempts WHERE ns = :ns AND rollout_id {among:ids}")
# Delete rollouts.
DROP_ROLLOUTS = statement("DELETE FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:kind} = :kind")
# Rollouts by their ids, as records.
GET_ROLLOUTS = statement(
    "SELECT {columns} FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:kind} {among:kinds}",
    row=rows.RolloutRecordRow,
)
# The given rollouts that have ended.
GET_ENDED = statement(
    "SELECT {columns} FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:status} {among:ended}",
    row=rows.EndedRolloutRow,
)
# The ids of the given rollouts that exist.
PRESENT = statement("SELECT id FROM rollouts WHERE ns = :ns AND id {among:ids}", row=str)
# The ids of the given rollouts that have ended.
ENDED_AMONG = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND id {among:ids} AND {plain:status} {among:ended}", row=str
)
# The latest attempt of each rollout.
GET_LATEST_ATTEMPTS = statement(
    """
    SELECT {columns:a}
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.id {among:ids} AND {plain:r.kind} {among:kinds}
    """,
    row=rows.AttemptRecordRow,
)
# Whether a rollout of one of the kinds exists.
ROLLOUT_EXISTS = statement(
    "SELECT 1 FROM rollouts WHERE ns = :ns AND id = :id AND {plain:kind} {among:kinds}", row=int
)

# --- the queue --------------------------------------------------------------------------------------------

# Rollouts by their idempotency keys.
BY_IDEMPOTENCY_KEY = statement(
    "SELECT {columns} FROM rollouts WHERE ns = :ns AND idempotency_key {among:keys}", row=rows.KeyedRolloutRow
)
# Rollouts whose claims are reverted.
GIVE_BACK = BulkUpdate(
    ROLLOUTS,
    rows.ReturnedRow,
    sets=("status", "ready", "attempts"),
    keys=("ns", "id"),
    guards=("status", "attempts"),
)
# The namespaces in which a delayed rollout is due.
DUE_NAMESPACES = statement("SELECT DISTINCT {plain:ns} FROM rollouts WHERE due_at <= :now", row=int)
# Make delayed rollouts outside lines ready when their time has come.
PROMOTE_DUE = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id
    FROM rollouts
    WHERE due_at <= :now AND line IS NULL
    ORDER BY due_at
    LIMIT :n {skip})
    UPDATE rollouts SET ready = position, due_at = NULL
    FROM c
    WHERE rollouts.ns = c.ns AND rollouts.id = c.id
    RETURNING {columns:rollouts}
    """,
    row=rows.PromotedRow,
)
# Delayed rollouts in lines, if their time has come.
DUE_IN_LINES = statement(
    """
    SELECT {columns} FROM rollouts
    WHERE {plain:ns} = :ns AND due_at <= :now AND {plain:line} IS NOT NULL
    ORDER BY due_at, position LIMIT :n
    """,
    row=rows.DueRolloutRow,
)

# --- lines ------------------------------------------------------------------------------------------------

# Create missing lines and lock existing lines, in the order of the list.
OPEN_LINES = statement(
    """
    INSERT INTO lines (ns, line) SELECT :ns, names.value FROM {each:names} WHERE TRUE
    ON CONFLICT (ns, line) DO UPDATE SET holder = lines.holder
    RETURNING {columns}
    """,
    row=rows.LineHolder,
)
# Lock the lines of rollouts.
LOCK_LINES_OF = statement(
    """
    SELECT {columns}
    FROM lines
    WHERE ns = :ns AND line IN (SELECT line
    FROM rollouts
    WHERE ns = :ns AND id {among:ids} AND {plain:line} IS NOT NULL)
    ORDER BY line {lock}
    """,
    row=rows.LineHolder,
)
# Insert new lines without a lock: no other transaction can know their names.
ADD_LINES = BulkInsert(LINES, rows.LineRow)
# Set the holders of lines.
HOLD_LINES = BulkUpdate(
    LINES, rows.LineRow, sets=("holder", "holder_attempt", "release_by"), keys=("ns", "line")
)
# The next rollout in each line.
HEADS_OF_LINES = statement(
    """
    SELECT l.line, (SELECT r.id
    FROM rollouts AS r
    WHERE r.ns = l.ns AND r.line = l.line AND r.behind IS NOT NULL
    ORDER BY r.priority DESC, r.behind
    LIMIT 1) AS head
    FROM lines AS l
    WHERE l.ns = :ns AND l.line {among:names}
    """,
    row=rows.LineHead,
)
# Make the next rollouts of lines ready.
PROMOTE = statement(
    """
    UPDATE rollouts SET ready = position, behind = NULL, due_at = NULL
    WHERE ns = :ns AND id {among:ids}
    RETURNING {columns:rollouts}
    """,
    row=rows.PromotedRow,
)
# Let a rollout wait in its line.
QUEUE_UP = statement("UPDATE rollouts SET behind = position, due_at = NULL WHERE ns = :ns AND id = :id")

# --- the watchdog -----------------------------------------------------------------------------------------

# Whether a live attempt has a start or a heartbeat in the future.
HAS_FUTURE_ATTEMPTS = statement(
    """
    SELECT 1 FROM attempts
    WHERE check_at IS NOT NULL AND (start_time > :now OR last_heartbeat_time > :now) LIMIT 1
    """,
    row=int,
)
# Set future times of live attempts to now, so that the next sweep checks these attempts.
SHORTEN_ATTEMPTS = statement(
    """
    UPDATE attempts
    SET check_at = :now,
      start_time = CASE WHEN start_time > :now THEN :now ELSE start_time END,
      last_heartbeat_time = CASE WHEN last_heartbeat_time > :now THEN :now ELSE last_heartbeat_time END
    WHERE check_at IS NOT NULL AND (start_time > :now OR last_heartbeat_time > :now)
    """
)
# Whether a rollout is delayed from an attempt's end or a start in the future.
HAS_FUTURE_DELAYS = statement(
    """
    SELECT 1 FROM rollouts WHERE due_at > :now AND coalesce(
      (SELECT max(end_time) FROM attempts WHERE attempts.ns = rollouts.ns AND rollout_id = rollouts.id),
      rollouts.start_time) > :now
    LIMIT 1
    """,
    row=int,
)
# Count the delays of such rollouts from now.
SHORTEN_DELAYS = statement(
    """
    UPDATE rollouts SET due_at = due_at + :now - coalesce(
      (SELECT max(end_time) FROM attempts WHERE attempts.ns = rollouts.ns AND rollout_id = rollouts.id),
      rollouts.start_time)
    WHERE due_at > :now AND coalesce(
      (SELECT max(end_time) FROM attempts WHERE attempts.ns = rollouts.ns AND rollout_id = rollouts.id),
      rollouts.start_time) > :now
    """
)
# The namespaces in which an attempt is overdue.
OVERDUE_NAMESPACES = statement(
    "SELECT DISTINCT {plain:ns} FROM attempts WHERE check_at <= :now AND {plain:kind} {among:kinds}", row=int
)
# Whether an attempt of one of the kinds is overdue.
HAS_OVERDUE = statement(
    "SELECT 1 FROM attempts WHERE check_at <= :now AND {plain:kind} {among:kinds} ORDER BY check_at LIMIT 1",
    row=int,
)
# Lock a namespace for a sweep.
LOCK_SWEEP = statement("SELECT id FROM namespaces WHERE id = :ns {lock}", row=int)
# Lock a namespace for a sweep, unless another process sweeps it.
TRY_SWEEP = statement("SELECT id FROM namespaces WHERE id = :ns {skip}", row=int)
# The rollouts with an overdue attempt.
OVERDUE_ROLLOUTS = statement(
    """
    SELECT rollout_id FROM attempts
    WHERE {plain:ns} = :ns AND check_at <= :now AND {plain:kind} {among:kinds}
    ORDER BY check_at LIMIT :n
    """,
    row=str,
)

# --- counts -----------------------------------------------------------------------------------------------

# Add to the counts of rollouts.
ADD_COUNTS = BulkInsert(
    COUNTS, rows.RolloutCountRow, on_conflict="UPDATE SET total = rollout_counts.total + excluded.total"
)
# Number of rollouts by status.
COUNT_BY_STATUS = statement(
    """
    SELECT status, sum(total) AS total
    FROM rollout_counts
    WHERE ns = :ns AND kind {among:kinds} GROUP BY status
    """,
    row=rows.RolloutStatusCount,
)

# Add to the totals of rows that belong to rollouts.
ADD_TOTALS = BulkInsert(
    TOTALS,
    rows.TotalRow,
    on_conflict="UPDATE SET total = rollout_totals.total + excluded.total",
    folds=False,
)
# The totals of rows that belong to rollouts, in shards.
GET_TOTALS = statement("SELECT {columns} FROM rollout_totals WHERE ns = :ns", row=rows.TotalRow)

# --- workers ----------------------------------------------------------------------------------------------

# Workers by their ids, locked.
LOAD_WORKERS = statement(
    "SELECT {columns} FROM workers WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=rows.WorkerRow
)
# Workers by their ids.
GET_WORKERS = statement("SELECT {columns} FROM workers WHERE ns = :ns AND id {among:ids}", row=rows.WorkerRow)
# New workers.
ADD_WORKERS = BulkInsert(WORKERS, rows.WorkerRow)
# Workers that have changed.
SAVE_WORKERS = BulkUpdate(
    WORKERS,
    rows.WorkerRow,
    sets=(
        "status",
        "last_heartbeat_time",
        "last_dequeue_time",
        "last_busy_time",
        "last_idle_time",
        "current_rollout_id",
        "current_attempt_id",
        "held",
        "stopped_at",
        "process",
        "heartbeat_stats",
    ),
    keys=("ns", "id"),
)
# The attempts that workers execute.
HELD_BY = statement(
    """
    SELECT a.worker_id, a.rollout_id, a.id AS attempt_id, a.kind, a.start_time
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.kind {among:kinds} AND r.status {among:statuses} AND a.worker_id {among:ids}
    ORDER BY a.start_time, a.rollout_id
    LIMIT :n
    """,
    row=rows.HeldAttemptRow,
)
# The workers of other processes that may claim, in every namespace.
WORKERS_ELSEWHERE = statement(
    """
    SELECT {columns} FROM workers
    WHERE process IS NOT NULL AND process <> :process AND stopped_at IS NULL
    ORDER BY ns, id LIMIT :n
    """,
    row=rows.WorkerKey,
)
# The rollouts with attempts of these workers that the watchdog checks.
WATCHED_OF_WORKERS = statement(
    "SELECT rollout_id FROM attempts"
    " WHERE ns = :ns AND check_at IS NOT NULL AND {plain:worker_id} {among:ids} ORDER BY check_at LIMIT :n",
    row=str,
)

# --- resources --------------------------------------------------------------------------------------------


class ResourcesHead(NamedTuple):
    """The newest version of resources, and the time of the first."""

    version: int
    create_time: int


# New resources.
ADD_RESOURCES = BulkInsert(RESOURCES, rows.ResourcesRow)
# New versions of resources.
ADD_VERSIONS = BulkInsert(RESOURCE_VERSIONS, rows.ResourcesVersionRow)
# The newest version of resources.
GET_RESOURCES = statement(
    "SELECT {columns} FROM resources WHERE ns = :ns AND id = :id", row=rows.ResourcesRow
)
# The number of the newest version, locked.
LOCK_RESOURCES = statement(
    "SELECT {columns} FROM resources WHERE ns = :ns AND id = :id {lock}", row=ResourcesHead
)
# The resources that were written last.
LATEST_RESOURCES = statement(
    "SELECT {columns} FROM resources WHERE ns = :ns ORDER BY update_time DESC LIMIT 1", row=rows.ResourcesRow
)
# The id of the resources that were written last.
LATEST_RESOURCES_ID = statement(
    "SELECT id FROM resources WHERE ns = :ns ORDER BY update_time DESC LIMIT 1", row=str
)
# Replace resources with their next version.
SAVE_RESOURCES = statement(
    "UPDATE resources SET version = :version, update_time = :time, body = :body WHERE ns = :ns AND id = :id"
)

# --- spans ------------------------------------------------------------------------------------------------

# Add spans, unless they are stored already.
ADD_SPANS = BulkInsert(SPANS, SpanRow, on_conflict="NOTHING")
# Add to the counters of rollouts' spans.
ADD_TO_COUNTERS = BulkInsert(
    SPAN_COUNTERS,
    SpanCounterRow,
    on_conflict="""
    UPDATE SET sequence = {larger:span_counters.sequence,excluded.sequence},
      spans = span_counters.spans + excluded.spans, bytes = span_counters.bytes + excluded.bytes
    """,
)
# Take the next sequence ids of a rollout's spans.
TAKE_SEQUENCES = statement(
    """
    INSERT INTO span_counters (ns, rollout_id, sequence, spans, bytes, evicted)
    VALUES (:ns, :rollout_id, :first, :spans, :bytes, 0)
    ON CONFLICT (ns, rollout_id)
    DO UPDATE SET sequence = {greatest:span_counters.sequence,floor} + :n,
      spans = span_counters.spans + excluded.spans, bytes = span_counters.bytes + excluded.bytes
    RETURNING sequence
    """,
    row=int,
)
# Add parts that spans share, unless they are stored already.
SAVE_PARTS = BulkInsert(SPAN_PARTS, PartRow, on_conflict="NOTHING")
# Parts that spans share, by their hashes.
GET_PARTS = statement("SELECT {columns} FROM span_parts WHERE ns = :ns AND hash {among:hashes}", row=PartRow)
# Whether the spans of a rollout were evicted.
IS_EVICTED = statement(
    "SELECT evicted FROM span_counters WHERE ns = :ns AND rollout_id = :rollout_id", row=int
)
# The rollouts with spans, the oldest first.
EVICTION_ORDER = statement(
    """
    SELECT c.ns, c.rollout_id, c.bytes, r.start_time
    FROM span_counters AS c
    JOIN rollouts AS r ON r.ns = c.ns AND r.id = c.rollout_id
    WHERE c.spans > 0
    ORDER BY r.start_time
    LIMIT :n
    """,
    row=EvictionRow,
)
# Mark the spans of rollouts as evicted.
MARK_EVICTED = statement(
    "UPDATE span_counters SET spans = 0, bytes = 0, evicted = 1 WHERE ns = :ns AND rollout_id {among:ids}"
)

# --- listings ---------------------------------------------------------------------------------------------

_SPANS_OF = (
    "spans WHERE ns = :ns AND rollout_id = :rollout_id"
    " AND born = (SELECT start_time FROM rollouts WHERE ns = :ns AND id = :rollout_id)"
)
# Rollouts of one kind.
LIST_ROLLOUTS = Listing("{columns}", "rollouts WHERE ns = :ns AND kind = :kind", rows.RolloutRecordRow)
# The children of a parent, of some kinds.
LIST_CHILDREN = Listing(
    "{columns}",
    "rollouts WHERE ns = :ns AND parent = :parent AND {plain:kind} {among:kinds}",
    rows.RolloutRecordRow,
)
# The attempts of a rollout.
LIST_ATTEMPTS = Listing(
    "{columns}", "attempts WHERE ns = :ns AND rollout_id = :rollout_id", rows.AttemptRecordRow
)
# The spans of a rollout.
LIST_SPANS = Listing("{columns}", _SPANS_OF, SpanRecordRow)
# The spans of an attempt.
LIST_ATTEMPT_SPANS = Listing("{columns}", _SPANS_OF + " AND attempt_id = :attempt_id", SpanRecordRow)
# All resources of a namespace.
LIST_RESOURCES = Listing("{columns}", "resources WHERE ns = :ns", rows.ResourcesRow)
# All workers of a namespace.
LIST_WORKERS = Listing("{columns}", "workers WHERE ns = :ns", rows.WorkerRow)

# --- statistics -------------------------------------------------------------------------------------------

# Number of resources.
COUNT_RESOURCES = statement("SELECT count(*) FROM resources WHERE ns = :ns", row=int)
# Number of workers.
COUNT_WORKERS = statement("SELECT count(*) FROM workers WHERE ns = :ns", row=int)

# --- the overview, in the given namespaces ----------------------------------------------------------------

_VERSION = "r.id, v.version, r.create_time, v.time AS update_time, v.body"
_VERSIONS_OF = (
    "resource_versions AS v JOIN resources AS r ON r.ns = v.ns AND r.id = v.id"
    " WHERE v.ns = :ns AND v.id = :id"
)
# The versions of resources.
LIST_VERSIONS = Listing(_VERSION, _VERSIONS_OF, rows.ResourcesRow)
# One version of resources.
GET_VERSION = statement(
    "SELECT " + _VERSION + " FROM " + _VERSIONS_OF + " AND v.version = :version", row=rows.ResourcesRow
)
# Number of rollouts by namespace and status.
ROLLOUTS_BY_STATUS = statement(
    """
    SELECT ns, status, sum(total) AS total
    FROM rollout_counts WHERE ns {among:numbers} GROUP BY ns, status ORDER BY ns, status
    """,
    row=rows.NamespaceCount,
)
# Number of workers by namespace and status.
WORKERS_BY_STATUS = statement(
    """
    SELECT ns, status, count(*) AS total
    FROM workers WHERE ns {among:numbers} GROUP BY ns, status ORDER BY ns, status
    """,
    row=rows.NamespaceCount,
)
# Number of ready rollouts by queue.
READY_BY_QUEUE = statement(
    """
    SELECT ns, queue, count(*) AS total, min(ready) AS oldest
    FROM rollouts WHERE ns {among:numbers} AND ready IS NOT NULL GROUP BY ns, queue
    """,
    row=rows.ReadyCount,
)
# Number of delayed rollouts by queue.
DUE_BY_QUEUE = statement(
    """
    SELECT {plain:ns} AS ns, queue, count(*) AS total
    FROM rollouts
    WHERE {plain:ns} {among:numbers} AND due_at IS NOT NULL GROUP BY 1, queue
    """,
    row=rows.QueueCount,
)
# Number of rollouts that wait in lines, by queue. The bound of the priority makes PostgreSQL use the index.
BEHIND_BY_QUEUE = statement(
    """
    SELECT r.ns, r.queue, count(*) AS total
    FROM lines AS l
    CROSS JOIN rollouts AS r
    WHERE l.ns {among:numbers} AND l.holder IS NOT NULL
      AND r.ns = l.ns AND r.line = l.line AND r.priority > -2147483649 AND r.behind IS NOT NULL
    GROUP BY r.ns, r.queue
    """,
    row=rows.QueueCount,
)

name_statements(globals())
