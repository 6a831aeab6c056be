"""What new spans add to their rollouts and traces, in the transaction that stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perdure.kernel.clock import MICROS
from perdure.rollouts.rows import RolloutFiguresRow, TraceNameRow, TraceRow, UsageRow
from perdure.rollouts.traces.prices import Prices, Tokens

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

_Key = tuple[str, str, int, str, str, str, str]
"""Trace, rollout, hour, kind of step, model, agent and user."""


class Sums(NamedTuple):
    """The rows to add, in the order of their keys."""

    rollouts: list[RolloutFiguresRow]
    traces: list[TraceRow]
    names: list[TraceNameRow]
    usage: list[UsageRow]


def sums_of(spans: Iterable[NewSpan], numbers: Mapping[int, int], now: int, prices: Prices) -> Sums:
    """Add up spans, which have these sequence ids, by the ids of the objects; one without times is of now."""
    rollouts: dict[str, RolloutFiguresRow] = {}
    traces: dict[str, TraceRow] = {}
    names: dict[tuple[str, str], int] = {}
    steps: dict[_Key, list[NewSpan]] = {}
    hours = _Hours(now)
    for span in spans:
        trace_id, name = span.trace_id, span.name[:MAX_NAME]
        start = span.start_ns or span.end_ns or now * 1000
        trace = traces.get(trace_id)
        if trace is None:
            service = span.service
            trace = traces[trace_id] = TraceRow(
                trace_id, start, start, 0, 0, 0, 0, 0, NO_REWARD, None, span.rollout_id, service, name, 0, 0
            )
        _add_span(trace, span, start, name)
        if start < names.get((trace_id, name), start + 1):
            names[trace_id, name] = start
        figures = span.figures
        if figures is None:
            continue
        hour = hours.hour if hours.begins <= start < hours.ends else hours.of(start)
        key = (
            trace_id,
            span.rollout_id,
            hour,
            figures.kind,
            figures.model,
            figures.agent,
            figures.user_id,
        )
        if key in steps:
            steps[key].append(span)
        else:
            steps[key] = [span]
        if figures.reward is not None:
            for owner in (_figures_of(rollouts, span.rollout_id), trace):
                _add_reward(owner, figures.reward, numbers[id(span)])
    usage: dict[tuple[str, int, str, str, str, str], UsageRow] = {}
    for key, same in steps.items():
        row = _usage_of(key, same, prices)
        if row.input_tokens or row.output_tokens or row.cost:
            _add_figures(_figures_of(rollouts, row.rollout_id), row)
            _add_figures(traces[key[0]], row)
        _add_row(usage, key[1:], row)
    return Sums(
        [rollouts[key] for key in sorted(rollouts)],
        [traces[key] for key in sorted(traces)],
        [TraceNameRow(*key, names[key]) for key in sorted(names)],
        [usage[key] for key in sorted(usage)],
    )


def _figures_of(rollouts: dict[str, RolloutFiguresRow], rollout_id: str) -> RolloutFiguresRow:
    row = rollouts.get(rollout_id)
    if row is None:
        row = rollouts[rollout_id] = RolloutFiguresRow(rollout_id, 0, 0, NO_REWARD, None, 0, 0)
    return row


def _add_row(
    usage: dict[tuple[str, int, str, str, str, str], UsageRow],
    key: tuple[str, int, str, str, str, str],
    row: UsageRow,
) -> None:
    """Add what a rollout took in one trace to what it took in all."""
    known = usage.setdefault(key, row)
    if known is not row:
        known.add(row)


class _Hours:
    """The hours of spans. One that begins before or after what is believable counts as of now."""

    def __init__(self, now: int) -> None:
        self._now = now // HOUR * HOUR
        self._low, self._high = (now - OLDEST) * 1000, (now + HOUR) * 1000
        self.hour = self.begins = self.ends = 0
        """The hour of the last span, and its bounds in nanoseconds: most spans are of the same."""

    def of(self, start_ns: int) -> int:
        if not self._low < start_ns < self._high:
            return self._now
        self.hour = start_ns // (HOUR * 1000) * HOUR
        # A bound of what is believable may lie within the hour.
        self.begins = max(self.hour * 1000, self._low + 1)
        self.ends = min((self.hour + HOUR) * 1000, self._high)
        return self.hour


def _usage_of(key: _Key, spans: Sequence[NewSpan], prices: Prices) -> UsageRow:
    """What spans of one kind of step took."""
    figures = [span.figures for span in spans if span.figures is not None]
    tokens = [
        (each.input_tokens, each.output_tokens, each.cached_tokens) for each in figures if each.cost is None
    ]
    unpriced = Tokens(*map(sum, zip(*tokens, strict=True))) if tokens else Tokens(0, 0, 0)
    told = [each for each in figures if each.cost is not None] if len(tokens) < len(figures) else ()
    return UsageRow(
        len(spans),
        sum([span.status_code == ERROR for span in spans]),
        sum([max(span.end_ns - span.start_ns, 0) // 1000 for span in spans if span.start_ns and span.end_ns]),
        unpriced.input + sum(each.input_tokens for each in told),
        unpriced.output + sum(each.output_tokens for each in told),
        unpriced.cached + sum(each.cached_tokens for each in told),
        (prices.cost(key[4], unpriced) or 0) + sum(each.cost or 0 for each in told),
        *key[1:],
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
    if span.status_code == ERROR:
        trace.errors += 1


def _add_figures(row: RolloutFiguresRow | TraceRow, used: UsageRow) -> None:
    """Add what was used, by the rules of `ADD_ROLLOUT_FIGURES`."""
    row.input_tokens += used.input_tokens
    row.output_tokens += used.output_tokens
    row.cached_tokens += used.cached_tokens
    row.cost += used.cost


def _add_reward(row: RolloutFiguresRow | TraceRow, reward: float, number: int) -> None:
    """The reward of the last number stays."""
    if number >= row.reward_at:
        row.reward_at, row.reward = number, repr(reward)
