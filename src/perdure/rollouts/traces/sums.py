"""What new spans add to their rollouts and traces, in the transaction that stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from perdure.kernel.clock import MICROS
from perdure.rollouts.rows import RolloutFiguresRow, TraceNameRow, TraceRow, UsageRow
from perdure.rollouts.traces.figures import Figures

if TYPE_CHECKING:
    from perdure.rollouts.operations.spans import NewSpan

MAX_NAME = 250
"""How many characters of a span's name are listed."""
NO_REWARD = -1
ERROR = "ERROR"
"""The status of a span that has failed, as OpenTelemetry has it."""
HOUR = 3600 * MICROS
OLDEST = 31 * 24 * HOUR
"""A span that began earlier counts as of now: its clock is wrong, or its hour is history."""


class Sums(NamedTuple):
    """The rows to add, in the order of their keys."""

    rollouts: list[RolloutFiguresRow]
    traces: list[TraceRow]
    names: list[TraceNameRow]
    usage: list[UsageRow]


def sums_of(spans: Iterable[NewSpan], numbers: Mapping[int, int], now: int) -> Sums:
    """Add up spans, which have these sequence ids, by the ids of the objects; one without times is of now."""
    rollouts: dict[str, RolloutFiguresRow] = {}
    traces: dict[str, TraceRow] = {}
    names: dict[tuple[str, str], int] = {}
    usage: dict[tuple[str, int, str, str, str, str], UsageRow] = {}
    hours = _Hours(now)
    for span in spans:
        trace_id, name = span.trace_id, span.name[:MAX_NAME]
        start = span.start_ns or span.end_ns or now * 1000
        trace = traces.get(trace_id)
        if trace is None:
            trace = traces[trace_id] = TraceRow(
                trace_id,
                start,
                start,
                0,
                0,
                0,
                0,
                0,
                NO_REWARD,
                None,
                span.rollout_id,
                span.service,
                name,
                0,
                0,
            )
        _add_span(trace, span, start, name)
        if start < names.get((trace_id, name), start + 1):
            names[trace_id, name] = start
        figures = span.figures
        if figures is None:
            continue
        rollout_id = span.rollout_id
        key = (rollout_id, hours.of(start), figures.kind, figures.model, figures.agent, figures.user_id)
        used = usage.get(key)
        if used is None:
            used = usage[key] = UsageRow(*key, 0, 0, 0, 0, 0, 0, 0)
        _add_usage(used, span, figures)
        if figures.counts:
            rollout = rollouts.get(rollout_id)
            if rollout is None:
                rollout = rollouts[rollout_id] = RolloutFiguresRow(rollout_id, 0, 0, NO_REWARD, None, 0, 0)
            _add_figures(rollout, figures, numbers[id(span)])
            _add_figures(trace, figures, numbers[id(span)])
    return Sums(
        [rollouts[key] for key in sorted(rollouts)],
        [traces[key] for key in sorted(traces)],
        [TraceNameRow(*key, names[key]) for key in sorted(names)],
        [usage[key] for key in sorted(usage)],
    )


class _Hours:
    """The hours of spans. One that begins before or after what is believable counts as of now."""

    def __init__(self, now: int) -> None:
        self._now = now // HOUR * HOUR
        self._low, self._high = (now - OLDEST) * 1000, (now + HOUR) * 1000

    def of(self, start_ns: int) -> int:
        if self._low < start_ns < self._high:
            return start_ns // (HOUR * 1000) * HOUR
        return self._now


def _add_usage(row: UsageRow, span: NewSpan, figures: Figures) -> None:
    """Add a span to what its kind of step took, by the rules of `ADD_USAGE`."""
    row.steps += 1
    if span.status_code == ERROR:
        row.errors += 1
    if span.start_ns and span.end_ns and span.end_ns > span.start_ns:
        row.micros += (span.end_ns - span.start_ns) // 1000
    row.input_tokens += figures.input_tokens
    row.output_tokens += figures.output_tokens
    row.cached_tokens += figures.cached_tokens
    row.cost += figures.cost or 0


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
    if span.status_code == ERROR:
        trace.errors += 1


def _add_figures(row: RolloutFiguresRow | TraceRow, figures: Figures, number: int) -> None:
    """Add what a span counts, by the rules of `ADD_ROLLOUT_FIGURES`; the reward of the last number stays."""
    row.input_tokens += figures.input_tokens
    row.output_tokens += figures.output_tokens
    row.cached_tokens += figures.cached_tokens
    row.cost += figures.cost or 0
    if figures.reward is not None and number >= row.reward_at:
        row.reward_at, row.reward = number, repr(figures.reward)
