"""What new spans add to their rollouts and traces, in the transaction that stores them."""

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
"""How many characters of a span's name are listed."""
NO_REWARD = -1
ERROR = "ERROR"
"""The status of a span that has failed, as OpenTelemetry has it."""
HOUR = 3600 * MICROS
OLDEST = 31 * 24 * HOUR
"""A span that began earlier counts as of now: its clock is wrong, or its hour is history."""

LAST = 2**63
"""No moment is later, in nanoseconds."""

_Key = tuple[str, str, int, UsageStep]
"""Trace, rollout, hour, and what is added up by."""


class _Used:
    """What spans of one key took. Costs that spans tell are apart from the tokens that have a price."""

    __slots__ = ("cached", "cost", "errors", "input", "micros", "output", "steps", "told")

    def __init__(self) -> None:
        self.steps = self.errors = self.micros = self.input = self.output = self.cached = self.cost = 0
        self.told = Tokens(0, 0, 0)

    def tell(self, figures: SpanFigures, cost: int) -> None:
        """Add a call whose cost is known."""
        told = self.told
        self.cost += cost
        self.told = Tokens(
            told.input + figures.input_tokens,
            told.output + figures.output_tokens,
            told.cached + figures.cached_tokens,
        )


class SpanSums(NamedTuple):
    """The rows to add, in the order of their keys."""

    rollouts: list[RolloutFiguresRow]
    traces: list[TraceRow]
    names: list[TraceNameRow]
    usage: list[UsageRow]


def compute_sums(spans: Iterable[NewSpan], numbers: Mapping[int, int], now: int, prices: Prices) -> SpanSums:
    """Add up spans, which have these sequence ids, by the ids of the objects; one without times is of now."""
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
        if start_ns <= self._low:
            self.hour, self.begins, self.ends = self._now, 0, self._low + 1
        elif start_ns >= self._high:
            self.hour, self.begins, self.ends = self._now, self._high, LAST
        else:
            self.hour = start_ns // (HOUR * 1000) * HOUR
            # A bound of what is believable may lie within the hour.
            self.begins = max(self.hour * 1000, self._low + 1)
            self.ends = min((self.hour + HOUR) * 1000, self._high)
        return self.hour


def _add_step(used: _Used, span: NewSpan, figures: SpanFigures) -> None:
    """Add a span. Every step comes by here, so what is mostly nothing is not added."""
    used.steps += 1
    if span.status_code == ERROR:
        used.errors += 1
    start, end = span.start_ns, span.end_ns
    if start and end and end > start:
        used.micros += (end - start) // 1000
    if figures.cost is not None:
        used.tell(figures, figures.cost)
    elif figures.input_tokens or figures.output_tokens:
        used.input += figures.input_tokens
        used.output += figures.output_tokens
        used.cached += figures.cached_tokens


def _build_usage(rollout_id: str, hour: int, step: UsageStep, used: _Used, prices: Prices) -> UsageRow:
    """What spans of one kind of step took."""
    unpriced, told = Tokens(used.input, used.output, used.cached), used.told
    return UsageRow(
        used.steps,
        used.errors,
        used.micros,
        unpriced.input + told.input,
        unpriced.output + told.output,
        unpriced.cached + told.cached,
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
