"""Rows and records of the queues and the usage over time, and pure functions that build histories."""

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
"""Possible lengths of a step of a history."""
HOUR = 60 * MINUTE
MOST_POINTS = 360
"""Maximum number of points of a history, if a longer step is possible."""
DEFAULT_WINDOW = 60 * MINUTE
USAGE_WINDOW = 24 * HOUR
MAX_WINDOW = 400 * 1440 * MINUTE
"""Maximum length of the time that one call reads."""
UsageBy = Literal["model", "agent", "user", "kind"]
USAGE_BY: tuple[UsageBy, ...] = get_args(UsageBy)
ALL = ""
"""Queue name of the row that marks that the depths of a minute were read."""


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
    """Number of rollouts claimed in a minute after waits of one bucket."""

    ns: int
    minute: int
    queue: str
    bucket: int
    claimed: int


class QueueStepRow(NamedTuple):
    """Sums of a queue's minutes in one step."""

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
    """Number of rollouts of a queue claimed in one step after waits of one bucket."""

    queue: str
    step: int
    bucket: int
    claimed: int


class AddedUsageRow(UsageSums):
    """Usage of a rollout's spans that is not added to an hour yet, with the agent of the rollout."""

    ns: int
    rollout_id: str
    hour: int
    kind: str
    model: str
    agent: str
    user_id: str
    rollout_agent: str | None


class UsageHourRow(UsageSums):
    """Usage of spans in an hour."""

    ns: int
    hour: int
    kind: str
    model: str
    agent: str
    user_id: str


class UsageStepRow(UsageSums):
    """Sums of a name's hours in one step."""

    step: int
    name: str


# --- records ----------------------------------------------------------------------------------------------


class QueuePoint(Record, kw_only=True):
    """A queue in one step of a history. Depths are the maximum of the step."""

    time: float
    """Start of the step."""
    queue: str
    ready: int
    """Rollouts that could be claimed at once."""
    delayed: int
    """Rollouts that waited for their time."""
    waiting: int
    """Rollouts that waited in a line for the one before them."""
    oldest_age_seconds: float
    """How long the oldest claimable rollout had been ready."""
    claimed: int
    """Rollouts that were claimed for the first time."""
    wait_seconds_mean: float | None
    """Mean waiting time of these claimed rollouts."""
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
    """The steps in which depths were read; a queue without a point in one of them was empty."""
    items: list[QueuePoint]


class UsagePoint(Record, kw_only=True):
    """Usage of a model, agent, user or kind of step in one step of a history."""

    time: float
    """Start of the step."""
    name: str
    """Empty if it is unknown."""
    steps: int
    errors: int
    seconds: float
    """Total duration of the steps."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    """In US dollars, by the price table; null if no price is known."""


class UsageHistory(Record, kw_only=True):
    """Usage over time, the oldest step first."""

    since: float
    until: float
    step_seconds: float
    by: UsageBy
    items: list[UsagePoint]


class Window(NamedTuple):
    """A time range in steps of one length; both ends are starts of a step."""

    since: int
    until: int
    step: int


def build_window(
    since: float | None, until: float | None, now: int, *, shortest: int = MINUTE, usual: int = DEFAULT_WINDOW
) -> Window:
    """Build the window from `since` to `until`, in epoch seconds, with steps that give at most 360 points."""
    end = now if until is None else _moment(until, "until")
    start = max(end - usual, 0) if since is None else _moment(since, "since")
    if start > end:
        raise InvalidInput("since must not be later than until")
    if end - start > MAX_WINDOW:
        raise InvalidInput(f"`since` and `until` must be at most {MAX_WINDOW // (1440 * MINUTE)} days apart")
    fitting = (step for step in STEPS if step >= shortest and (end - start) // step <= MOST_POINTS)
    step = next(fitting, STEPS[-1])
    return Window(start // step * step, -(-end // step) * step, step)


def _moment(value: float, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e11:
        raise InvalidInput(f"{what} must be a time in epoch seconds, not {value!r}")
    return to_micros(float(value))


def build_history(
    window: Window, looked: Sequence[int], steps: Sequence[QueueStepRow], waits: Sequence[StepWaitRow]
) -> QueueHistory:
    """Build a history from the rows of its steps."""
    buckets: dict[tuple[str, int], dict[int, int]] = {}
    for row in waits:
        buckets.setdefault((row.queue, row.step), {})[row.bucket] = row.claimed
    return QueueHistory(
        since=to_seconds(window.since),
        until=to_seconds(window.until),
        step_seconds=to_seconds(window.step),
        times=[to_seconds(step * window.step) for step in looked],
        items=[_build_point(window, row, buckets.get((row.queue, row.step), {})) for row in steps],
    )


def _build_point(window: Window, row: QueueStepRow, buckets: Mapping[int, int]) -> QueuePoint:
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
    """Estimate a quantile of durations like Prometheus does: linear within a bucket.

    Durations above all bounds count as the highest bound.
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
    """Build a history of usage from the rows of its steps."""
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
    """Sum usage by hour and key; a span without an agent counts for the rollout's agent."""
    hours: dict[tuple[int, int, str, str, str, str], UsageHourRow] = {}
    for row in rows:
        agent = row.agent or row.rollout_agent or ""
        key = (row.ns, row.hour, row.kind, row.model, agent, row.user_id)
        hour = hours.get(key)
        if hour is None:
            hour = hours[key] = UsageHourRow(*NOTHING, *key)
        hour.add(row)
    return [hours[key] for key in sorted(hours)]
