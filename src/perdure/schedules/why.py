"""Why a schedule stands where it stands, in a sentence. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from perdure.kernel.clock import human_duration
from perdure.kernel.record import Record
from perdure.schedules.records import Schedule

OVERDUE_SECONDS = 10.0
"""What is due for longer than this is fired by nobody."""


class ScheduleWhy(Record, kw_only=True):
    """Why a schedule stands where it stands, with the rule and the facts behind it."""

    id: str
    kind: Literal["schedule"] = "schedule"
    status: Literal["waiting", "due", "paused", "ended"]
    rule: str
    """A short code that stays the same, whatever the sentence says."""
    sentence: str
    facts: dict[str, Any]


def explain(schedule: Schedule, now: float) -> ScheduleWhy:
    """What holds a schedule, or when it fires."""
    status, rule, sentence = _said(schedule, now)
    if schedule.error is not None:
        sentence += f" The last time it could not start anything: {schedule.error}."
    facts = schedule.model_dump(exclude=("payload", "metadata"), exclude_none=True)
    return ScheduleWhy(
        id=schedule.schedule_id, status=status, rule=rule, sentence=sentence.replace("..", "."), facts=facts
    )


def _said(schedule: Schedule, now: float) -> tuple[Any, str, str]:
    name = f"Cron {schedule.schedule_id} ({schedule.expression}, {schedule.timezone or 'UTC'})"
    next_at = schedule.next_at
    if not schedule.enabled:
        return "paused", "paused", f"{name} is paused, and fires when it is resumed."
    if next_at is None:
        return "ended", "ended", f"{name} has ended: {_end(schedule)}."
    if next_at > now:
        return (
            "waiting",
            "waits_for_time",
            f"{name} fires at {_when(next_at)}, in {human_duration(next_at - now)}.",
        )
    late = now - next_at
    if late < OVERDUE_SECONDS:
        return "due", "due", f"{name} is due now."
    return (
        "due",
        "nobody_fires",
        (
            f"{name} is due for {human_duration(late)}, and nobody fires it: no server serves this database. "
            "Start one with `perdure serve`; it then fires once, however often it was missed."
        ),
    )


def _end(schedule: Schedule) -> str:
    if schedule.end_time is None:
        return "its expression comes no more"
    return f"its end was set to {_when(schedule.end_time)}"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
