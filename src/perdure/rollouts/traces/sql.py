"""The SQL of traces and figures, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.kernel.storage.filters import Listing
from perdure.rollouts import rows
from perdure.rollouts.tables import ROLLOUT_FIGURES, TRACE_NAMES, TRACES, USAGE_ADDED
from perdure.rollouts.traces.outline import SpanOutlineRow, TraceName

# Add to the figures of rollouts; the reward with the highest number counts.
ADD_ROLLOUT_FIGURES = BulkInsert(
    ROLLOUT_FIGURES,
    rows.RolloutFiguresRow,
    folds=False,
    on_conflict="""
    UPDATE SET input_tokens = rollout_figures.input_tokens + excluded.input_tokens,
      output_tokens = rollout_figures.output_tokens + excluded.output_tokens,
      reward = CASE WHEN excluded.reward_at >= rollout_figures.reward_at AND excluded.reward IS NOT NULL
        THEN excluded.reward ELSE rollout_figures.reward END,
      reward_at = {larger:rollout_figures.reward_at,excluded.reward_at},
      cached_tokens = rollout_figures.cached_tokens + excluded.cached_tokens,
      cost = rollout_figures.cost + excluded.cost
    """,
)
# Add to traces; a span without a parent, or else the earliest, gives a trace its name.
ADD_TRACES = BulkInsert(
    TRACES,
    rows.TraceRow,
    folds=False,
    on_conflict="""
    UPDATE SET
      end_ns = {larger:traces.end_ns,excluded.end_ns},
      spans = traces.spans + excluded.spans,
      errors = traces.errors + excluded.errors,
      input_tokens = traces.input_tokens + excluded.input_tokens,
      output_tokens = traces.output_tokens + excluded.output_tokens,
      reward = CASE WHEN excluded.reward_at >= traces.reward_at AND excluded.reward IS NOT NULL
        THEN excluded.reward ELSE traces.reward END,
      reward_at = {larger:traces.reward_at,excluded.reward_at},
      cached_tokens = traces.cached_tokens + excluded.cached_tokens,
      cost = traces.cost + excluded.cost
    """,
)
# The columns of indexes, which the first spans of a trace mostly settle.
ADD_TRACES.sets_seldom(
    """
      name = CASE WHEN excluded.rooted > traces.rooted
        OR (excluded.rooted = traces.rooted AND excluded.start_ns < traces.start_ns)
        THEN excluded.name ELSE traces.name END,
      service = CASE WHEN excluded.rooted > traces.rooted
        OR (excluded.rooted = traces.rooted AND excluded.start_ns < traces.start_ns)
        THEN excluded.service ELSE traces.service END,
      rollout_id = CASE WHEN excluded.rooted > traces.rooted
        OR (excluded.rooted = traces.rooted AND excluded.start_ns < traces.start_ns)
        THEN excluded.rollout_id ELSE traces.rollout_id END,
      rooted = {larger:traces.rooted,excluded.rooted},
      session_id = coalesce(traces.session_id, excluded.session_id),
      start_ns = CASE WHEN excluded.start_ns < traces.start_ns
        THEN excluded.start_ns ELSE traces.start_ns END
    """,
    when="excluded.rooted > traces.rooted OR excluded.start_ns < traces.start_ns"
    " OR (traces.session_id IS NULL AND excluded.session_id IS NOT NULL)",
)
# The names of spans in traces, which may be stored already.
ADD_TRACE_NAMES = BulkInsert(TRACE_NAMES, rows.TraceNameRow, on_conflict="NOTHING", folds=False)
# Add to what is to be added to the hours.
ADD_USAGE = BulkInsert(
    USAGE_ADDED,
    rows.UsageRow,
    folds=False,
    on_conflict="""
    UPDATE SET steps = usage_added.steps + excluded.steps,
      errors = usage_added.errors + excluded.errors,
      micros = usage_added.micros + excluded.micros,
      input_tokens = usage_added.input_tokens + excluded.input_tokens,
      output_tokens = usage_added.output_tokens + excluded.output_tokens,
      cached_tokens = usage_added.cached_tokens + excluded.cached_tokens,
      cost = usage_added.cost + excluded.cost
    """,
)
# The figures of rollouts.
GET_FIGURES = statement(
    "SELECT {columns} FROM rollout_figures WHERE ns = :ns AND rollout_id {among:ids}",
    row=rows.RolloutFiguresRow,
)
# A trace by its id.
GET_TRACE = statement(
    "SELECT {columns} FROM traces WHERE ns = :ns AND trace_id = :trace_id", row=rows.TraceRow
)
# Traces whose ids begin alike.
BEGINNING_TRACES = statement(
    "SELECT {columns} FROM traces WHERE ns = :ns AND trace_id >= :first AND trace_id < :last LIMIT 2",
    row=rows.TraceRow,
)
# Traces by their ids.
GET_TRACES = statement(
    "SELECT {columns} FROM traces WHERE ns = :ns AND trace_id {among:ids}", row=rows.TraceRow
)
# Places of traces from one on, the newest first.
LIST_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND start_ns >= :since AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=rows.TracePlace,
)
# The same of the traces of a service.
LIST_SERVICE_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND service = :service AND start_ns >= :since
      AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=rows.TracePlace,
)
# The same of the traces of a session.
LIST_SESSION_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND session_id IS NOT NULL AND session_id = :session_id AND start_ns >= :since
      AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=rows.TracePlace,
)
# The same of the traces with errors.
LIST_FAILED_TRACES = statement(
    """
    SELECT {columns} FROM traces
    WHERE ns = :ns AND errors > 0 AND start_ns >= :since AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=rows.TracePlace,
)
# The same of the traces in which a span has a name.
LIST_NAMED_TRACES = statement(
    """
    SELECT {columns} FROM trace_names
    WHERE ns = :ns AND name = :name AND start_ns >= :since AND (start_ns, trace_id) < (:start_ns, :trace_id)
    ORDER BY start_ns DESC, trace_id DESC LIMIT :n
    """,
    row=rows.TracePlace,
)
# The names that spans have, each once: the index is entered anew behind each.
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
# The names in some traces; what is not in the index of the key is not asked for.
NAMES_OF_TRACES = statement(
    """
    SELECT t.trace_id, t.name FROM {each:ids} CROSS JOIN trace_names AS t
    WHERE t.ns = :ns AND t.trace_id = ids.value
    """,
    row=TraceName,
)
# When spans with some names begin in some traces.
STARTS_OF_NAMES = statement(
    """
    SELECT t.trace_id, t.name, t.start_ns FROM {each:ids} CROSS JOIN {each:names} CROSS JOIN trace_names AS t
    WHERE t.ns = :ns AND t.trace_id = ids.value AND t.name = names.value
    """,
    row=rows.TraceNameRow,
)
# The spans of a trace.
LIST_TRACE_SPANS = Listing("{columns}", "spans WHERE ns = :ns AND trace_id = :trace_id", rows.SpanView)
# The same without their bodies.
OUTLINE_TRACE_SPANS = Listing("{columns}", "spans WHERE ns = :ns AND trace_id = :trace_id", SpanOutlineRow)

name_statements(globals())
