"""The SQL of deleting rollouts and spans."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.storage.dialect import name_statements, statement


class OldRollout(NamedTuple):
    """A rollout that has ended, and when it began."""

    id: str
    start_time: int


class SpanCursor(NamedTuple):
    """Where the spans of a rollout begin."""

    born: int
    rollout_id: str


class DroppedSpan(NamedTuple):
    """A span that is deleted."""

    attempt_id: str
    span_id: str
    trace_id: str
    status_code: str
    size: int


# Rollouts of a kind and a status that ended before a time, from a place on, those first that began first.
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
# Those of the rollouts that ended before a time, that nobody executes any more and that hold no line.
UNUSED = statement(_UNUSED, row=OldRollout)
# The same, locked.
LOCK_UNUSED = statement(_UNUSED + " {lock}", row=OldRollout)
# Whether a part of these things is executed, holds a line, or has ended since a time.
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
# Some parts of a thing.
CHILDREN_OF = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND parent = :parent ORDER BY start_time, id LIMIT :n", row=str
)
# Some rollouts of a line.
IN_LINE = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND line = :line ORDER BY position DESC LIMIT :n", row=str
)
# The next rollout with spans that began before a time, after a place.
NEXT_WITH_SPANS = statement(
    """
    SELECT {columns} FROM spans
    WHERE ns = :ns AND born < :before AND (born, rollout_id) > (:born, :rollout_id)
    ORDER BY born, rollout_id LIMIT 1
    """,
    row=SpanCursor,
)
_SPANS_OF = "FROM spans WHERE ns = :ns AND born = :born AND rollout_id = :rollout_id"
# How many spans a rollout has.
COUNT_SPANS_OF = statement("SELECT count(*) " + _SPANS_OF, row=int)
# The first spans of a rollout, in the order of their keys.
FIRST_SPANS = statement(
    "SELECT {columns} " + _SPANS_OF + " ORDER BY attempt_id, span_id LIMIT :n", row=DroppedSpan
)
# Delete the spans of a rollout up to one.
DROP_SPANS_UNTIL = statement("DELETE " + _SPANS_OF + " AND (attempt_id, span_id) <= (:attempt_id, :span_id)")
# Take deleted spans from the counter of a rollout, which remembers that there were some.
UNCOUNT_SPANS = statement(
    """
    UPDATE span_counters SET spans = spans - :spans, bytes = bytes - :bytes, evicted = 1
    WHERE ns = :ns AND rollout_id = :rollout_id
    """
)
# Take deleted spans from a trace.
UNCOUNT_TRACE = statement(
    """
    UPDATE traces SET spans = spans - :spans, errors = errors - :errors
    WHERE ns = :ns AND trace_id = :trace_id
    """
)
# Delete those of the traces that have no spans any more.
DROP_EMPTY_TRACES = statement(
    """
    DELETE FROM traces WHERE ns = :ns AND trace_id {among:ids}
      AND NOT EXISTS (SELECT 1 FROM spans AS s WHERE s.ns = :ns AND s.trace_id = traces.trace_id)
    """
)
# Delete the names of such traces.
DROP_EMPTY_NAMES = statement(
    """
    DELETE FROM trace_names WHERE ns = :ns AND trace_id {among:ids}
      AND NOT EXISTS (SELECT 1 FROM spans AS s WHERE s.ns = :ns AND s.trace_id = trace_names.trace_id)
    """
)
# Let those of the traces that were a rollout's be another's, of which they still have spans.
PASS_TRACES_ON = statement(
    """
    UPDATE traces SET rollout_id = coalesce((SELECT s.rollout_id FROM spans AS s
      WHERE s.ns = :ns AND s.trace_id = traces.trace_id AND s.rollout_id <> traces.rollout_id LIMIT 1),
      rollout_id)
    WHERE ns = :ns AND trace_id {among:ids} AND rollout_id {among:rollout_ids}
    """
)
# Delete lines that nobody holds and that nothing is in.
DROP_FREE_LINES = statement(
    """
    DELETE FROM lines WHERE ns = :ns AND line {among:names} AND holder IS NULL
      AND NOT EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = :ns AND r.line = lines.line)
    """
)
# Delete the counters of rollouts' spans.
DROP_COUNTERS = statement("DELETE FROM span_counters WHERE ns = :ns AND rollout_id {among:ids}")
# Delete the figures of rollouts.
DROP_FIGURES = statement("DELETE FROM rollout_figures WHERE ns = :ns AND rollout_id {among:ids}")

name_statements(globals())
