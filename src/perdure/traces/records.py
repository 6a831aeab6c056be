"""Traces and figures as callers see them."""

from __future__ import annotations

from perdure.kernel.record import Record
from perdure.spans.rollout_figures import _reward, dollars
from perdure.spans.rows import TraceRow


class Trace(Record, kw_only=True):
    """A trace: what all its spans have in sum. Its name, service and rollout are those of its first span."""

    trace_id: str
    name: str
    service: str
    rollout_id: str
    session_id: str | None = None
    """The conversation that it is part of, such as the thread of a run."""
    start_time: float
    end_time: float
    spans: int
    errors: int
    """How many spans have failed."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In US dollars, by the price table; none if no price is known."""
    reward: float | None = None
    """The last reward of Agent-lightning."""


class TracePage(Record, kw_only=True):
    """Some traces, the newest first."""

    items: list[Trace]
    next: str | None = None
    """The cursor of the next page; none if there are no more traces."""
    searched: int | None = None
    """By attributes only: how many traces were looked through. There may be matches beyond: see `next`."""


def trace_from(row: TraceRow) -> Trace:
    return Trace(
        trace_id=row.trace_id,
        name=row.name,
        service=row.service,
        rollout_id=row.rollout_id,
        session_id=row.session_id,
        start_time=row.start_ns / 1e9,
        end_time=row.end_ns / 1e9,
        spans=row.spans,
        errors=row.errors,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        cached_tokens=row.cached_tokens,
        cost=dollars(row.cost),
        reward=_reward(row.reward),
    )
