"""Outlines of spans for lists, without their bodies."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.record import Record
from perdure.spans.figures import NANOS, SpanFigures
from perdure.spans.prices import Prices, Tokens
from perdure.spans.sums import ERROR


class SpanOutlineRow(NamedTuple):
    """The columns of a span that lists show."""

    rollout_id: str
    attempt_id: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int | None
    end_ns: int | None
    status_code: str
    sequence_id: int
    ordinal: int
    size: int


class TraceName(NamedTuple):
    """A name of spans in a trace."""

    trace_id: str
    name: str


class SpanOutline(Record, kw_only=True):
    """A span in a list, without its body."""

    span_id: str
    parent_id: str | None
    name: str
    rollout_id: str
    attempt_id: str
    start_time: float | None
    end_time: float | None
    failed: bool


class SpanStep(Record, kw_only=True):
    """Figures of a span: the kind of step, and the usage of a model call. Costs are US dollars."""

    span_id: str
    kind: str
    model: str
    """The model of a call; if the span has none, the model of the nearest span above it."""
    agent: str = ""
    """The agent, or that of the nearest span above it."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    reward: float | None


class SpanSteps(Record, kw_only=True):
    """The steps among a page of a trace's spans; `total` is the number of its spans."""

    items: list[SpanStep]
    total: int


def step_from(span_id: str, figures: SpanFigures, prices: Prices, model: str, agent: str) -> SpanStep:
    tokens = Tokens(figures.input_tokens, figures.output_tokens, figures.cached_tokens)
    cost = prices.cost(figures.step.model, tokens) if figures.cost is None else figures.cost
    return SpanStep(
        span_id=span_id,
        kind=figures.step.kind,
        model=model,
        agent=agent,
        input_tokens=figures.input_tokens,
        output_tokens=figures.output_tokens,
        cached_tokens=figures.cached_tokens,
        cost=None if cost is None else cost / NANOS,
        reward=figures.reward,
    )


def outline_from(row: SpanOutlineRow) -> SpanOutline:
    return SpanOutline(
        span_id=row.span_id,
        parent_id=row.parent_id,
        name=row.name,
        rollout_id=row.rollout_id,
        attempt_id=row.attempt_id,
        start_time=None if row.start_ns is None else row.start_ns / 1e9,
        end_time=None if row.end_ns is None else row.end_ns / 1e9,
        failed=row.status_code == ERROR,
    )
