"""The SQL of the schedules room, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.kernel.storage.filters import Field, Listing
from perdure.schedules.tables import FIRINGS, SCHEDULES

VIEW = (
    "id, target, expression, timezone, enabled, next_at, end_at, assistant_id, thread_id, user_id,"
    " created_at, updated_at, fired_at, fired, refused, started_id, error, metadata, payload"
)
FIRING_VIEW = "schedule_id, due_at, fired_at, started_id, error"

ADD = BulkInsert(SCHEDULES)
GET = statement("SELECT " + VIEW + " FROM schedules WHERE ns = :ns AND id {among:ids}")
LOCK = statement("SELECT " + VIEW + " FROM schedules WHERE ns = :ns AND id = :id {lock}")
SAVE = BulkUpdate(
    SCHEDULES,
    sets=("expression", "timezone", "enabled", "next_at", "end_at", "updated_at", "metadata", "payload"),
    keys=("ns", "id"),
)
DROP = statement("DELETE FROM schedules WHERE ns = :ns AND id = :id")

DUE_NAMESPACES = statement(
    "SELECT DISTINCT {plain:ns} FROM schedules WHERE next_at <= :now AND target {among:targets}"
)
NEXT = statement("SELECT min(next_at) FROM schedules WHERE next_at > 0 AND target {among:targets}")
DUE = statement(
    """
    SELECT id, next_at FROM schedules
    WHERE {plain:ns} = :ns AND next_at <= :now AND target {among:targets} ORDER BY next_at LIMIT :n
    """
)
CLAIM = statement(
    "SELECT " + VIEW + " FROM schedules WHERE {plain:ns} = :ns AND next_at <= :now AND target {among:targets}"
    " ORDER BY next_at LIMIT :n {skip}"
)
CLAIM_ONE = statement(
    "SELECT " + VIEW + " FROM schedules WHERE ns = :ns AND id = :id AND next_at = :due_at {skip}"
)
MOVE = BulkUpdate(
    SCHEDULES,
    sets=("next_at", "fired_at", "fired", "refused", "started_id", "error"),
    keys=("ns", "id"),
)

ADD_FIRINGS = BulkInsert(FIRINGS)
LIST_FIRINGS = statement(
    "SELECT " + FIRING_VIEW + " FROM firings WHERE ns = :ns AND schedule_id = :id"
    " ORDER BY due_at DESC LIMIT :limit OFFSET :offset"
)
TRIM_FIRINGS = statement(
    """
    DELETE FROM firings WHERE ns = :ns AND schedule_id = :id AND due_at <
      (SELECT due_at FROM firings WHERE ns = :ns AND schedule_id = :id
       ORDER BY due_at DESC LIMIT 1 OFFSET :last)
    """
)
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
LIST = Listing(VIEW, SCHEDULES.name + " WHERE ns = :ns")

name_statements(globals())
