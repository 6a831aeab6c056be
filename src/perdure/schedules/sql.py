"""The SQL of schedules, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing
from perdure.schedules.model import FiringRow, ScheduleRow
from perdure.schedules.tables import FIRINGS, SCHEDULES

# Add schedules.
ADD = BulkInsert(SCHEDULES, ScheduleRow)
# Schedules by their ids.
GET = statement("SELECT {columns} FROM schedules WHERE ns = :ns AND id {among:ids}", row=ScheduleRow)
# Lock a schedule.
LOCK = statement("SELECT {columns} FROM schedules WHERE ns = :ns AND id = :id {lock}", row=ScheduleRow)
# Write back what a caller can change of a schedule.
SAVE = BulkUpdate(
    SCHEDULES,
    ScheduleRow,
    sets=("expression", "timezone", "enabled", "next_at", "end_at", "updated_at", "metadata", "payload"),
    keys=("ns", "id"),
)
# Delete a schedule.
DROP = statement("DELETE FROM schedules WHERE ns = :ns AND id = :id")

# The namespaces in which schedules are due.
DUE_NAMESPACES = statement(
    "SELECT DISTINCT {plain:ns} FROM schedules WHERE next_at <= :wall AND target {among:targets}", row=int
)
# When the next schedule of all namespaces is due.
NEXT = statement("SELECT min(next_at) FROM schedules WHERE next_at > 0 AND target {among:targets}", row=int)
# Some schedules that are due, those first that have waited longest.
DUE = statement(
    """
    SELECT {columns} FROM schedules
    WHERE {plain:ns} = :ns AND next_at <= :wall AND target {among:targets} ORDER BY next_at LIMIT :n
    """,
    row=ScheduleRow,
)
# Lock those of some schedules that no other process is firing.
CLAIM = statement(
    """
    SELECT {columns} FROM schedules
    WHERE ns = :ns AND id {among:ids} ORDER BY id {skip}
    """,
    row=ScheduleRow,
)
# Write back schedules that have fired.
MOVE = BulkUpdate(
    SCHEDULES,
    ScheduleRow,
    sets=("next_at", "fired_at", "fired", "refused", "started_id", "error"),
    keys=("ns", "id"),
)

# Add firings.
ADD_FIRINGS = BulkInsert(FIRINGS, FiringRow)
# A page of the firings of a schedule, the newest first.
LIST_FIRINGS = statement(
    """
    SELECT {columns} FROM firings WHERE ns = :ns AND schedule_id = :id
    ORDER BY due_at DESC LIMIT :limit OFFSET :offset
    """,
    row=FiringRow,
)
# Delete all but the latest firings of a schedule.
TRIM_FIRINGS = statement(
    """
    DELETE FROM firings WHERE ns = :ns AND schedule_id = :id AND due_at <
      (SELECT due_at FROM firings WHERE ns = :ns AND schedule_id = :id
       ORDER BY due_at DESC LIMIT 1 OFFSET :last)
    """
)
# Delete the firings of a schedule.
DROP_FIRINGS = statement("DELETE FROM firings WHERE ns = :ns AND schedule_id = :id")

FIELDS = {
    "schedule_id": Field("id", "text"),
    "assistant_id": Field("assistant_id", "text", null=True),
    "thread_id": Field("thread_id", "text", null=True),
    "enabled": Field("enabled", "int"),
    "next_at": Field("next_at", "time", null=True),
    "end_time": Field("end_at", "time", null=True),
    "created_at": Field("created_at", "time"),
    "updated_at": Field("updated_at", "time"),
}
# The schedules of a namespace.
LIST = Listing("{columns}", "schedules WHERE ns = :ns", ScheduleRow)

name_statements(globals())
