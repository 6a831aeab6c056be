"""SQL of traces and figures, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import name_statements, statement
from perdure.kernel.storage.filters import Listing
from perdure.spans.rows import SpanRecordRow, TraceCursor, TraceNameRow, TraceRow
from perdure.traces.outline import SpanOutlineRow, TraceName

# A trace by its id.
GET_TRACE = statement("SELECT {columns} FROM traces WHERE ns = :ns AND trace_id = :trace_id", row=TraceRow)
# Up to 2 traces whose ids begin with a text.
BEGINNING_TRACES = statement(
    "SELECT {columns} FROM traces WHERE ns = :ns AND trace_id >= :first AND trace_id < :last LIMIT 2",
    row=TraceRow,
)
# Traces by their ids.
GET_TRACES = statement("SELECT {columns} FROM traces WHERE ns = :ns AND trace_id {among:ids}", row=TraceRow)
# Positions of traces after a cursor, the newest first.
LIST_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND start_ns >= :since AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=TraceCursor,
)
# Positions of the traces of a service.
LIST_SERVICE_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND service = :service AND start_ns >= :since
      AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=TraceCursor,
)
# Positions of the traces of a session.
LIST_SESSION_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND session_id IS NOT NULL AND session_id = :session_id AND start_ns >= :since
      AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=TraceCursor,
)
# Positions of the traces with errors.
LIST_FAILED_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND errors > 0 AND start_ns >= :since AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=TraceCursor,
)
# Positions of the traces with a span of a name.
LIST_NAMED_TRACES = statement(
    """
    SELECT {columns} FROM trace_names
    WHERE ns = :ns AND name = :name AND start_ns >= :since AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=TraceCursor,
)
# The distinct names of spans: each step searches the index for the next name.
LIST_NAMES = statement(
    """
    WITH RECURSIVE names (name) AS (
      SELECT min(name) FROM trace_names WHERE ns = :ns
      UNION ALL
      SELECT (SELECT min(t.name) FROM trace_names AS t WHERE t.ns = :ns AND t.name > names.name)
      FROM names WHERE names.name IS NOT NULL
    )
    SELECT name FROM names WHERE name IS NOT NULL LIMIT :n
    """,
    row=str,
)
# The names in some traces; reads only the index of the key.
NAMES_OF_TRACES = statement(
    """
    SELECT t.trace_id, t.name FROM {each:ids} CROSS JOIN trace_names AS t
    WHERE t.ns = :ns AND t.trace_id = ids.value
    """,
    row=TraceName,
)
# The starts of spans with these names in some traces.
STARTS_OF_NAMES = statement(
    """
    SELECT t.trace_id, t.name, t.start_ns FROM {each:ids} CROSS JOIN {each:names} CROSS JOIN trace_names AS t
    WHERE t.ns = :ns AND t.trace_id = ids.value AND t.name = names.value
    """,
    row=TraceNameRow,
)
# The spans of a trace.
LIST_TRACE_SPANS = Listing("{columns}", "spans WHERE ns = :ns AND trace_id = :trace_id", SpanRecordRow)
# Some spans of a trace.
GET_TRACE_SPANS = statement(
    "SELECT {columns} FROM spans WHERE ns = :ns AND trace_id = :trace_id AND span_id {among:span_ids}",
    row=SpanRecordRow,
)
# The spans of a trace without their bodies.
OUTLINE_TRACE_SPANS = Listing("{columns}", "spans WHERE ns = :ns AND trace_id = :trace_id", SpanOutlineRow)

name_statements(globals())
