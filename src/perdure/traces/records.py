"""Records of traces and their pages."""

from __future__ import annotations

from perdure.kernel.pages import Part
from perdure.kernel.record import Record
from perdure.spans.rollout_figures import _reward, dollars
from perdure.spans.rows import TraceRow


class Trace(Record, kw_only=True):
    """A trace, with the sums of its spans. Its name, service and rollout come from its first span."""

    trace_id: str
    name: str
    service: str
    rollout_id: str
    session_id: str | None = None
    """The conversation that it belongs to, such as the thread of a run."""
    start_time: float
    end_time: float
    spans: int
    errors: int
    """Number of failed spans."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    """In US dollars, by the price table; null if no price is known."""
    reward: float | None = None
    """The last reward of Agent-lightning."""


class TracePage(Part[Trace], kw_only=True):
    """Traces, the newest first."""

    # `searched` is a further field on the wire.
    searched: int | None = None
    """Number of traces that a filter by attributes has searched. More matches may follow: see `next`."""


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
