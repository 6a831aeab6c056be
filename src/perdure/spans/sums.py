"""Sums of new spans for their rollouts, traces and hours, in the transaction that stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from perdure.kernel.clock import MICROS
from perdure.spans.figures import SpanFigures, UsageStep
from perdure.spans.prices import Prices, Tokens
from perdure.spans.rows import RolloutFiguresRow, TraceNameRow, TraceRow, UsageRow

if TYPE_CHECKING:
    from perdure.spans.rows import NewSpan

MAX_NAME = 250
"""Maximum length of a span's name in lists, in characters."""
NO_REWARD = -1
ERROR = "ERROR"
"""Status of a failed span, in OpenTelemetry's words."""
HOUR = 3600 * MICROS
OLDEST = 31 * 24 * HOUR
"""Age limit of a span's start. An older span counts as of now: its clock is wrong, or its hour is too old."""

LAST = 2**63
"""Upper bound of times in nanoseconds."""

_Key = tuple[str, str, int, UsageStep]
"""Trace, rollout, hour and step: key of the sums."""


class _Used:
    """Usage of the spans of one key. Reported costs are kept separate from tokens with a price."""

    __slots__ = ("cached", "cost", "errors", "input", "micros", "output", "reported", "steps")

    def __init__(self) -> None:
        self.steps = self.errors = self.micros = self.input = self.output = self.cached = self.cost = 0
        self.reported = Tokens(0, 0, 0)

    def add_reported(self, figures: SpanFigures, cost: int) -> None:
        """Add a call that reports its cost."""
        reported = self.reported
        self.cost += cost
        self.reported = Tokens(
            reported.input + figures.input_tokens,
            reported.output + figures.output_tokens,
            reported.cached + figures.cached_tokens,
        )


class SpanSums(NamedTuple):
    """The rows to add, in the order of their keys."""

    rollouts: list[RolloutFiguresRow]
    traces: list[TraceRow]
    names: list[TraceNameRow]
    usage: list[UsageRow]


def compute_sums(spans: Iterable[NewSpan], numbers: Mapping[int, int], now: int, prices: Prices) -> SpanSums:
    """Add up spans. `numbers` has sequence ids by id of the span object; a span without times is of now."""
    rollouts: dict[str, RolloutFiguresRow] = {}
    traces: dict[str, TraceRow] = {}
    names: dict[tuple[str, str], int] = {}
    steps: dict[_Key, _Used] = {}
    hours = _Hours(now)
    for span in spans:
        trace_id, name = span.trace_id, span.name[:MAX_NAME]
        start = span.start_ns or span.end_ns or now * 1000
        trace = traces.get(trace_id)
        if trace is None:
            service = span.service
            trace = traces[trace_id] = TraceRow(
                *(trace_id, start, start, 0, 0, 0, 0, 0, NO_REWARD, None),
                *(span.rollout_id, service, name, 0, 0, None),
            )
        _add_span(trace, span, start, name)
        if span.session and trace.session_id is None:
            trace.session_id = span.session
        if start < names.get((trace_id, name), start + 1):
            names[trace_id, name] = start
        figures = span.figures
        if figures is None:
            continue
        hour = hours.hour if hours.begins <= start < hours.ends else hours.of(start)
        key = (trace_id, span.rollout_id, hour, figures.step)
        used = steps.get(key)
        if used is None:
            used = steps[key] = _Used()
        _add_step(used, span, figures)
        if figures.reward is not None:
            for owner in (_get_figures(rollouts, span.rollout_id), trace):
                _add_reward(owner, figures.reward, numbers[id(span)])
    usage: dict[tuple[str, int, UsageStep], UsageRow] = {}
    for (trace_id, rollout_id, hour, step), used in steps.items():
        row = _build_usage(rollout_id, hour, step, used, prices)
        if row.input_tokens or row.output_tokens or row.cost:
            _add_figures(_get_figures(rollouts, rollout_id), row)
            _add_figures(traces[trace_id], row)
        _add_row(usage, (rollout_id, hour, step), row)
    return SpanSums(
        [rollouts[key] for key in sorted(rollouts)],
        [traces[key] for key in sorted(traces)],
        [TraceNameRow(*key, names[key]) for key in sorted(names)],
        sorted(usage.values(), key=_get_key),
    )


def _get_figures(rollouts: dict[str, RolloutFiguresRow], rollout_id: str) -> RolloutFiguresRow:
    row = rollouts.get(rollout_id)
    if row is None:
        row = rollouts[rollout_id] = RolloutFiguresRow(rollout_id, 0, 0, NO_REWARD, None, 0, 0)
    return row


def _add_row(
    usage: dict[tuple[str, int, UsageStep], UsageRow], key: tuple[str, int, UsageStep], row: UsageRow
) -> None:
    """Add the usage of a rollout in one trace to its usage in all traces."""
    total = usage.setdefault(key, row)
    if total is not row:
        total.add(row)


class _Hours:
    """The hours of spans. A start too far in the past or the future counts as of now."""

    def __init__(self, now: int) -> None:
        self._now = now // HOUR * HOUR
        self._low, self._high = (now - OLDEST) * 1000, (now + HOUR) * 1000
        self.hour = self.begins = self.ends = 0
        """Hour of the last span, and its bounds in nanoseconds: most spans have the same hour."""

    def of(self, start_ns: int) -> int:
        if start_ns <= self._low:
            self.hour, self.begins, self.ends = self._now, 0, self._low + 1
        elif start_ns >= self._high:
            self.hour, self.begins, self.ends = self._now, self._high, LAST
        else:
            self.hour = start_ns // (HOUR * 1000) * HOUR
            # The limits of plausible times may lie within the hour.
            self.begins = max(self.hour * 1000, self._low + 1)
            self.ends = min((self.hour + HOUR) * 1000, self._high)
        return self.hour


def _add_step(used: _Used, span: NewSpan, figures: SpanFigures) -> None:
    """Add a span. Every step passes here, so zeros are not added."""
    used.steps += 1
    if span.status_code == ERROR:
        used.errors += 1
    start, end = span.start_ns, span.end_ns
    if start and end and end > start:
        used.micros += (end - start) // 1000
    if figures.cost is not None:
        used.add_reported(figures, figures.cost)
    elif figures.input_tokens or figures.output_tokens:
        used.input += figures.input_tokens
        used.output += figures.output_tokens
        used.cached += figures.cached_tokens


def _build_usage(rollout_id: str, hour: int, step: UsageStep, used: _Used, prices: Prices) -> UsageRow:
    """Build the row of one kind of step."""
    unpriced, reported = Tokens(used.input, used.output, used.cached), used.reported
    return UsageRow(
        used.steps,
        used.errors,
        used.micros,
        unpriced.input + reported.input,
        unpriced.output + reported.output,
        unpriced.cached + reported.cached,
        (prices.cost(step.model, unpriced) or 0) + used.cost,
        rollout_id,
        hour,
        step.kind,
        step.model,
        step.agent,
        step.user_id,
    )


def _get_key(row: UsageRow) -> tuple[str, int, str, str, str, str]:
    return row.rollout_id, row.hour, row.kind, row.model, row.agent, row.user_id


def _add_span(trace: TraceRow, span: NewSpan, start: int, name: str) -> None:
    """Add a span to its trace, by the same rules as `ADD_TRACES`."""
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


def _add_figures(row: RolloutFiguresRow | TraceRow, used: UsageRow) -> None:
    """Add usage, by the same rules as `ADD_ROLLOUT_FIGURES`."""
    row.input_tokens += used.input_tokens
    row.output_tokens += used.output_tokens
    row.cached_tokens += used.cached_tokens
    row.cost += used.cost


def _add_reward(row: RolloutFiguresRow | TraceRow, reward: float, number: int) -> None:
    """Set the reward, unless a span with a higher number has set it."""
    if number >= row.reward_at:
        row.reward_at, row.reward = number, repr(reward)
