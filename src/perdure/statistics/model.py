"""The queues and the usage over time: rows, records, and how they are put together. All of it is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

from perdure.kernel.clock import MICROS, to_micros, to_seconds
from perdure.kernel.errors import InvalidInput
from perdure.kernel.record import Record
from perdure.kernel.tally import SECONDS_BUCKETS
from perdure.spans.rollout_figures import dollars
from perdure.spans.usage import NOTHING, UsageSums

MINUTE = 60 * MICROS
STEPS = (MINUTE, 5 * MINUTE, 15 * MINUTE, 60 * MINUTE, 360 * MINUTE, 1440 * MINUTE)
"""How much time a point of a history may stand for."""
HOUR = 60 * MINUTE
MOST_POINTS = 360
"""How many points a history has at most, if a longer step is possible."""
DEFAULT_WINDOW = 60 * MINUTE
USAGE_WINDOW = 24 * HOUR
MAX_WINDOW = 400 * 1440 * MINUTE
"""The longest time that one call reads."""
UsageBy = Literal["model", "agent", "user", "kind"]
USAGE_BY: tuple[UsageBy, ...] = get_args(UsageBy)
ALL = ""
"""The name of the row that says that the depths of a minute were read."""


# --- rows -------------------------------------------------------------------------------------------------


class MinuteRow(NamedTuple):
    """A queue in a minute."""

    ns: int
    minute: int
    queue: str
    ready: int = 0
    delayed: int = 0
    waiting: int = 0
    oldest: int = 0
    claimed: int = 0
    waited: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0


class WaitRow(NamedTuple):
    """How many were claimed in a minute after a wait of one length."""

    ns: int
    minute: int
    queue: str
    bucket: int
    claimed: int


class QueueStepRow(NamedTuple):
    """The minutes of a queue in one step, put together."""

    queue: str
    step: int
    ready: int
    delayed: int
    waiting: int
    oldest: int
    claimed: int
    waited: int
    succeeded: int
    failed: int
    cancelled: int


class StepWaitRow(NamedTuple):
    """How many of a queue were claimed in one step after a wait of one length."""

    queue: str
    step: int
    bucket: int
    claimed: int


class AddedUsageRow(UsageSums):
    """What spans of a rollout took, which is to be added to an hour; with the agent of the rollout."""

    ns: int
    rollout_id: str
    hour: int
    kind: str
    model: str
    agent: str
    user_id: str
    rollout_agent: str | None


class UsageHourRow(UsageSums):
    """What spans took in an hour."""

    ns: int
    hour: int
    kind: str
    model: str
    agent: str
    user_id: str


class UsageStepRow(UsageSums):
    """The hours of one name in one step, put together."""

    step: int
    name: str


# --- what callers see -------------------------------------------------------------------------------------


class QueuePoint(Record, kw_only=True):
    """A queue in one step of a history. Depths are the highest of the step."""

    time: float
    """When the step began."""
    queue: str
    ready: int
    """So many could be claimed at once."""
    delayed: int
    """So many waited for their time."""
    waiting: int
    """So many waited in a line for the one before them."""
    oldest_age_seconds: float
    """How long the oldest that could be claimed had been ready."""
    claimed: int
    """So many were claimed for the first time."""
    wait_seconds_mean: float | None
    """How long those had waited."""
    wait_seconds_p50: float | None
    wait_seconds_p95: float | None
    succeeded: int
    failed: int
    cancelled: int


class QueueHistory(Record, kw_only=True):
    """Queues over time, the oldest step first."""

    since: float
    until: float
    step_seconds: float
    times: list[float]
    """The steps in which the queues were looked at; a queue without a point in one of them was empty."""
    items: list[QueuePoint]


class UsagePoint(Record, kw_only=True):
    """What a model, agent, user or kind of step used in one step of a history."""

    time: float
    """When the step began."""
    name: str
    """Empty where it is unknown."""
    steps: int
    errors: int
    seconds: float
    """How long the steps took in sum."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    """In US dollars, by the price table; none if no price is known."""


class UsageHistory(Record, kw_only=True):
    """What was used over time, the oldest step first."""

    since: float
    until: float
    step_seconds: float
    by: UsageBy
    items: list[UsagePoint]


class Window(NamedTuple):
    """A time to be read, in steps of one length; both ends are the beginning of a step."""

    since: int
    until: int
    step: int


def build_window(
    since: float | None, until: float | None, now: int, *, shortest: int = MINUTE, usual: int = DEFAULT_WINDOW
) -> Window:
    """The time from `since` until `until`, in epoch seconds, in steps that give a few hundred points."""
    end = now if until is None else _moment(until, "until")
    start = max(end - usual, 0) if since is None else _moment(since, "since")
    if start > end:
        raise InvalidInput("since must not be later than until")
    if end - start > MAX_WINDOW:
        raise InvalidInput(f"the time from since until until is at most {MAX_WINDOW // (1440 * MINUTE)} days")
    fitting = (each for each in STEPS if each >= shortest and (end - start) // each <= MOST_POINTS)
    step = next(fitting, STEPS[-1])
    return Window(start // step * step, -(-end // step) * step, step)


def _moment(value: float, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e11:
        raise InvalidInput(f"{what} must be a time in epoch seconds, not {value!r}")
    return to_micros(float(value))


def build_history(
    window: Window, looked: Sequence[int], steps: Sequence[QueueStepRow], waits: Sequence[StepWaitRow]
) -> QueueHistory:
    """A history out of the rows of its steps."""
    buckets: dict[tuple[str, int], dict[int, int]] = {}
    for row in waits:
        buckets.setdefault((row.queue, row.step), {})[row.bucket] = row.claimed
    return QueueHistory(
        since=to_seconds(window.since),
        until=to_seconds(window.until),
        step_seconds=to_seconds(window.step),
        times=[to_seconds(each * window.step) for each in looked],
        items=[_point(window, row, buckets.get((row.queue, row.step), {})) for row in steps],
    )


def _point(window: Window, row: QueueStepRow, buckets: Mapping[int, int]) -> QueuePoint:
    return QueuePoint(
        time=to_seconds(row.step * window.step),
        queue=row.queue,
        ready=row.ready,
        delayed=row.delayed,
        waiting=row.waiting,
        oldest_age_seconds=to_seconds(row.oldest),
        claimed=row.claimed,
        wait_seconds_mean=to_seconds(row.waited) / row.claimed if row.claimed else None,
        wait_seconds_p50=quantile(buckets, 0.5),
        wait_seconds_p95=quantile(buckets, 0.95),
        succeeded=row.succeeded,
        failed=row.failed,
        cancelled=row.cancelled,
    )


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """The duration that this share of all is not above, as Prometheus estimates it: straight within a bucket.

    What is above all bounds counts as the highest bound.
    """
    counts = [buckets.get(place, 0) for place in range(len(SECONDS_BUCKETS) + 1)]
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    reached = list(accumulate(counts))
    place = next(place for place, count in enumerate(reached) if count >= wanted)
    if place == len(SECONDS_BUCKETS):
        return SECONDS_BUCKETS[-1]
    low = SECONDS_BUCKETS[place - 1] if place else 0.0
    before = reached[place - 1] if place else 0
    return low + (SECONDS_BUCKETS[place] - low) * (wanted - before) / counts[place]


# --- usage ------------------------------------------------------------------------------------------------


def build_usage(window: Window, by: UsageBy, rows: Sequence[UsageStepRow]) -> UsageHistory:
    """A history of usage out of the rows of its steps."""
    return UsageHistory(
        since=to_seconds(window.since),
        until=to_seconds(window.until),
        step_seconds=to_seconds(window.step),
        by=by,
        items=[
            UsagePoint(
                time=to_seconds(row.step * window.step),
                name=row.name,
                steps=row.steps,
                errors=row.errors,
                seconds=to_seconds(row.micros),
                input_tokens=row.input_tokens,
                output_tokens=row.output_tokens,
                cached_tokens=row.cached_tokens,
                cost=dollars(row.cost),
            )
            for row in rows
        ],
    )


def build_hours(rows: Sequence[AddedUsageRow]) -> list[UsageHourRow]:
    """What is to be added to the hours, by key; the agent is the rollout's where the span names none."""
    found: dict[tuple[int, int, str, str, str, str], UsageHourRow] = {}
    for row in rows:
        agent = row.agent or row.rollout_agent or ""
        key = (row.ns, row.hour, row.kind, row.model, agent, row.user_id)
        hour = found.get(key)
        if hour is None:
            hour = found[key] = UsageHourRow(*NOTHING, *key)
        hour.add(row)
    return [found[key] for key in sorted(found)]
