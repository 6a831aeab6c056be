"""Sums over the runs of a thread."""

from __future__ import annotations

from typing import NamedTuple

from perdure.kernel.record import Record
from perdure.spans.rollout_figures import dollars


class ThreadTotals(NamedTuple):
    """The sums over the runs of a thread; costs are 10⁻⁹ dollars."""

    runs: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: int


class ThreadFigures(Record, kw_only=True):
    """Sums over the runs of a thread. Runs whose spans have no figures add nothing."""

    thread_id: str
    runs: int
    """Number of runs."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """The part of the input that the provider had cached."""
    cost: float | None
    """In US dollars by the price table; none if no price is known."""


def thread_figures(thread_id: str, totals: ThreadTotals) -> ThreadFigures:
    return ThreadFigures(
        thread_id=thread_id,
        runs=totals.runs,
        input_tokens=totals.input_tokens,
        output_tokens=totals.output_tokens,
        cached_tokens=totals.cached_tokens,
        cost=dollars(totals.cost),
    )
