"""SQL that deletes rollouts and spans."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import name_statements, statement


class OldRollout(NamedTuple):
    """A rollout that has ended, and its start time."""

    id: str
    start_time: int


class SpanCursor(NamedTuple):
    """Position in the spans: a rollout and its start."""

    born: int
    rollout_id: str


class DroppedSpan(NamedTuple):
    """A span to delete."""

    attempt_id: str
    span_id: str
    trace_id: str
    status_code: str
    size: int


# Rollouts of a kind and a status that ended before a time, after a cursor, in the order of their start.
OLD_ROLLOUTS = statement(
    """
    SELECT {columns} FROM rollouts
    WHERE ns = :ns AND kind = :kind AND status = :status
      AND start_time >= :start_time AND start_time < :before
      AND (start_time, {plain:id}) > (:start_time, :id) AND end_time < :before
    ORDER BY start_time, id LIMIT :n
    """,
    row=OldRollout,
)
_UNUSED = """
    SELECT {columns:r} FROM rollouts AS r
    WHERE r.ns = :ns AND r.id {among:ids} AND {plain:r.status} {among:ended} AND r.end_time < :before
      AND NOT EXISTS (SELECT 1 FROM attempts AS a
        WHERE a.ns = r.ns AND a.rollout_id = r.id AND a.status {among:live})
      AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.ns = r.ns AND l.line = r.line AND l.holder = r.id)
    ORDER BY r.id
    """
# The given rollouts that ended before a time, have no live attempt and hold no line.
UNUSED = statement(_UNUSED, row=OldRollout)
# The same rows, locked.
LOCK_UNUSED = statement(_UNUSED + " {lock}", row=OldRollout)
# Whether a child of these parents is not ended, executed, holds a line, or has ended since a time.
HAS_USED_CHILD = statement(
    """
    SELECT 1 FROM rollouts AS r
    WHERE r.ns = :ns AND r.parent {among:parents} AND (NOT r.status {among:ended} OR r.end_time >= :before
      OR EXISTS (SELECT 1 FROM attempts AS a
        WHERE a.ns = r.ns AND a.rollout_id = r.id AND a.status {among:live})
      OR EXISTS (SELECT 1 FROM lines AS l WHERE l.ns = r.ns AND l.line = r.line AND l.holder = r.id))
    LIMIT 1
    """,
    row=int,
)
# Some children of a parent.
CHILDREN_OF = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND parent = :parent ORDER BY start_time, id LIMIT :n", row=str
)
# Some rollouts of a line.
IN_LINE = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND line = :line ORDER BY position DESC LIMIT :n", row=str
)
# The next rollout with spans that started before a time, after a cursor.
NEXT_WITH_SPANS = statement(
    """
    SELECT {columns} FROM spans
    WHERE ns = :ns AND born < :before AND (born, rollout_id) > (:born, :rollout_id)
    ORDER BY born, rollout_id LIMIT 1
    """,
    row=SpanCursor,
)
_SPANS_OF = "FROM spans WHERE ns = :ns AND born = :born AND rollout_id = :rollout_id"
# Number of spans of a rollout.
COUNT_SPANS_OF = statement("SELECT count(*) " + _SPANS_OF, row=int)
# The first spans of a rollout, in the order of their keys.
FIRST_SPANS = statement(
    "SELECT {columns} " + _SPANS_OF + " ORDER BY attempt_id, span_id LIMIT :n", row=DroppedSpan
)
# Delete the spans of a rollout up to a key.
DROP_SPANS_UNTIL = statement("DELETE " + _SPANS_OF + " AND (attempt_id, span_id) <= (:attempt_id, :span_id)")
# Subtract deleted spans from the counter of a rollout, and mark it as evicted.
UNCOUNT_SPANS = statement(
    """
    UPDATE span_counters SET spans = spans - :spans, bytes = bytes - :bytes, evicted = 1
    WHERE ns = :ns AND rollout_id = :rollout_id
    """
)
# Subtract deleted spans from a trace.
UNCOUNT_TRACE = statement(
    """
    UPDATE traces SET spans = spans - :spans, errors = errors - :errors
    WHERE ns = :ns AND trace_id = :trace_id
    """
)
# Delete the given traces that have no spans any more.
DROP_EMPTY_TRACES = statement(
    """
    DELETE FROM traces WHERE ns = :ns AND trace_id {among:ids}
      AND NOT EXISTS (SELECT 1 FROM spans AS s WHERE s.ns = :ns AND s.trace_id = traces.trace_id)
    """
)
# Delete the names of the given traces that have no spans any more.
DROP_EMPTY_NAMES = statement(
    """
    DELETE FROM trace_names WHERE ns = :ns AND trace_id {among:ids}
      AND NOT EXISTS (SELECT 1 FROM spans AS s WHERE s.ns = :ns AND s.trace_id = trace_names.trace_id)
    """
)
# Move traces of the given rollouts to another rollout that still has spans of the trace.
PASS_TRACES_ON = statement(
    """
    UPDATE traces SET rollout_id = coalesce((SELECT s.rollout_id FROM spans AS s
      WHERE s.ns = :ns AND s.trace_id = traces.trace_id AND s.rollout_id <> traces.rollout_id LIMIT 1),
      rollout_id)
    WHERE ns = :ns AND trace_id {among:ids} AND rollout_id {among:rollout_ids}
    """
)
# Delete lines without a holder and without rollouts.
DROP_FREE_LINES = statement(
    """
    DELETE FROM lines WHERE ns = :ns AND line {among:names} AND holder IS NULL
      AND NOT EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = :ns AND r.line = lines.line)
    """
)
# Delete the span counters of rollouts.
DROP_COUNTERS = statement("DELETE FROM span_counters WHERE ns = :ns AND rollout_id {among:ids}")
# Delete the figures of rollouts.
DROP_FIGURES = statement("DELETE FROM rollout_figures WHERE ns = :ns AND rollout_id {among:ids}")

name_statements(globals())
