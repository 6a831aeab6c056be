"""SQL of spans that name no rollout: the attempts that they belong to, kept traces, and model calls."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.rollouts import rows
from perdure.rollouts.tables import ATTEMPTS, KEPT_TRACES, ROLLOUTS
from perdure.spans.rows import ModelCallRow
from perdure.spans.tables import MODEL_CALLS


class TraceRollout(NamedTuple):
    """A rollout that may have spans of a trace."""

    id: str
    kind: str
    trace_id: str | None


class TraceHome(NamedTuple):
    """A trace, the rollout of its first span, and how many spans it has."""

    trace_id: str
    rollout_id: str
    spans: int


class TraceMember(NamedTuple):
    """A rollout with spans of a trace."""

    trace_id: str
    rollout_id: str


class LastNumber(NamedTuple):
    """The last sequence id of a rollout's spans."""

    rollout_id: str
    sequence: int


class KeptTraceRow(msgspec.Struct):
    """Times and links of a kept trace, from its spans. `linked` has one rollout id per line."""

    rollout_id: str
    start_ns: int
    end_ns: int
    rooted: int
    linked: str | None


class SpanParent(NamedTuple):
    """A span and its parent."""

    span_id: str
    parent_id: str | None


# Rollouts by their ids.
ROLLOUTS_NAMED = statement(
    "SELECT {columns} FROM rollouts WHERE ns = :ns AND id {among:ids}", row=TraceRollout
)
# Rollouts whose callers started these traces, the newest first.
ROLLOUTS_OF_TRACES = statement(
    """
    SELECT {columns} FROM rollouts WHERE ns = :ns AND trace_id IS NOT NULL AND trace_id {among:trace_ids}
    ORDER BY start_time DESC LIMIT :n
    """,
    row=TraceRollout,
)
# Traces with the rollouts of their first spans.
HOMES_OF_TRACES = statement(
    "SELECT {columns} FROM traces WHERE ns = :ns AND trace_id {among:trace_ids}", row=TraceHome
)
# The rollouts that have spans of a trace.
MEMBERS_OF_TRACES = statement(
    "SELECT DISTINCT trace_id, rollout_id FROM spans WHERE ns = :ns AND trace_id {among:trace_ids}",
    row=TraceMember,
)
# The attempts of a rollout that have a span without a parent.
ROOTED_ATTEMPTS = statement(
    """
    SELECT DISTINCT attempt_id FROM spans
    WHERE ns = :ns AND born = :born AND rollout_id = :rollout_id AND parent_id IS NULL
    """,
    row=str,
)
# The last sequence ids of the spans of rollouts.
LAST_NUMBERS = statement(
    "SELECT {columns} FROM span_counters WHERE ns = :ns AND rollout_id {among:ids}", row=LastNumber
)
# Add rollouts of traces, except rollouts that another process has already added.
KEEP_ROLLOUTS = BulkInsert(ROLLOUTS, rows.NewRolloutRow, on_conflict="NOTHING")
# Add the attempts of kept traces.
KEEP_ATTEMPTS = BulkInsert(ATTEMPTS, rows.AttemptRow, on_conflict="NOTHING")
# Add kept traces. Merge the times and links of new spans into existing traces.
ADD_KEPT_TRACES = BulkInsert(
    KEPT_TRACES,
    KeptTraceRow,
    on_conflict="""
    UPDATE SET
      start_ns = CASE WHEN excluded.start_ns < kept_traces.start_ns
        THEN excluded.start_ns ELSE kept_traces.start_ns END,
      end_ns = {larger:kept_traces.end_ns,excluded.end_ns},
      rooted = {larger:kept_traces.rooted,excluded.rooted},
      linked = coalesce(kept_traces.linked, excluded.linked)
    """,
    folds=False,
)
# Kept traces by the ids of their rollouts.
GET_KEPT_TRACES = statement(
    "SELECT {columns} FROM kept_traces WHERE ns = :ns AND rollout_id {among:ids}", row=KeptTraceRow
)
# Note that spans of a framework join an attempt.
JOIN_ATTEMPT = statement(
    "UPDATE attempts SET joined = 1 WHERE ns = :ns AND rollout_id = :rollout_id AND id = :attempt_id"
)
# Add model calls, unless they are stored already.
ADD_MODEL_CALLS = BulkInsert(MODEL_CALLS, ModelCallRow, on_conflict="NOTHING")
# The model calls of an attempt that overlap a time.
CALLS_WITHIN = statement(
    """
    SELECT {columns} FROM model_calls
    WHERE ns = :ns AND rollout_id = :rollout_id AND attempt_id = :attempt_id
      AND end_ns >= :start_ns AND start_ns <= :end_ns
    ORDER BY end_ns DESC LIMIT :n
    """,
    row=ModelCallRow,
)
# The model calls of an attempt with these response ids.
CALLS_ANSWERED = statement(
    """
    SELECT {columns} FROM model_calls
    WHERE ns = :ns AND rollout_id = :rollout_id AND attempt_id = :attempt_id
      AND response_id {among:response_ids}
    """,
    row=ModelCallRow,
)
# The parents of spans of an attempt.
PARENTS_OF_SPANS = statement(
    """
    SELECT {columns} FROM spans
    WHERE ns = :ns AND born = :born AND rollout_id = :rollout_id AND attempt_id = :attempt_id
      AND span_id {among:span_ids}
    """,
    row=SpanParent,
)
# Delete kept traces by the ids of their rollouts.
DROP_KEPT_TRACES = statement("DELETE FROM kept_traces WHERE ns = :ns AND rollout_id {among:ids}")
# Delete the model calls of rollouts.
DROP_MODEL_CALLS = statement("DELETE FROM model_calls WHERE ns = :ns AND rollout_id {among:ids}")

name_statements(globals())
