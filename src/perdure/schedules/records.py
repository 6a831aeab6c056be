"""What callers see of schedules. Times are epoch seconds."""

from __future__ import annotations

from typing import Any

from perdure.kernel.record import Record
from perdure.schedules.model import Misfire, Origin, Overlap, Source


class Schedule(Record, kw_only=True):
    """Something that is started again and again, at the times of a cron expression."""

    schedule_id: str
    name: str | None = None
    """Names it within its namespace; wherever an id is given, the name may be."""
    origin: Origin = "api"
    """Where it is defined: by a call, in code, or in a cron file."""
    file: str | None = None
    """The cron file that defines it."""
    target: str
    """What it starts: `run` is a run of an assistant."""
    expression: str
    sentence: str = ""
    """What the expression says, in English."""
    timezone: str | None = None
    """The IANA name of the time zone in which the expression is read; None is UTC."""
    enabled: bool = True
    """Whether it fires; one that is paused does not."""
    overridden: bool = False
    """Whether an override counts instead of what its code or file says."""
    next_at: float | None = None
    """The time for which it fires next; None while it is paused and once it has ended."""
    end_time: float | None = None
    jitter: float = 0.0
    """It fires up to so many seconds after its time."""
    overlap: Overlap = "concurrent"
    """Whether it fires while what it started before has not ended."""
    misfire: Misfire = "once"
    """Which of the times fire that came while no server was running."""
    timeout: float | None = None
    """How many seconds what it starts may take."""
    unless: str | None = None
    """The name of a condition under which it does not fire."""
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
    skipped: int = 0
    """How often a time of it was skipped: while it was paused, or what it started before had not ended."""
    failed: int = 0
    """How often what it started has failed."""
    running: int = 0
    """How much of what it started has not ended, as far as it is known."""
    started_id: str | None = None
    """What it started last."""
    error: str | None = None
    """Why it could not start anything the last time, or why what it started failed."""
    metadata: dict[str, Any]
    payload: dict[str, Any]
    """What the target is given."""


class Upcoming(Record, kw_only=True):
    """When a schedule fires: in words, and its next times. A jitter is not part of them."""

    sentence: str
    items: list[float]


class Firing(Record, kw_only=True):
    """One time that has come for a schedule, and what came of it."""

    schedule_id: str
    due_at: float
    fired_at: float
    source: Source = "schedule"
    actor: str | None = None
    """Who triggered it by hand."""
    status: str = "completed"
    """`running` until what it started has ended; then `success` or `failed`. `skipped` started nothing, and
    `completed` started something whose end is not known."""
    skipped: str | None = None
    """Why it was skipped: `paused`, `overlap`, `misfire` or `condition`."""
    started_id: str | None = None
    ended_at: float | None = None
    duration: float | None = None
    """How many seconds what it started took."""
    error: str | None = None
    result: Any = None
    """What came of what it started, if it is small."""


class JobStatus(Record, kw_only=True):
    """A schedule as the status of the scheduler shows it."""

    job_name: str
    schedule_id: str
    cron_expr: str
    origin: Origin = "api"
    target: str
    last_run: float | None = None
    last_duration_ms: int = 0
    last_result: str | None = None
    """`success`, `failed` or `skipped`."""
    last_error: str | None = None
    """Why it failed, or why it was skipped."""
    next_run: float | None = None
    run_count: int = 0
    """How often it fired, those times included that were skipped."""
    error_count: int = 0
    is_running: bool = False
    is_paused: bool = False
    last_run_metadata: Any = None


class SchedulerStatus(Record, kw_only=True):
    """Whether the scheduler of a server runs, and its named schedules in the order of their names."""

    state: str
    """`idle`, `running` or `stopping`."""
    scheduler_running: bool
    jobs: list[JobStatus]
    next_after: str | None = None
    """The name to go on after, if there are more."""


class CronOverride(Record, kw_only=True):
    """What counts instead of the definition of a schedule, until it is removed."""

    name: str
    enabled: bool
    schedule: str | None = None
    updated_at: str
    """In ISO 8601."""
    updated_by: str | None = None
