"""SQL of threads, runs and their states, the same for both engines."""

from __future__ import annotations

from typing import Final

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder
from perdure.kernel.storage.rows import get_columns
from perdure.rollouts.rows import PromotedRow
from perdure.rollouts.tables import ATTEMPTS
from perdure.threads.model import StateBody, StateKey
from perdure.threads.rows import (
    ROLLOUT_COLUMNS,
    Count,
    LatestAttempt,
    LeasedAttempt,
    LifetimeRow,
    LiveRun,
    NamespacedId,
    NextOf,
    RolloutStatus,
    RunCursor,
    RunLineHolder,
    RunRow,
    RunSession,
    RunSessionRow,
    RunStepRow,
    StartTime,
    StateChange,
    StateRow,
    ThreadRow,
)
from perdure.threads.tables import CHECKPOINTS, RUN_STEPS, RUNS, THREAD_LIFETIMES, THREADS

# --- threads ----------------------------------------------------------------------------------------------

# Threads by their ids.
GET_THREADS = statement("SELECT {columns} FROM threads WHERE ns = :ns AND id {among:ids}", row=ThreadRow)
# Threads by their ids, locked.
LOCK_THREADS = statement(
    "SELECT {columns} FROM threads WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=ThreadRow
)
# New threads.
ADD_THREADS = BulkInsert(THREADS, ThreadRow)
_MOVED = ("status", "rest", "gone_at", "updated_at", "state_at", "checkpoint_id", "steps", "error")
# Threads whose status or state has changed.
MOVE_THREADS = BulkUpdate(THREADS, ThreadRow, sets=_MOVED, keys=("ns", "id"))
# Threads that get the labels of another assistant.
MARK_THREADS = BulkUpdate(THREADS, ThreadRow, sets=(*_MOVED, "metadata"), keys=("ns", "id"))
# Threads that a caller changes.
EDIT_THREADS = BulkUpdate(THREADS, ThreadRow, sets=("config", "metadata", "updated_at"), keys=("ns", "id"))
# Threads that callers see.
LIST_THREADS = Listing(
    "{columns}", "threads WHERE ns = :ns AND temporary IS NULL AND {plain:gone_at} IS NULL", ThreadRow
)
THREAD_FIELDS: Final = {
    "thread_id": ListField("id", "text"),
    "status": ListField("status", "text"),
    "created_at": ListField("created_at", "time"),
    "updated_at": ListField("updated_at", "time"),
    "state_updated_at": ListField("state_at", "time"),
}
# Remove threads.
DROP_THREADS = statement("DELETE FROM threads WHERE ns = :ns AND id {among:ids}")
# Remove free lines.
DROP_LINES = statement("DELETE FROM lines WHERE ns = :ns AND line {among:names} AND holder IS NULL")

# --- lifetimes --------------------------------------------------------------------------------------------

# New lifetimes.
ADD_LIFETIMES = BulkInsert(THREAD_LIFETIMES, LifetimeRow)
# The lifetimes of threads.
GET_LIFETIMES = statement(
    "SELECT {columns} FROM thread_lifetimes WHERE ns = :ns AND thread_id {among:ids}", row=LifetimeRow
)
# Remove lifetimes.
DROP_LIFETIMES = statement("DELETE FROM thread_lifetimes WHERE ns = :ns AND thread_id {among:ids}")
# Threads at the end of their lifetime, in all namespaces.
DUE_LIFETIMES = statement(
    "SELECT ns, thread_id AS id FROM thread_lifetimes WHERE expires_at <= :now ORDER BY expires_at LIMIT :n",
    row=NamespacedId,
)
# Postpone the end of a lifetime.
POSTPONE_LIFETIME = statement(
    "UPDATE thread_lifetimes SET expires_at = :time WHERE ns = :ns AND thread_id = :thread_id"
)

# --- runs -------------------------------------------------------------------------------------------------

RUN_COLUMNS: Final = ", ".join(ROLLOUT_COLUMNS.get(name, "n." + name) for name in get_columns(RunRow))
RUNS_WITH_ROLLOUTS: Final = "runs AS n JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id WHERE n.ns = :ns"
# Runs by their ids.
GET_RUNS = statement(
    "SELECT " + RUN_COLUMNS + " FROM " + RUNS_WITH_ROLLOUTS + " AND n.id {among:ids}", row=RunRow
)
# Positions of visible runs of a kind, by the status of their rollouts.
RUN_PLACES = Listing(
    "{columns}",
    "rollouts WHERE ns = :ns AND kind = :kind AND (SELECT 1 FROM runs AS g"
    " WHERE g.ns = rollouts.ns AND g.id = rollouts.id AND {plain:g.gone_at} IS NULL) = 1",
    RunCursor,
)
# Positions of ended runs, by outcome.
ENDED_RUN_PLACES = Listing("{columns}", RUN_PLACES.source + " AND line IS NOT NULL", RunCursor)
START_ORDER: Final = SortOrder(
    (SortKey("start_time", "time", descending=True), SortKey("id", "text", descending=True))
)
# Number of deleted runs with some statuses whose rollouts are still stored.
COUNT_GONE_RUNS = statement(
    """
    SELECT count(*)
    FROM runs AS n JOIN rollouts AS r ON r.ns = n.ns AND r.id = n.id
    WHERE {plain:n.ns} = :ns AND n.gone_at > 0
      AND {plain:r.kind} = :kind AND {plain:r.status} {among:statuses}
    """,
    row=int,
)
# The runs of a thread.
LIST_THREAD_RUNS = Listing(
    RUN_COLUMNS,
    RUNS_WITH_ROLLOUTS + " AND n.thread_id = :thread_id AND n.gone_at IS NULL AND {plain:r.kind} = :kind",
    RunRow,
)
# The runs of a thread, except rolled-back runs.
LIST_KEPT_RUNS = Listing(
    RUN_COLUMNS, LIST_THREAD_RUNS.source + " AND (r.outcome IS NULL OR r.outcome <> :undone)", RunRow
)
RUN_FIELDS: Final = {
    "created_at": ListField("n.created_at", "time"),
    "status": ListField("r.status", "text"),
    "outcome": ListField("r.outcome", "text"),
    "assistant_id": ListField("n.assistant_id", "text"),
    "agent": ListField("n.agent", "text"),
}
RUN_ORDER: Final = SortOrder(
    (SortKey("n.created_at", "time", descending=True), SortKey("n.id", "text", descending=True))
)
# New runs.
ADD_RUNS = BulkInsert(RUNS, RunRow)
# Ended and deleted runs.
MOVE_RUNS = BulkUpdate(RUNS, RunRow, sets=("live", "gone_at", "updated_at", "error"), keys=("ns", "id"))
# Live runs of threads, in the order of their creation.
LIVE_RUNS = statement(
    """
    SELECT {columns:n}
    FROM runs AS n
    WHERE n.ns = :ns AND n.thread_id {among:thread_ids} AND n.live IS NOT NULL
    ORDER BY n.thread_id, n.created_at
    """,
    row=LiveRun,
)
# The oldest runs with some statuses.
LIVE_ANYWHERE = statement(
    """
    SELECT n.id
    FROM rollouts AS r
    JOIN runs AS n ON n.ns = r.ns AND n.id = r.id
    WHERE r.ns = :ns AND r.kind = :kind AND r.status {among:statuses}
    ORDER BY r.start_time
    LIMIT :n
    """,
    row=str,
)
# Delete the runs of a thread.
HIDE_RUNS = statement(
    "UPDATE runs SET gone_at = :now WHERE ns = :ns AND thread_id = :thread_id AND gone_at IS NULL"
)
# Some runs of threads.
RUNS_OF_THREADS = statement("SELECT id FROM runs WHERE ns = :ns AND thread_id {among:ids} LIMIT :n", row=str)
# Remove runs.
DROP_RUNS = statement("DELETE FROM runs WHERE ns = :ns AND id {among:ids} RETURNING id", row=str)
# Number of rollouts of a kind with some statuses whose runs were removed.
COUNT_REMOVED_RUNS = statement(
    """
    SELECT CAST(coalesce(sum(total), 0) AS BIGINT) FROM removed_runs
    WHERE ns = :ns AND kind = :kind AND {plain:status} {among:statuses}
    """,
    row=int,
)
# Set the agent of waiting runs that have none.
FILL_AGENTS = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id
    FROM rollouts
    WHERE agent IS NULL AND line IS NOT NULL AND end_time IS NULL
    ORDER BY ns, id
    LIMIT :n {skip})
    UPDATE rollouts SET agent = n.agent
    FROM c JOIN runs AS n ON n.ns = c.ns AND n.id = c.id
    WHERE rollouts.ns = c.ns AND rollouts.id = c.id
    RETURNING {columns:rollouts}
    """,
    row=PromotedRow,
)
# The statuses of the rollouts of runs.
RUN_STATUSES = statement(
    "SELECT {columns} FROM rollouts WHERE ns = :ns AND id {among:ids}", row=RolloutStatus
)
# Start of the first attempt of runs.
STARTED = statement(
    """
    SELECT rollout_id, min(start_time) AS start_time
    FROM attempts
    WHERE ns = :ns AND rollout_id {among:ids}
    GROUP BY rollout_id
    """,
    row=StartTime,
)
# Number of attempts of runs that do not count.
UNCHARGED = statement(
    """
    SELECT rollout_id AS name, count(*) AS total
    FROM attempts
    WHERE ns = :ns AND rollout_id {among:ids} AND charged = 0
    GROUP BY rollout_id
    """,
    row=Count,
)

# --- holders of lines and sessions ------------------------------------------------------------------------

# The holders of lines, locked.
LOCK_HOLDERS = statement(
    """
    SELECT {columns}
    FROM lines
    WHERE ns = :ns AND line {among:names}
    ORDER BY line {lock}
    """,
    row=RunLineHolder,
)
# The sessions of runs.
GET_SESSIONS = statement(
    "SELECT n.id, n.session_id, r.kind FROM " + RUNS_WITH_ROLLOUTS + " AND n.id {among:ids}",
    row=RunSessionRow,
)
# Runs that write to another session.
SET_SESSIONS = BulkUpdate(RUNS, RunSession, sets=("session_id",), keys=("ns", "id"))
# Set when a line becomes free, even if it is held.
RELEASE_BY = statement("UPDATE lines SET release_by = :time WHERE ns = :ns AND line = :line")
# The latest attempts of runs.
LATEST_ATTEMPTS = statement(
    """
    SELECT a.rollout_id, a.id, a.status, r.status AS rollout_status, r.outcome
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id AND a.sequence_id = r.attempts
    WHERE r.ns = :ns AND r.id {among:ids}
    """,
    row=LatestAttempt,
)

# The attempts of runs, locked.
LOCK_ATTEMPTS = statement(
    "SELECT {columns} FROM attempts WHERE ns = :ns AND rollout_id {among:ids}"
    " ORDER BY rollout_id, sequence_id {lock}",
    row=LeasedAttempt,
)
# Attempts whose lease is renewed.
RENEW_ATTEMPTS = BulkUpdate(
    ATTEMPTS, LeasedAttempt, sets=("last_heartbeat_time",), keys=("ns", "rollout_id", "sequence_id")
)

# --- checkpoints and steps --------------------------------------------------------------------------------

STATE_METADATA: Final = """
    CASE WHEN c.metadata = '{}' AND length(c.state) = 0 THEN coalesce((SELECT g.metadata
      FROM graph_checkpoints AS g
      WHERE g.ns = c.ns AND g.thread_id = c.thread_id AND g.checkpoint_ns = '' AND g.id = c.id), '{}')
    ELSE c.metadata END AS metadata"""
"""Metadata of a state. Metadata of a graph's state is in its checkpoint."""
STATE_COLUMNS: Final = ", ".join(
    STATE_METADATA if name == "metadata" else "c." + name for name in get_columns(StateRow)
)

# New states.
ADD_CHECKPOINTS = BulkInsert(CHECKPOINTS, StateRow)
# New states of graphs, unless already stored.
ADD_GRAPH_STATES = BulkInsert(CHECKPOINTS, StateRow, on_conflict="NOTHING")
# Changed states of graphs.
CHANGE_STATES = BulkUpdate(
    CHECKPOINTS, StateChange, sets=("next", "interrupts", "body"), keys=("ns", "id", "thread_id")
)
# A state of a thread.
GET_CHECKPOINT = statement(
    "SELECT " + STATE_COLUMNS + " FROM checkpoints AS c"
    " WHERE c.ns = :ns AND c.thread_id = :thread_id AND c.id = :id",
    row=StateRow,
)
# States by thread and ID. Copies of a thread share the IDs of their states, and a thread may have many, so
# each row is looked up by both.
GET_CHECKPOINTS = statement(
    "SELECT " + STATE_COLUMNS + " FROM {pairs:ids,thread_ids} CROSS JOIN checkpoints AS c"
    " WHERE c.ns = :ns AND {pair:c.id,c.thread_id,pairs.one,pairs.other}",
    row=StateRow,
)
# The latest state of each of some threads, looked up by both IDs.
LATEST_STATES = statement(
    "SELECT " + STATE_COLUMNS + " FROM threads AS t CROSS JOIN checkpoints AS c"
    " WHERE t.ns = :ns AND t.id {among:thread_ids}"
    " AND c.ns = :ns AND {pair:c.id,c.thread_id,t.checkpoint_id,t.id}",
    row=StateRow,
)
# Next steps of states.
NEXT_OF = statement(
    "SELECT {columns:c} FROM {pairs:ids,thread_ids} CROSS JOIN checkpoints AS c"
    " WHERE c.ns = :ns AND {pair:c.id,c.thread_id,pairs.one,pairs.other}",
    row=NextOf,
)
# The latest state of a thread, except states of one run and of rolled-back runs.
LATEST_WITHOUT = statement(
    """
    SELECT c.id
    FROM checkpoints AS c
    LEFT JOIN rollouts AS r ON r.ns = c.ns AND r.id = c.run_id
    WHERE c.ns = :ns AND c.thread_id = :thread_id AND (r.outcome IS NULL OR r.outcome <> :rollback)
      AND (c.run_id IS NULL OR c.run_id <> :run_id)
    ORDER BY c.position DESC
    LIMIT 1
    """,
    row=str,
)
# The latest state of a thread before a position.
STATE_BEFORE = statement(
    """
    SELECT id FROM checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND position < :position
    ORDER BY position DESC
    LIMIT 1
    """,
    row=str,
)
# The states of a thread before a position.
LIST_CHECKPOINTS = Listing(
    STATE_COLUMNS,
    "checkpoints AS c WHERE c.ns = :ns AND c.thread_id = :thread_id AND c.position < :before",
    StateRow,
)
STATE_ORDER: Final = SortOrder((SortKey("position", "int", descending=True),))
# Copy the states of a thread to another, except states of rolled-back runs.
COPY_CHECKPOINTS = statement(
    """
    INSERT INTO checkpoints (ns, thread_id, id, position, step, parent_id, run_id, attempt, created_at, next,
      interrupts, metadata, body, state, output)
    SELECT ns, :copy, id, position, step, parent_id, NULL, attempt, created_at, next, interrupts, metadata,
      body, state, output
    FROM checkpoints
    WHERE ns = :ns AND thread_id = :thread_id AND (run_id IS NULL OR run_id NOT IN (SELECT r.id
    FROM rollouts AS r
    WHERE r.ns = :ns AND r.line = :thread_id AND r.outcome = :rollback))
    """
)
# The stored values of states.
GET_BODIES = statement(
    "SELECT {columns} FROM checkpoints WHERE ns = :ns AND id {among:ids}"
    " AND thread_id || '' {among:thread_ids}",
    row=StateBody,
)
# The states that runs stored.
STATES_OF_RUNS = statement(
    "SELECT {columns} FROM checkpoints WHERE ns = :ns AND run_id {among:ids}", row=StateKey
)
# The last state that each of some runs stored, in its thread and in copies of it.
LAST_STATES_OF_RUNS = statement(
    """
    SELECT """
    + STATE_COLUMNS
    + """ FROM checkpoints AS c JOIN (
        SELECT thread_id, run_id, max(position) AS last FROM checkpoints
        WHERE ns = :ns AND run_id {among:ids} GROUP BY thread_id, run_id
    ) AS l ON c.thread_id = l.thread_id AND c.run_id = l.run_id AND c.position = l.last
    WHERE c.ns = :ns AND c.run_id {among:ids}
    """,
    row=StateRow,
)
# Remove the states of runs.
DROP_RUN_CHECKPOINTS = statement("DELETE FROM checkpoints WHERE ns = :ns AND run_id {among:ids}")
# Remove the states of threads.
DROP_CHECKPOINTS = statement("DELETE FROM checkpoints WHERE ns = :ns AND thread_id {among:ids}")
# Remove all states of a thread except one.
DROP_EARLIER = statement("DELETE FROM checkpoints WHERE ns = :ns AND thread_id = :thread_id AND id <> :id")
# Results of steps, unless already stored.
KEEP_STEPS = BulkInsert(RUN_STEPS, RunStepRow, on_conflict="NOTHING")
# The results of steps of runs.
GET_STEPS = statement("SELECT {columns} FROM run_steps WHERE ns = :ns AND run_id {among:ids}", row=RunStepRow)
# Remove the results of steps of runs.
DROP_STEPS = statement("DELETE FROM run_steps WHERE ns = :ns AND run_id {among:ids}")

# --- statistics -------------------------------------------------------------------------------------------

# Number of runs by status.
COUNT_RUNS = statement(
    "SELECT status AS name, sum(total) AS total FROM rollout_counts"
    " WHERE ns = :ns AND kind = :kind GROUP BY status",
    row=Count,
)
# The start time of the n-th oldest run with a status.
OLDEST_RUN = statement(
    """
    SELECT start_time
    FROM rollouts
    WHERE ns = :ns AND kind = :kind AND status = :status
    ORDER BY start_time
    LIMIT 1 OFFSET :at
    """,
    row=int,
)

name_statements(globals())
