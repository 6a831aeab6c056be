"""The tables of workflows have every column and index of the format that they continue, by name."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.schema import Table
from perdure.runtime.stores import TABLES


class Wanted(NamedTuple):
    """A column: its type, whether it may be null, and its default."""

    type: str
    null: bool = False
    default: int | float | str | None = None


class WantedIndex(NamedTuple):
    columns: tuple[str, ...]
    where: str | None = None
    unique: bool = False


TEXT = Wanted("text")
INT = Wanted("int")
REAL = Wanted("real")
TIME = Wanted("int")
"""A time: ISO-8601 there, an integer here."""


def null(kind: Wanted) -> Wanted:
    return kind._replace(null=True)


def default(kind: Wanted, value: int | str) -> Wanted:
    return kind._replace(default=value)


COLUMNS: dict[str, dict[str, Wanted]] = {
    "executions": {
        "id": TEXT,
        "trigger_type": TEXT,
        "trigger_id": TEXT,
        "skill": TEXT,
        "repo": null(TEXT),
        "issue_number": null(INT),
        "started_at": TIME,
        "finished_at": null(TIME),
        "success": null(INT),
        "error": null(TEXT),
        "turns": null(INT),
        "duration_ms": null(INT),
        "session_id": null(TEXT),
        "cost_usd": null(REAL),
        "input_tokens": null(INT),
        "cache_creation_input_tokens": null(INT),
        "cache_read_input_tokens": null(INT),
        "output_tokens": null(INT),
        "api_duration_ms": null(INT),
        "stop_reason": null(TEXT),
        "workflow_run_id": null(TEXT),
        "output_text": null(TEXT),
    },
    "workflow_runs": {
        "id": TEXT,
        "workflow_name": TEXT,
        "trigger_id": TEXT,
        "repo": null(TEXT),
        "issue_number": null(INT),
        "current_phase": TEXT,
        "phase_history": default(TEXT, "[]"),
        "status": default(TEXT, "running"),
        "context": null(TEXT),
        "scratch": null(TEXT),
        "node_statuses": null(TEXT),
        "restart_count": default(INT, 0),
        "started_at": TIME,
        "updated_at": TIME,
        "finished_at": null(TIME),
    },
    "workflow_approvals": {
        "id": TEXT,
        "workflow_run_id": TEXT,
        "gate": TEXT,
        "summary": TEXT,
        "status": default(TEXT, "pending"),
        "kind": default(TEXT, "approve"),
        "requested_by": null(TEXT),
        "responded_by": null(TEXT),
        "response": null(TEXT),
        "responded_at": null(TIME),
        "created_at": TIME,
    },
    "cron_overrides": {
        "name": TEXT,
        "enabled": default(INT, 1),
        "schedule": null(TEXT),
        "updated_at": TIME,
        "updated_by": null(TEXT),
    },
    "workflow_overrides": {
        "name": TEXT,
        "enabled": default(INT, 1),
        "updated_at": TIME,
        "updated_by": null(TEXT),
    },
    "messaging_sessions": {
        "id": TEXT,
        "platform": TEXT,
        "channel_id": TEXT,
        "thread_id": null(TEXT),
        "user_id": TEXT,
        "agent_session_id": null(TEXT),
        "created_at": TIME,
        "last_activity_at": TIME,
        "message_count": null(default(INT, 0)),
        "active": null(default(INT, 1)),
    },
    "messaging_messages": {
        "id": INT,
        "session_id": TEXT,
        "role": TEXT,
        "content": TEXT,
        "timestamp": TIME,
        "platform_message_id": null(TEXT),
    },
}
KEYS = {
    "executions": ("id",),
    "workflow_runs": ("id",),
    "workflow_approvals": ("id",),
    "cron_overrides": ("name",),
    "workflow_overrides": ("name",),
    "messaging_sessions": ("id",),
    "messaging_messages": ("id",),
}
INDEXES: dict[str, dict[str, WantedIndex]] = {
    "executions": {
        "idx_executions_trigger": WantedIndex(("trigger_type", "trigger_id")),
        "idx_executions_skill": WantedIndex(("skill", "started_at")),
        "idx_executions_workflow_run": WantedIndex(("workflow_run_id", "skill")),
    },
    "workflow_runs": {
        "idx_workflow_runs_trigger": WantedIndex(("trigger_id", "status")),
        "idx_workflow_runs_status": WantedIndex(("status",)),
        "idx_workflow_runs_started_at": WantedIndex(("started_at DESC",)),
        "idx_workflow_runs_name_started": WantedIndex(("workflow_name", "started_at DESC")),
    },
    "workflow_approvals": {
        "idx_approvals_workflow": WantedIndex(("workflow_run_id",)),
        "idx_approvals_status": WantedIndex(("status",)),
    },
    "messaging_sessions": {
        "idx_msg_sessions_lookup": WantedIndex(("platform", "channel_id", "thread_id", "user_id")),
        # A thread that is null has an empty key there, so that it counts as equal.
        "idx_msg_sessions_unique_active": WantedIndex(
            ("platform", "channel_id", "thread_key", "user_id"), "active = 1", unique=True
        ),
    },
    "messaging_messages": {"idx_msg_messages_session": WantedIndex(("session_id", "timestamp"))},
}


def tables() -> dict[str, Table]:
    return {table.name: table for table in TABLES if table.name in COLUMNS}


def test_every_column_is_there() -> None:
    for name, table in tables().items():
        seen = {each.name: Wanted(each.type, each.null, each.default) for each in table.columns}
        assert {column: seen.get(column) for column in COLUMNS[name]} == COLUMNS[name], name


def test_the_namespace_leads_every_key() -> None:
    for name, table in tables().items():
        assert table.key == ("ns", *KEYS[name]), name


def test_every_index_is_there() -> None:
    for name, table in tables().items():
        seen = {
            each.name: WantedIndex(each.columns[1:], each.where, each.unique)
            for each in table.indexes
            if each.columns[0] == "ns"
        }
        wanted = INDEXES.get(name, {})
        assert {index: seen.get(index) for index in wanted} == wanted, name
