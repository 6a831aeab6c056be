"""The SQL of schedules, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import ListField, Listing, SortKey, SortOrder, order_by
from perdure.schedules.rows import CronOverrideRow, FiringRow, ScheduleRow
from perdure.schedules.tables import CRON_OVERRIDES, FIRINGS, SCHEDULES

# Insert schedules.
ADD = BulkInsert(SCHEDULES, ScheduleRow)
# Schedules by their ids.
GET = statement("SELECT {columns} FROM schedules WHERE ns = :ns AND id {among:ids}", row=ScheduleRow)
# Schedules by their names.
GET_NAMED = statement(
    "SELECT {columns} FROM schedules WHERE ns = :ns AND name {among:names}", row=ScheduleRow
)
# Lock schedules.
LOCK = statement(
    "SELECT {columns} FROM schedules WHERE ns = :ns AND id {among:ids} ORDER BY id {lock}", row=ScheduleRow
)
# Lock the schedules that one origin defines.
LOCK_ORIGIN = statement(
    """
    SELECT {columns} FROM schedules WHERE ns = :ns AND name IS NOT NULL AND origin = :origin
    ORDER BY id {lock}
    """,
    row=ScheduleRow,
)
# Write the columns of a schedule that callers and definitions can change.
SAVE = BulkUpdate(
    SCHEDULES,
    ScheduleRow,
    sets=(
        "file",
        "target",
        "expression",
        "timezone",
        "enabled",
        "next_at",
        "due_at",
        "end_at",
        "jitter",
        "overlap",
        "misfire",
        "timeout",
        "unless",
        "assistant_id",
        "updated_at",
        "metadata",
        "payload",
    ),
    keys=("ns", "id"),
)
# Delete schedules.
DROP = statement("DELETE FROM schedules WHERE ns = :ns AND id {among:ids}")

# The namespaces in which schedules are due.
DUE_NAMESPACES = statement(
    "SELECT DISTINCT {plain:ns} FROM schedules WHERE next_at <= :wall AND target {among:targets}", row=int
)
# The time of the next due schedule in all namespaces.
NEXT = statement("SELECT min(next_at) FROM schedules WHERE next_at > 0 AND target {among:targets}", row=int)
# A batch of due schedules, longest waiting first.
DUE = statement(
    """
    SELECT {columns} FROM schedules
    WHERE {plain:ns} = :ns AND next_at <= :wall AND target {among:targets} ORDER BY next_at LIMIT :n
    """,
    row=ScheduleRow,
)
# Lock the schedules that no other process is firing.
CLAIM = statement(
    """
    SELECT {columns} FROM schedules
    WHERE ns = :ns AND id {among:ids} ORDER BY id {skip}
    """,
    row=ScheduleRow,
)
# Write schedules that have fired, or whose firings have ended.
MOVE = BulkUpdate(
    SCHEDULES,
    ScheduleRow,
    sets=(
        "next_at",
        "due_at",
        "fired_at",
        "fired",
        "refused",
        "skipped",
        "failed",
        "running",
        "started_id",
        "error",
        "last_result",
        "last_error",
        "last_duration",
        "last_metadata",
    ),
    keys=("ns", "id"),
)
# A batch of schedules in a namespace with open firings.
RUNNING = statement(
    "SELECT id FROM schedules WHERE ns = :ns AND running > 0 AND id > :after ORDER BY id LIMIT :n", row=str
)
# The namespaces with open firings.
RUNNING_NAMESPACES = statement("SELECT DISTINCT {plain:ns} FROM schedules WHERE running > 0", row=int)
# A page of the named schedules, in the order of their names.
LIST_NAMED = statement(
    """
    SELECT {columns} FROM schedules WHERE ns = :ns AND name IS NOT NULL AND name > :after
    ORDER BY name LIMIT :n
    """,
    row=ScheduleRow,
)

# Insert firings.
ADD_FIRINGS = BulkInsert(FIRINGS, FiringRow)
# Open firings.
OPEN_FIRINGS = statement(
    """
    SELECT {columns} FROM firings WHERE ns = :ns AND schedule_id {among:ids} AND open IS NOT NULL
    ORDER BY schedule_id, due_at LIMIT :n
    """,
    row=FiringRow,
)
# Record the end of firings.
END_FIRINGS = BulkUpdate(
    FIRINGS,
    FiringRow,
    sets=("status", "ended_at", "duration", "error", "open", "metadata"),
    keys=("ns", "schedule_id", "due_at"),
)
# A firing.
GET_FIRING = statement(
    "SELECT {columns} FROM firings WHERE ns = :ns AND schedule_id = :id AND due_at = :due_at", row=FiringRow
)
# A page of the firings of a schedule before a time, newest first.
LIST_FIRINGS = statement(
    """
    SELECT {columns} FROM firings WHERE ns = :ns AND schedule_id = :id AND due_at < :before
    ORDER BY due_at DESC LIMIT :limit OFFSET :offset
    """,
    row=FiringRow,
)
_LAST_STARTED = """(SELECT due_at FROM firings WHERE ns = :ns AND schedule_id = :id AND skipped IS NULL
       ORDER BY due_at DESC LIMIT 1 OFFSET :last)"""
# Delete the started firings of a schedule, open or ended. Keep the latest :last + 1.
TRIM_FIRINGS = statement(
    "DELETE FROM firings WHERE ns = :ns AND schedule_id = :id AND skipped IS NULL AND due_at < "
    + _LAST_STARTED
)
# Delete only the open firings that TRIM_FIRINGS would delete: their number is subtracted from `running`.
TRIM_OPEN = statement(
    "DELETE FROM firings WHERE ns = :ns AND schedule_id = :id AND skipped IS NULL AND open IS NOT NULL"
    " AND due_at < " + _LAST_STARTED
)
# Delete the skipped firings of a schedule. Keep the latest :last + 1.
TRIM_SKIPPED = statement(
    """
    DELETE FROM firings WHERE ns = :ns AND schedule_id = :id AND skipped IS NOT NULL AND due_at <
      (SELECT due_at FROM firings WHERE ns = :ns AND schedule_id = :id AND skipped IS NOT NULL
       ORDER BY due_at DESC LIMIT 1 OFFSET :last)
    """
)
# Delete the firings of schedules.
DROP_FIRINGS = statement("DELETE FROM firings WHERE ns = :ns AND schedule_id {among:ids}")

# Overrides by the names of their schedules.
GET_OVERRIDES = statement(
    "SELECT {columns} FROM cron_overrides WHERE ns = :ns AND name {among:names}", row=CronOverrideRow
)
# A page of the overrides, in the order of their names.
LIST_OVERRIDES = statement(
    """
    SELECT {columns} FROM cron_overrides WHERE ns = :ns AND name > :after ORDER BY name LIMIT :n
    """,
    row=CronOverrideRow,
)
# Insert or replace overrides.
SAVE_OVERRIDES = BulkInsert(
    CRON_OVERRIDES,
    CronOverrideRow,
    on_conflict="UPDATE SET enabled = excluded.enabled, schedule = excluded.schedule,"
    " updated_at = excluded.updated_at, updated_by = excluded.updated_by",
)
# Delete an override.
DROP_OVERRIDE = statement("DELETE FROM cron_overrides WHERE ns = :ns AND name = :name")

_ENABLED = """coalesce((SELECT o.enabled FROM cron_overrides AS o
    WHERE o.ns = schedules.ns AND o.name = schedules.name), enabled)"""
"""True if a schedule fires: its override has priority over its definition."""
FIELDS = {
    "schedule_id": ListField("id", "text"),
    "name": ListField("name", "text", null=True),
    "target": ListField("target", "text"),
    "origin": ListField("coalesce(origin, 'api')", "text"),
    "assistant_id": ListField("assistant_id", "text", null=True),
    "thread_id": ListField("thread_id", "text", null=True),
    "enabled": ListField(_ENABLED, "int"),
    "next_at": ListField("next_at", "time", null=True),
    "end_time": ListField("end_at", "time", null=True),
    "created_at": ListField("created_at", "time"),
    "updated_at": ListField("updated_at", "time"),
}


def order(sort_by: str, sort_order: str) -> SortOrder:
    """Return the order of a list of schedules; ties are in the order of creation."""
    last = sort_order == "desc"
    ties = SortOrder((SortKey("created_at", "time", descending=last), SortKey("id", "text", descending=last)))
    return order_by(FIELDS, sort_by, sort_order, ties)


# The schedules of a namespace.
LIST = Listing("{columns}", "schedules WHERE ns = :ns", ScheduleRow)

name_statements(globals())
