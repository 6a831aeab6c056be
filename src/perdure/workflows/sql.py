"""SQL of workflow runs, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Listing, SortKey, SortOrder
from perdure.workflows import rows
from perdure.workflows.tables import ADMISSION, COUNTS, DEFINITIONS, HISTORY, NODES, OUTPUTS, RUNS

# --- runs -------------------------------------------------------------------------------------------------

# Add runs.
ADD_RUNS = BulkInsert(RUNS, rows.NewRunRow, folds=False)
# Lock runs, in the order of their ids.
LOCK_RUNS = statement(
    "SELECT {columns} FROM workflow_runs WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}",
    row=rows.WorkflowRunRow,
)
# Runs by their ids.
GET_RUNS = statement(
    "SELECT {columns} FROM workflow_runs WHERE ns = :ns AND id {among:ids} ORDER BY id",
    row=rows.WorkflowRunRow,
)
# Write back runs if their status has not changed since it was read.
MOVE_RUNS = BulkUpdate(
    RUNS,
    rows.WorkflowRunRow,
    sets=(
        "current_phase",
        "status",
        "restart_count",
        "updated_at",
        "finished_at",
        "active",
        "held",
        "queued_at",
        "admitted_at",
        "due_at",
        "deadline_at",
        "open_nodes",
        "failed_nodes",
        "ready_nodes",
        "running_nodes",
        "waiting_nodes",
        "gates",
        "history",
        "total_cost_usd",
        "total_tokens",
        "turns",
        "succeeded",
        "skipped",
        "deferred",
        "failed",
        "lost_workers",
        "error",
    ),
    keys=("ns", "id"),
    guards=("status",),
)
# The live run of a workflow and a trigger.
LIVE_RUN = statement(
    """
    SELECT {columns} FROM workflow_runs
    WHERE ns = :ns AND workflow_name = :workflow_name AND trigger_id = :trigger_id AND active IS NOT NULL
    {lock}
    """,
    row=rows.WorkflowRunRow,
)
# The context and the scratch of runs.
GET_VALUES = statement(
    "SELECT id, context, scratch FROM workflow_runs WHERE ns = :ns AND id {among:ids}", row=rows.ValuesRow
)
# Set the due time of a run back to its deadline, unless new work was requested meanwhile.
TENDED = statement(
    "UPDATE workflow_runs SET due_at = deadline_at WHERE ns = :ns AND id = :id AND due_at = :due_at"
)
# Give a run another definition.
SET_DEFINITION = statement(
    "UPDATE workflow_runs SET definition = :definition, max_parallel = :max_parallel"
    " WHERE ns = :ns AND id = :id"
)
# Write the scratch of a run.
SET_SCRATCH = statement("UPDATE workflow_runs SET scratch = :scratch WHERE ns = :ns AND id = :id")
# Runs with one of some statuses that were started by other runs.
CHILDREN = statement(
    """
    SELECT id, parent_node, status FROM workflow_runs
    WHERE ns = :ns AND parent_run_id {among:ids} AND status {among:statuses} ORDER BY {plain:id} LIMIT :n
    """,
    row=rows.ChildRunRow,
)

# --- nodes ------------------------------------------------------------------------------------------------

# Add nodes.
ADD_NODES = BulkInsert(NODES, rows.WorkflowNodeRow, folds=False)
# Nodes by the execution each node waits for. Nodes are read and written under the lock of their run.
NODES_OF_ROLLOUTS = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND rollout_id {among:ids} ORDER BY run_id, node, item
    """,
    row=rows.WorkflowNodeRow,
)
# Phases of runs by their names.
GET_NODES = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND run_id {among:run_ids} AND node {among:names} AND item = 0
    ORDER BY run_id, node, item
    """,
    row=rows.WorkflowNodeRow,
)
# An item of a map phase, or the phase itself.
GET_NODE = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND run_id = :run_id AND node = :node AND item = :item
    """,
    row=rows.WorkflowNodeRow,
)
# All phases of a run, in their order, without the items of maps.
GET_PHASES = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND run_id = :run_id AND item = 0 ORDER BY position
    """,
    row=rows.WorkflowNodeRow,
)
# Nodes of a run with a status, in the order in which they are started.
GET_IN_STATUS = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND run_id = :run_id AND status = :status
    ORDER BY position, item LIMIT :n
    """,
    row=rows.WorkflowNodeRow,
)
# Items of a map phase in a status, in their order.
GET_ITEMS = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND run_id = :run_id AND status = :status AND position = :position AND item > 0
    ORDER BY position, item LIMIT :n
    """,
    row=rows.WorkflowNodeRow,
)
# The execution with the output of a whole run: the execution of the last phase that has an execution.
LAST_OUTPUT = statement(
    """
    SELECT execution_id FROM workflow_nodes
    WHERE ns = :ns AND run_id = :run_id AND status = :status AND item = 0 AND execution_id IS NOT NULL
    ORDER BY position DESC LIMIT 1
    """,
    row=str,
)
# All items of a map phase.
ALL_ITEMS = statement(
    """
    SELECT {columns} FROM workflow_nodes
    WHERE ns = :ns AND run_id = :run_id AND node = :node AND item > 0 ORDER BY item
    """,
    row=rows.WorkflowNodeRow,
)
# Write back nodes.
MOVE_NODES = BulkUpdate(
    NODES,
    rows.WorkflowNodeRow,
    sets=(
        "status",
        "waiting_on",
        "succeeded_before",
        "failed_before",
        "iteration",
        "cycle",
        "role",
        "label",
        "rollout_id",
        "execution_id",
        "approval_id",
        "child_run_id",
        "due_at",
        "started_at",
        "ended_at",
        "error",
        "state",
    ),
    keys=("ns", "run_id", "node", "item"),
)
# Delete the items of map phases that start again.
DROP_ITEMS = statement(
    "DELETE FROM workflow_nodes WHERE ns = :ns AND run_id = :run_id AND node {among:names} AND item > 0"
)
# Delete phases that the new definition of a run does not have, with their items.
DROP_PHASES = statement(
    "DELETE FROM workflow_nodes WHERE ns = :ns AND run_id = :run_id AND node {among:names}"
)
# Move a phase and its items to their position in the new definition of a run.
SET_POSITION = statement(
    "UPDATE workflow_nodes SET position = :position WHERE ns = :ns AND run_id = :run_id AND node = :node"
)
# The executions that nodes of a run wait for.
HELD_ROLLOUTS = statement(
    "SELECT rollout_id FROM workflow_nodes WHERE ns = :ns AND run_id = :run_id AND rollout_id IS NOT NULL",
    row=str,
)
# The phases of a run that are executed or wait for a worker.
LIVE_PHASES = statement(
    """
    SELECT id FROM rollouts
    WHERE ns = :ns AND parent = :run_id AND status {among:statuses} ORDER BY id LIMIT :n
    """,
    row=str,
)

# --- history, outputs, definitions ------------------------------------------------------------------------

# Add entries of the history.
ADD_HISTORY = BulkInsert(HISTORY, rows.HistoryRow, folds=False)
# Add large values.
ADD_OUTPUTS = BulkInsert(OUTPUTS, rows.WorkflowOutputRow, on_conflict="NOTHING")
# Large values by their ids.
GET_OUTPUTS = statement(
    "SELECT id, body FROM workflow_outputs WHERE ns = :ns AND id {among:ids}", row=rows.OutputBody
)
# Add definitions that are not stored yet.
ADD_DEFINITIONS = BulkInsert(DEFINITIONS, rows.DefinitionRow, on_conflict="NOTHING")
# Definitions by their digests.
GET_DEFINITIONS = statement(
    "SELECT digest, body FROM workflow_definitions WHERE ns = :ns AND digest {among:digests}",
    row=rows.DefinitionBody,
)

# The output of the latest execution of a skill in a run with a given success.
ITERATION_OUTPUT = statement(
    """
    SELECT output_text FROM executions
    WHERE ns = :ns AND workflow_run_id = :run_id AND skill = :skill AND success = :success
    ORDER BY started_at DESC LIMIT 1
    """,
    row=str,
)
# Answers of people to approvals.
ANSWERS = statement(
    "SELECT id, response FROM workflow_approvals WHERE ns = :ns AND id {among:ids}", row=rows.GateAnswerRow
)

# --- admission --------------------------------------------------------------------------------------------

# Create the row that admission locks.
OPEN_ADMISSION = BulkInsert(ADMISSION, rows.AdmissionRow, on_conflict="NOTHING")
# Lock the admission of a namespace.
LOCK_ADMISSION = statement("SELECT updated_at FROM workflow_admission WHERE ns = :ns {lock}", row=int)
# The number of running runs of a namespace without a parent, counted up to a limit.
RUNNING = statement(
    """
    SELECT count(*) FROM (SELECT 1 AS one FROM workflow_runs
      WHERE ns = :ns AND status = :running AND parent_run_id IS NULL LIMIT :cap) AS running
    """,
    row=int,
)
# The runs that wait to be admitted, the longest wait first.
QUEUED = statement(
    """
    SELECT id FROM workflow_runs WHERE ns = :ns AND queued_at IS NOT NULL ORDER BY queued_at, id LIMIT :n
    """,
    row=str,
)
# The namespaces in which runs wait to be admitted.
QUEUED_NAMESPACES = statement("SELECT DISTINCT ns FROM workflow_runs WHERE queued_at IS NOT NULL", row=int)

# --- due work ---------------------------------------------------------------------------------------------

# Runs with work due now, in all namespaces.
DUE_RUNS = statement(
    """
    SELECT {columns} FROM workflow_runs WHERE due_at <= :now ORDER BY due_at LIMIT :n
    """,
    row=rows.DueRun,
)
# Due nodes, in all namespaces.
DUE_NODES = statement(
    """
    SELECT {columns} FROM workflow_nodes WHERE due_at <= :now ORDER BY due_at LIMIT :n
    """,
    row=rows.DueNode,
)
# The next due time of a run.
NEXT_RUN = statement("SELECT min(due_at) FROM workflow_runs WHERE due_at > 0", row=int)
# The next due time of a node.
NEXT_NODE = statement("SELECT min(due_at) FROM workflow_nodes WHERE due_at > 0", row=int)

# --- counts -----------------------------------------------------------------------------------------------

# Add to the counts of runs by workflow and status.
ADD_COUNTS = BulkInsert(
    COUNTS, rows.WorkflowCountRow, on_conflict="UPDATE SET total = workflow_counts.total + excluded.total"
)
# The number of runs with each of some statuses.
COUNT = statement(
    """
    SELECT status, sum(total) AS total FROM workflow_counts
    WHERE ns = :ns AND status {among:statuses} GROUP BY status
    """,
    row=rows.RunStatusCount,
)
# The number of runs of a workflow with each of some statuses.
COUNT_NAMED = statement(
    """
    SELECT status, sum(total) AS total FROM workflow_counts
    WHERE ns = :ns AND workflow_name = :name AND status {among:statuses} GROUP BY status
    """,
    row=rows.RunStatusCount,
)
# The number of runs of each workflow and status.
COUNTS_BY_NAME = statement(
    """
    SELECT workflow_name, status, sum(total) AS total FROM workflow_counts
    WHERE ns = :ns GROUP BY workflow_name, status ORDER BY workflow_name, status
    """,
    row=rows.NameCount,
)

# The number of executions of each skill in a run, and the start of the latest execution.
TRIES = statement(
    """
    SELECT skill, count(*) AS attempts, max(started_at) AS started_at FROM executions
    WHERE ns = :ns AND workflow_run_id = :run_id AND skill {among:skills} AND attempt_id IS NOT NULL
    GROUP BY skill
    """,
    row=rows.TriesRow,
)

# --- lists ------------------------------------------------------------------------------------------------

# The runs of a namespace.
ALL_RUNS = Listing("{columns}", "workflow_runs WHERE ns = :ns", rows.WorkflowRunRow)
BEFORE = "(started_at, id) < (:at, :last)"
IN_STATUSES = "status {among:statuses}"
NEWEST_FIRST = SortOrder(
    (SortKey("started_at", "time", descending=True), SortKey("id", "text", descending=True))
)
CONDITIONS = {"name": "workflow_name = :name", "repo": "repo = :repo", "since": "started_at >= :since"}
# Runs by the first digits of their ids; 2 rows show that several match.
BY_PREFIX = statement(
    "SELECT {columns} FROM workflow_runs WHERE ns = :ns AND id >= :first AND id < :last ORDER BY id LIMIT 2",
    row=rows.WorkflowRunRow,
)
# The newest run of a trigger with one of some statuses.
BY_TRIGGER = statement(
    """
    SELECT {columns} FROM workflow_runs
    WHERE ns = :ns AND trigger_id = :trigger_id AND status {among:statuses}
    ORDER BY {plain:started_at} DESC, id DESC LIMIT 1
    """,
    row=rows.WorkflowRunRow,
)
# All nodes of a run, in their order.
ALL_NODES = statement(
    """
    SELECT {columns} FROM workflow_nodes WHERE ns = :ns AND run_id = :run_id ORDER BY position, item LIMIT :n
    """,
    row=rows.WorkflowNodeRow,
)
# The entries of a run's history after a number.
HISTORY_OF = statement(
    """
    SELECT {columns} FROM workflow_history WHERE ns = :ns AND run_id = :run_id AND seq > :after ORDER BY seq
    """,
    row=rows.HistoryRow,
)
# The last of a number of executions before a cursor, the newest first.
LOG_END = statement(
    """
    SELECT started_at, id FROM executions WHERE ns = :ns AND (started_at, id) < (:at, :last)
    ORDER BY started_at DESC, id DESC LIMIT 1 OFFSET :scan
    """,
    row=rows.LogCursor,
)
_LOG = """
    FROM executions
    WHERE ns = :ns AND (started_at, id) < (:at, :last) AND (started_at, id) >= (:first_at, :first_id)
    """
_LOG_ORDER = " ORDER BY started_at DESC, id DESC LIMIT :limit"
# Executions between two cursors with a text in their error.
_SEARCH_ERRORS = statement(
    "SELECT id, workflow_run_id, skill, started_at, error, NULL AS output_text"
    + _LOG
    + " AND {has:error,text}"
    + _LOG_ORDER,
    row=rows.ExecutionLogRow,
)
# Executions between two cursors with a text in their output.
_SEARCH_OUTPUTS = statement(
    "SELECT id, workflow_run_id, skill, started_at, NULL AS error, output_text"
    + _LOG
    + " AND {has:output_text,text}"
    + _LOG_ORDER,
    row=rows.ExecutionLogRow,
)
# Executions between two cursors with a text in their error or output.
_SEARCH_BOTH = statement(
    "SELECT id, workflow_run_id, skill, started_at, error, output_text"
    + _LOG
    + " AND ({has:error,text} OR {has:output_text,text})"
    + _LOG_ORDER,
    row=rows.ExecutionLogRow,
)
SEARCH_LOGS = {"errors": _SEARCH_ERRORS, "outputs": _SEARCH_OUTPUTS, "all": _SEARCH_BOTH}

name_statements(globals())
