"""The tables of Last Light exist by their names: columns, nullability, defaults, keys and indexes.

Every key and index starts with the namespace. Intended differences: times are integers, and the unique index
of active sessions has the `thread_key`, which is never null, in place of the thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from perdure.kernel.storage.schema import Column, Table
from perdure.runtime.stores import TABLES

BY_NAME = {table.name: table for table in TABLES}


class Of(NamedTuple):
    """A column of Last Light: its type, whether it may be null, and its default."""

    type: str
    null: bool = True
    default: Any = None


TEXT, INTEGER, REAL = Of("text"), Of("int"), Of("real")
NEEDED = Of("text", null=False)
TIME = Of("int", null=False)
"""A text in Last Light."""
WHEN = Of("int")
"""A text in Last Light that may be null."""
ON = Of("int", null=False, default=1)


class Theirs(NamedTuple):
    """A table of Last Light. An index is its columns, whether it is unique, and its condition."""

    columns: dict[str, Of]
    key: tuple[str, ...]
    indexes: dict[str, tuple[tuple[str, ...], bool, str | None]]


SEED = {
    "workflow_runs": Theirs(
        {
            "id": NEEDED,
            "workflow_name": NEEDED,
            "trigger_id": NEEDED,
            "repo": TEXT,
            "issue_number": INTEGER,
            "current_phase": NEEDED,
            "phase_history": Of("text", null=False, default="[]"),
            "status": Of("text", null=False, default="running"),
            "context": TEXT,
            "scratch": TEXT,
            "node_statuses": TEXT,
            "restart_count": Of("int", null=False, default=0),
            "started_at": TIME,
            "updated_at": TIME,
            "finished_at": WHEN,
        },
        ("id",),
        {
            "idx_workflow_runs_trigger": (("trigger_id", "status"), False, None),
            "idx_workflow_runs_status": (("status",), False, None),
            "idx_workflow_runs_started_at": (("started_at DESC",), False, None),
            "idx_workflow_runs_name_started": (("workflow_name", "started_at DESC"), False, None),
        },
    ),
    "workflow_approvals": Theirs(
        {
            "id": NEEDED,
            "workflow_run_id": NEEDED,
            "gate": NEEDED,
            "summary": NEEDED,
            "status": Of("text", null=False, default="pending"),
            "kind": Of("text", null=False, default="approve"),
            "requested_by": TEXT,
            "responded_by": TEXT,
            "response": TEXT,
            "responded_at": WHEN,
            "created_at": TIME,
        },
        ("id",),
        {
            "idx_approvals_workflow": (("workflow_run_id",), False, None),
            "idx_approvals_status": (("status",), False, None),
        },
    ),
    "workflow_overrides": Theirs(
        {"name": NEEDED, "enabled": ON, "updated_at": TIME, "updated_by": TEXT}, ("name",), {}
    ),
    "messaging_sessions": Theirs(
        {
            "id": NEEDED,
            "platform": NEEDED,
            "channel_id": NEEDED,
            "thread_id": TEXT,
            "user_id": NEEDED,
            "agent_session_id": TEXT,
            "created_at": TIME,
            "last_activity_at": TIME,
            "message_count": Of("int", default=0),
            "active": Of("int", default=1),
        },
        ("id",),
        {
            "idx_msg_sessions_lookup": (("platform", "channel_id", "thread_id", "user_id"), False, None),
            "idx_msg_sessions_unique_active": (
                ("platform", "channel_id", "thread_key", "user_id"),
                True,
                "active = 1",
            ),
        },
    ),
    "messaging_messages": Theirs(
        {
            "id": Of("int", null=False),
            "session_id": NEEDED,
            "role": NEEDED,
            "content": NEEDED,
            "timestamp": TIME,
            "platform_message_id": TEXT,
        },
        ("id",),
        {"idx_msg_messages_session": (("session_id", "timestamp"), False, None)},
    ),
}


def _of(column: Column) -> Of:
    return Of(column.type, column.null, column.default)


@pytest.mark.parametrize("name", SEED)
def test_a_table_has_everything_that_theirs_has(name: str) -> None:
    ours, theirs = BY_NAME[name], SEED[name]
    assert {column: _of(ours.column(column)) for column in theirs.columns} == theirs.columns
    assert ours.key == ("ns", *theirs.key)
    assert _indexes(ours, theirs) == theirs.indexes


def _indexes(ours: Table, theirs: Theirs) -> dict[str, Any]:
    found = {each.name: each for each in ours.indexes}
    assert all(found[name].columns[0] == "ns" for name in theirs.indexes)
    return {name: (found[name].columns[1:], found[name].unique, found[name].where) for name in theirs.indexes}


def test_messages_belong_to_sessions_and_approvals_to_runs() -> None:
    (session,) = BY_NAME["messaging_messages"].foreign_keys
    assert (session.columns, session.table) == (("ns", "session_id"), "messaging_sessions")
    (run,) = BY_NAME["workflow_approvals"].foreign_keys
    assert (run.columns, run.table) == (("ns", "workflow_run_id"), "workflow_runs")
