"""What new spans add to their rollouts and traces, in the transaction that stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from perdure.rollouts.rows import RolloutFiguresRow, TraceNameRow, TraceRow
from perdure.rollouts.traces.figures import Figures

if TYPE_CHECKING:
    from perdure.rollouts.operations.spans import NewSpan

MAX_NAME = 250
"""How many characters of a span's name are listed."""
NO_REWARD = -1


class Sums(NamedTuple):
    """The rows to add, in the order of their keys."""

    rollouts: list[RolloutFiguresRow]
    traces: list[TraceRow]
    names: list[TraceNameRow]


def sums_of(spans: Iterable[NewSpan], numbers: Mapping[int, int], now: int) -> Sums:
    """Add up spans, which have these sequence ids, by the ids of the objects; one without times is of now."""
    rollouts: dict[str, RolloutFiguresRow] = {}
    traces: dict[str, TraceRow] = {}
    names: dict[tuple[str, str], int] = {}
    for span in spans:
        trace_id, name = span.trace_id, span.name[:MAX_NAME]
        start = span.start_ns or span.end_ns or now * 1000
        trace = traces.get(trace_id)
        if trace is None:
            trace = traces[trace_id] = TraceRow(
                trace_id, start, start, 0, 0, 0, 0, 0, NO_REWARD, None, span.rollout_id, span.service, name
            )
        _add_span(trace, span, start, name)
        if start < names.get((trace_id, name), start + 1):
            names[trace_id, name] = start
        if span.figures is not None:
            rollout_id = span.rollout_id
            rollout = rollouts.get(rollout_id)
            if rollout is None:
                rollout = rollouts[rollout_id] = RolloutFiguresRow(rollout_id, 0, 0, NO_REWARD, None)
            _add_figures(rollout, span.figures, numbers[id(span)])
            _add_figures(trace, span.figures, numbers[id(span)])
    return Sums(
        [rollouts[key] for key in sorted(rollouts)],
        [traces[key] for key in sorted(traces)],
        [TraceNameRow(*key, names[key]) for key in sorted(names)],
    )


def _add_span(trace: TraceRow, span: NewSpan, start: int, name: str) -> None:
    """Add a span to its trace, by the rules of `ADD_TRACES`."""
    rooted = 1 if span.parent_id is None else 0
    if rooted > trace.rooted or (rooted == trace.rooted and start < trace.start_ns):
        trace.rooted = rooted
        trace.name, trace.service, trace.rollout_id = name, span.service, span.rollout_id
    if start < trace.start_ns:
        trace.start_ns = start
    trace.end_ns = max(trace.end_ns, start, span.end_ns or 0)
    trace.spans += 1
    if span.status_code == "ERROR":
        trace.errors += 1


def _add_figures(row: RolloutFiguresRow | TraceRow, figures: Figures, number: int) -> None:
    """Add what a span counts, by the rules of `ADD_ROLLOUT_FIGURES`; the reward of the last number stays."""
    row.input_tokens += figures.input_tokens
    row.output_tokens += figures.output_tokens
    if figures.reward is not None and number >= row.reward_at:
        row.reward_at, row.reward = number, repr(figures.reward)
