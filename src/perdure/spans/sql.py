"""SQL that adds figures of spans to rollouts, traces and hours, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, name_statements, statement
from perdure.spans.rows import RolloutFiguresRow, TraceNameRow, TraceRow, UsageRow
from perdure.spans.tables import ROLLOUT_FIGURES, TRACE_NAMES, TRACES, USAGE_ADDED

# Add to the figures of rollouts; the reward of the span with the highest number is kept.
ADD_ROLLOUT_FIGURES = BulkInsert(
    ROLLOUT_FIGURES,
    RolloutFiguresRow,
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
# Add to traces; a span without a parent, otherwise the earliest span, gives a trace its name.
ADD_TRACES = BulkInsert(
    TRACES,
    TraceRow,
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
# Indexed columns of a trace; later spans rarely change these columns.
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
# Add the names of spans in traces, unless they are stored already.
ADD_TRACE_NAMES = BulkInsert(TRACE_NAMES, TraceNameRow, on_conflict="NOTHING", folds=False)
# Add to the usage that is not added to the hours yet.
ADD_USAGE = BulkInsert(
    USAGE_ADDED,
    UsageRow,
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
    row=RolloutFiguresRow,
)

name_statements(globals())
