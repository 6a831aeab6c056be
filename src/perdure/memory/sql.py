"""The SQL of memory, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.memory.model import (
    CitedRow,
    CounterRow,
    EventRow,
    HitRow,
    NewEventRow,
    PlaceRow,
    TextRow,
)
from perdure.memory.tables import COUNTERS, EVENTS, TEXTS

# --- events -----------------------------------------------------------------------------------------------

# Add events; one whose id is known stays as it is.
ADD_EVENTS = BulkInsert(EVENTS, NewEventRow, on_conflict="NOTHING")
# Add documents, or replace them: what was indexed of an older one goes.
ADD_TEXTS = BulkInsert(
    TEXTS,
    TextRow,
    on_conflict="UPDATE SET timestamp_ms = excluded.timestamp_ms, agent = excluded.agent,"
    " place = excluded.place, tags = excluded.tags, body = excluded.body",
)
_EVENT = "e.id, e.session_id, e.timestamp_ms, e.type, e.role, e.agent, e.tokens, e.metadata, t.body"
_WITH_TEXT = " FROM memory_events AS e JOIN memory_texts AS t ON t.ns = e.ns AND t.id = e.id"
# The events of a stretch of time after a place, in their order.
EVENTS_BETWEEN = statement(
    "SELECT "
    + _EVENT
    + _WITH_TEXT
    + """
    WHERE e.ns = :ns AND e.timestamp_ms >= :low AND e.timestamp_ms <= :high
      AND (e.timestamp_ms, e.id) > (:after_ms, :after_id)
    ORDER BY e.timestamp_ms, e.id LIMIT :limit
    """,
    row=EventRow,
)
# The same of one session.
SESSION_BETWEEN = statement(
    "SELECT "
    + _EVENT
    + _WITH_TEXT
    + """
    WHERE e.ns = :ns AND e.session_id = :session_id AND e.timestamp_ms >= :low AND e.timestamp_ms <= :high
      AND (e.timestamp_ms, e.id) > (:after_ms, :after_id)
    ORDER BY e.timestamp_ms, e.id LIMIT :limit
    """,
    row=EventRow,
)
# Events by their ids.
GET_EVENTS = statement(
    "SELECT " + _EVENT + _WITH_TEXT + " WHERE e.ns = :ns AND e.id {among:ids}", row=EventRow
)
# Where events stand.
CITED = statement("SELECT {columns} FROM memory_events WHERE ns = :ns AND id {among:ids}", row=CitedRow)

# --- the index --------------------------------------------------------------------------------------------

# Some documents that are not indexed yet.
PENDING = statement(
    "SELECT id FROM memory_texts WHERE ns = :ns AND place IS NULL ORDER BY id LIMIT :limit", row=str
)
# Give documents their places, which indexes them.
PLACE = BulkUpdate(TEXTS, PlaceRow, sets=("place",), keys=("ns", "id"), guards=("place",))
# The counters of a namespace, locked.
LOCK_COUNTER = statement("SELECT {columns} FROM memory_counters WHERE ns = :ns {lock}", row=CounterRow)
# The counters of a namespace.
GET_COUNTER = statement("SELECT {columns} FROM memory_counters WHERE ns = :ns", row=CounterRow)
# Begin to count in a namespace.
ADD_COUNTER = BulkInsert(COUNTERS, CounterRow, on_conflict="NOTHING")
# Write back the counters of a namespace.
COUNT = BulkUpdate(COUNTERS, CounterRow, sets=("placed", "documents", "embedded"), keys=("ns",))

# --- search -----------------------------------------------------------------------------------------------

_HIT = "t.id, t.kind, t.timestamp_ms, t.agent, t.place, t.body, f.score"
# The documents that match a query best.
SEARCH = statement(
    "SELECT "
    + _HIT
    + """
    FROM (SELECT place, score FROM {ranked:memory_texts,memory_words} AS r
          ORDER BY score DESC, place DESC LIMIT :limit) AS f
    JOIN memory_texts AS t ON t.place = f.place
    WHERE t.ns = :ns ORDER BY f.score DESC, f.place DESC
    """,
    row=HitRow,
)
# The documents of a stretch of time that match a query best.
SEARCH_BETWEEN = statement(
    "SELECT "
    + _HIT
    + """
    FROM {ranked:memory_texts,memory_words} AS f JOIN memory_texts AS t ON t.place = f.place
    WHERE t.ns = :ns AND t.timestamp_ms >= :since AND t.timestamp_ms <= :until
    ORDER BY f.score DESC, f.place DESC LIMIT :limit
    """,
    row=HitRow,
)

name_statements(globals())
