"""What callers see of schedules. Times are epoch seconds."""

from __future__ import annotations

from typing import Any

from perdure.kernel.record import Record


class Schedule(Record, kw_only=True):
    """Something that is started again and again, at the times of a cron expression."""

    schedule_id: str
    target: str
    """What it starts: `run` is a run of an assistant."""
    expression: str
    timezone: str | None = None
    """The IANA name of the time zone in which the expression is read; None is UTC."""
    enabled: bool = True
    """Whether it fires; one that is paused does not."""
    next_at: float | None = None
    """When it fires next; None while it is paused and once it has ended."""
    end_time: float | None = None
    assistant_id: str | None = None
    thread_id: str | None = None
    """The thread on which it runs; without one each firing gets a thread of its own."""
    user_id: str | None = None
    created_at: float
    updated_at: float
    fired_at: float | None = None
    """When it fired last, whatever came of it."""
    fired: int = 0
    """How often it has started something."""
    refused: int = 0
    """How often it could not start anything."""
    started_id: str | None = None
    """What it started last."""
    error: str | None = None
    """Why it could not start anything the last time, if it could not."""
    metadata: dict[str, Any]
    payload: dict[str, Any]
    """What the target is given."""


class Firing(Record, kw_only=True):
    """One time that has come for a schedule, and what came of it."""

    schedule_id: str
    due_at: float
    fired_at: float
    started_id: str | None = None
    error: str | None = None
