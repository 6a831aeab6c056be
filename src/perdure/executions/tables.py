"""Tables of executions. The output comes last, and only views of one execution read it."""

from __future__ import annotations

from perdure.kernel.storage.schema import Index, Table, integer, real, text

EXECUTIONS = Table(
    "executions",
    (
        integer("ns"),
        text("id"),
        text("trigger_type"),
        text("trigger_id"),
        text("skill"),
        text("repo", null=True),
        integer("issue_number", null=True),
        integer("started_at"),
        integer("finished_at", null=True),
        integer("success", null=True),
        integer("turns", null=True),
        integer("duration_ms", null=True),
        text("session_id", null=True),
        real("cost_usd", null=True),
        integer("input_tokens", null=True),
        integer("cache_creation_input_tokens", null=True),
        integer("cache_read_input_tokens", null=True),
        integer("output_tokens", null=True),
        integer("api_duration_ms", null=True),
        text("stop_reason", null=True),
        text("workflow_run_id", null=True),
        text("rollout_id", null=True),
        text("attempt_id", null=True),
        text("label", null=True),
        text("error", null=True),
        text("output_text", null=True),
    ),
    key=("ns", "id"),
    indexes=(
        Index("idx_executions_trigger", ("ns", "trigger_type", "trigger_id")),
        Index("idx_executions_skill", ("ns", "skill", "started_at")),
        Index("idx_executions_workflow_run", ("ns", "workflow_run_id", "skill")),
        Index("executions_started", ("ns", "started_at", "id")),
        Index("executions_open", ("ns", "started_at", "id"), "finished_at IS NULL"),
        Index("executions_of_trigger", ("ns", "trigger_id", "started_at", "id")),
        Index(
            "executions_of_run",
            ("ns", "workflow_run_id", "started_at", "id"),
            "workflow_run_id IS NOT NULL",
        ),
        Index("executions_of_rollout", ("ns", "rollout_id"), "rollout_id IS NOT NULL"),
    ),
    hot=True,
)
"""Each attempt of a phase or chat turn, and each skipped phase. `success` is null until it has ended."""

SEEDS = Table(
    "execution_seeds",
    (
        integer("ns"),
        text("rollout_id"),
        text("trigger_type"),
        text("trigger_id"),
        text("skill"),
        text("label", null=True),
        text("repo", null=True),
        integer("issue_number", null=True),
        text("workflow_run_id", null=True),
    ),
    key=("ns", "rollout_id"),
    hot=True,
)
"""Fields that the executions of a phase share; a row is deleted when its phase has ended."""

STATS = Table(
    "execution_stats",
    (
        integer("ns"),
        text("series"),
        integer("at"),
        text("name"),
        text("outcome"),
        integer("shard"),
        integer("total"),
        integer("turns"),
        integer("duration_ms"),
        integer("input_tokens"),
        integer("output_tokens"),
        integer("cache_read_input_tokens"),
        integer("cache_creation_input_tokens"),
        real("cost_usd"),
    ),
    key=("ns", "series", "at", "name", "outcome", "shard"),
    hot=True,
)
"""Sums over ended executions by outcome and by hour, skill and day, workflow and hour, or workflow and day.

Sums over all time, by skill and by type of trigger, have an `at` of 0. An execution counts at its start time.
"""

CHAT_THREADS = Table(
    "chat_threads",
    (
        integer("ns"),
        text("trigger_id"),
        integer("first_at"),
        integer("last_at"),
        integer("turns"),
        integer("input_tokens"),
        integer("output_tokens"),
        real("cost_usd"),
        text("last_execution_id"),
    ),
    key=("ns", "trigger_id"),
    indexes=(Index("chat_threads_last", ("ns", "last_at", "trigger_id")),),
    hot=True,
)
"""Sums over the executions of each chat."""

TABLES = (EXECUTIONS, SEEDS, STATS, CHAT_THREADS)
