"""SQL of executions, written once for both engines."""

from __future__ import annotations

from perdure.executions import rows
from perdure.executions.tables import CHAT_THREADS, EXECUTIONS, SEEDS, STATS
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement

# --- seeds ------------------------------------------------------------------------------------------------

# Add the seeds of new phases.
ADD_SEEDS = BulkInsert(SEEDS, rows.SeedRow)
# The seeds of phases.
GET_SEEDS = statement(
    "SELECT {columns} FROM execution_seeds WHERE ns = :ns AND rollout_id {among:ids}", row=rows.SeedRow
)
# Delete the seeds of phases that have ended.
DROP_SEEDS = statement("DELETE FROM execution_seeds WHERE ns = :ns AND rollout_id {among:ids}")

# --- executions -------------------------------------------------------------------------------------------

# Add executions.
ADD = BulkInsert(EXECUTIONS, rows.WholeExecution)
# Executions by their ids, locked.
LOCK = statement(
    "SELECT {columns} FROM executions WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}",
    row=rows.ExecutionRow,
)
# The executions of rollouts that have not ended, locked.
LOCK_OPEN_OF = statement(
    """
    SELECT {columns} FROM executions
    WHERE ns = :ns AND rollout_id {among:ids} AND {plain:finished_at} IS NULL
    ORDER BY {plain:id} {lock}
    """,
    row=rows.ExecutionRow,
)
_ENDS = (
    "finished_at",
    "success",
    "turns",
    "duration_ms",
    "session_id",
    "cost_usd",
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "api_duration_ms",
    "stop_reason",
    "error",
)
# End executions.
CLOSE = BulkUpdate(EXECUTIONS, rows.ExecutionRow, sets=_ENDS, keys=("ns", "id"))
# End executions that have an output.
CLOSE_WITH_OUTPUT = BulkUpdate(
    EXECUTIONS, rows.WholeExecution, sets=(*_ENDS, "output_text"), keys=("ns", "id")
)
# Update the usage of executions.
USE = BulkUpdate(
    EXECUTIONS,
    rows.ExecutionRow,
    sets=(
        "turns",
        "session_id",
        "cost_usd",
        "input_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "output_tokens",
        "api_duration_ms",
    ),
    keys=("ns", "id"),
)
# Mark ended executions as failed.
FAIL = BulkUpdate(EXECUTIONS, rows.ExecutionRow, sets=("success", "error"), keys=("ns", "id"))
# Set the sessions of executions.
SET_SESSIONS = BulkUpdate(EXECUTIONS, rows.ExecutionSessionRow, sets=("session_id",), keys=("ns", "id"))
# Set the outputs of executions.
SET_OUTPUTS = BulkUpdate(EXECUTIONS, rows.ExecutionOutputRow, sets=("output_text",), keys=("ns", "id"))
# The outputs of some executions.
GET_OUTPUTS = statement(
    "SELECT {columns} FROM executions WHERE ns = :ns AND id {among:ids}", row=rows.ExecutionOutputRow
)
# An execution with its output.
GET = statement("SELECT {columns} FROM executions WHERE ns = :ns AND id = :id", row=rows.WholeExecution)
# The open executions of a skill and a trigger, or of its workflow run, locked.
LOCK_OPEN = statement(
    """
    SELECT {columns} FROM executions
    WHERE ns = :ns AND trigger_id = :trigger_id AND {plain:finished_at} IS NULL
      AND (:skill = '' OR {plain:skill} = :skill)
      AND (:run = '' OR {plain:workflow_run_id} = :run)
    ORDER BY {plain:id} {lock}
    """,
    row=rows.ExecutionRow,
)
# The newest execution of a skill for a trigger, or in a workflow run, locked.
LOCK_NEWEST = statement(
    """
    SELECT {columns} FROM executions
    WHERE ns = :ns AND trigger_id = :trigger_id AND {plain:skill} = :skill
      AND (:run = '' OR {plain:workflow_run_id} = :run)
    ORDER BY started_at DESC, id DESC LIMIT 1 {lock}
    """,
    row=rows.ExecutionRow,
)
# Whether executions of a skill are open, and whether one has succeeded, for a trigger.
FIND_OF_TRIGGER = statement(
    """
    SELECT max(CASE WHEN finished_at IS NULL THEN 1 END) AS open, max(success) AS done
    FROM executions
    WHERE ns = :ns AND trigger_id = :trigger_id AND {plain:skill} = :skill
    """,
    row=rows.ExecutionState,
)
# Whether executions of a skill are open, and whether one has succeeded, in a workflow run.
FIND_OF_RUN = statement(
    """
    SELECT max(CASE WHEN finished_at IS NULL THEN 1 END) AS open, max(success) AS done
    FROM executions
    WHERE ns = :ns AND workflow_run_id = :run AND skill = :skill
    """,
    row=rows.ExecutionState,
)

# --- lists, the newest first ------------------------------------------------------------------------------

_AFTER = " AND (started_at, id) < (:at, :id) ORDER BY started_at DESC, id DESC LIMIT :n"
# All executions.
LIST = statement("SELECT {columns} FROM executions WHERE ns = :ns" + _AFTER, row=rows.ExecutionRow)
# The executions of a skill. Its index has no ids; without this condition SQLite would use another index.
LIST_SKILL = statement(
    """
    SELECT {columns} FROM executions
    WHERE ns = :ns AND skill = :value AND started_at <= :at
      AND ({plain:started_at} < :at OR {plain:id} < :id)
    ORDER BY started_at DESC, {plain:id} DESC LIMIT :n
    """,
    row=rows.ExecutionRow,
)
# The executions of a trigger.
LIST_TRIGGER = statement(
    "SELECT {columns} FROM executions WHERE ns = :ns AND trigger_id = :value" + _AFTER, row=rows.ExecutionRow
)
# The executions of a workflow run.
LIST_RUN = statement(
    "SELECT {columns} FROM executions WHERE ns = :ns AND workflow_run_id = :value" + _AFTER,
    row=rows.ExecutionRow,
)
# The executions that have not ended.
LIST_OPEN = statement(
    "SELECT {columns} FROM executions WHERE ns = :ns AND finished_at IS NULL" + _AFTER, row=rows.ExecutionRow
)
# The executions of a workflow run and, if a trigger is given, executions of that trigger without a run and
# with a skill in a range, in the order of their start.
OF_WORKFLOW_RUN = statement(
    """
    SELECT {columns} FROM executions
    WHERE ns = :ns AND workflow_run_id = :run AND (started_at, id) > (:at, :id)
    UNION ALL
    SELECT {columns} FROM executions
    WHERE ns = :ns AND trigger_id = :trigger_id AND {plain:workflow_run_id} IS NULL
      AND {plain:skill} >= :first AND {plain:skill} < :last AND (started_at, id) > (:at, :id)
    ORDER BY started_at, id LIMIT :n
    """,
    row=rows.ExecutionRow,
)
# The newest executions of a skill that have ended.
ENDED_OF_SKILL = statement(
    """
    SELECT {columns} FROM executions
    WHERE ns = :ns AND skill = :skill AND {plain:finished_at} IS NOT NULL
    ORDER BY started_at DESC LIMIT :n
    """,
    row=rows.ExecutionRow,
)

# --- statistics -------------------------------------------------------------------------------------------

# Add to the statistics.
ADD_STATS = BulkInsert(
    STATS,
    rows.StatRow,
    on_conflict="""
    UPDATE SET total = execution_stats.total + excluded.total,
      turns = execution_stats.turns + excluded.turns,
      duration_ms = execution_stats.duration_ms + excluded.duration_ms,
      input_tokens = execution_stats.input_tokens + excluded.input_tokens,
      output_tokens = execution_stats.output_tokens + excluded.output_tokens,
      cache_read_input_tokens = execution_stats.cache_read_input_tokens + excluded.cache_read_input_tokens,
      cache_creation_input_tokens =
        execution_stats.cache_creation_input_tokens + excluded.cache_creation_input_tokens,
      cost_usd = execution_stats.cost_usd + excluded.cost_usd
    """,
)
_SUMS = """
    sum(total) AS total, sum(turns) AS turns, sum(duration_ms) AS duration_ms,
    sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
    sum(cache_read_input_tokens) AS cache_read_input_tokens,
    sum(cache_creation_input_tokens) AS cache_creation_input_tokens, sum(cost_usd) AS cost_usd
    FROM execution_stats
    """
# The sums by time since a time.
SUMS_SINCE = statement(
    "SELECT at, '' AS name, outcome, "
    + _SUMS
    + " WHERE ns = :ns AND series = :series AND at >= :since GROUP BY at, outcome",
    row=rows.SumRow,
)
# The sums of one name by time since a time.
SUMS_OF_NAME = statement(
    "SELECT at, name, outcome, "
    + _SUMS
    + " WHERE ns = :ns AND series = :series AND at >= :since AND name = :name GROUP BY at, name, outcome",
    row=rows.SumRow,
)
# The sums by name since a time; `since` is 0 in the series over all time.
SUMS_BY_NAME = statement(
    "SELECT 0 AS at, name, outcome, "
    + _SUMS
    + " WHERE ns = :ns AND series = :series AND at >= :since GROUP BY name, outcome ORDER BY name LIMIT :n",
    row=rows.SumRow,
)
# The number of executions that have not ended, by the hour of their start.
OPEN_BY_HOUR = statement(
    """
    SELECT started_at / :hour AS hour, count(*) AS total
    FROM executions
    WHERE ns = :ns AND finished_at IS NULL
    GROUP BY 1
    """,
    row=rows.OpenCount,
)

# The number of executions of a workflow that have not ended, by the hour of their start.
OPEN_OF_WORKFLOW = statement(
    """
    SELECT started_at / :hour AS hour, count(*) AS total
    FROM executions
    WHERE ns = :ns AND finished_at IS NULL AND {plain:skill} >= :first AND {plain:skill} < :last
    GROUP BY 1
    """,
    row=rows.OpenCount,
)

# --- chats ------------------------------------------------------------------------------------------------

# Add to chats. The last execution is the one that ended last.
ADD_CHATS = BulkInsert(
    CHAT_THREADS,
    rows.ChatRow,
    on_conflict="""
    UPDATE SET first_at = CASE WHEN excluded.first_at < chat_threads.first_at
        THEN excluded.first_at ELSE chat_threads.first_at END,
      last_at = {larger:chat_threads.last_at,excluded.last_at},
      turns = chat_threads.turns + excluded.turns,
      input_tokens = chat_threads.input_tokens + excluded.input_tokens,
      output_tokens = chat_threads.output_tokens + excluded.output_tokens,
      cost_usd = chat_threads.cost_usd + excluded.cost_usd,
      last_execution_id = excluded.last_execution_id
    """,
)
# Chats, the last active first.
LIST_CHATS = statement(
    """
    SELECT {columns} FROM chat_threads
    WHERE ns = :ns AND (last_at, trigger_id) < (:at, :id)
    ORDER BY last_at DESC, trigger_id DESC LIMIT :n
    """,
    row=rows.ChatRow,
)
# A chat.
GET_CHAT = statement(
    "SELECT {columns} FROM chat_threads WHERE ns = :ns AND trigger_id = :trigger_id", row=rows.ChatRow
)

name_statements(globals())
