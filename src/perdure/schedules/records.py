"""Records of schedules. Times are epoch seconds."""

from __future__ import annotations

from typing import Any

from perdure.kernel.record import Record
from perdure.schedules.model import Misfire, Origin, Overlap, Source


class Schedule(Record, kw_only=True):
    """A schedule, which starts work at the times of a cron expression."""

    schedule_id: str
    name: str | None = None
    """Unique name in the namespace; accepted wherever an id is."""
    origin: Origin = "api"
    """Where the schedule is defined: by a call, in code, or in a cron file."""
    file: str | None = None
    """The cron file that defines the schedule."""
    target: str
    """Kind of work; `run` is a run of an assistant."""
    expression: str
    sentence: str = ""
    """The expression in English."""
    timezone: str | None = None
    """IANA name of the time zone of the expression; None is UTC."""
    enabled: bool = True
    """False while the schedule is paused."""
    overridden: bool = False
    """True if an override replaces the definition in code or file."""
    next_at: float | None = None
    """The next time; None while the schedule is paused and after its end."""
    end_time: float | None = None
    jitter: float = 0.0
    """The schedule fires up to this many seconds after its time."""
    overlap: Overlap = "concurrent"
    """Whether the schedule fires while its earlier work has not ended."""
    misfire: Misfire = "once"
    """Which firing times still fire if they were missed while no server was running."""
    timeout: float | None = None
    """Time limit of the started work in seconds."""
    unless: str | None = None
    """The name of a condition under which the schedule does not fire."""
    assistant_id: str | None = None
    thread_id: str | None = None
    """The thread of its runs; without one each firing gets a new thread."""
    user_id: str | None = None
    created_at: float
    updated_at: float
    fired_at: float | None = None
    """Time of the last firing, whatever its result."""
    fired: int = 0
    """Number of firings that started work."""
    refused: int = 0
    """Number of firings that could not start work."""
    skipped: int = 0
    """Number of skipped times: the schedule was paused, or its earlier work had not ended."""
    failed: int = 0
    """Number of started runs that failed."""
    running: int = 0
    """Number of started runs known not to have ended."""
    started_id: str | None = None
    """Id of the last started work."""
    error: str | None = None
    """Error of the last firing that could not start, or of the last failed work."""
    metadata: dict[str, Any]
    payload: dict[str, Any]
    """Input of the target."""


class Upcoming(Record, kw_only=True):
    """The times of a schedule: in words, and the next ones, without jitter."""

    sentence: str
    items: list[float]


class Firing(Record, kw_only=True):
    """A due time of a schedule and its result."""

    schedule_id: str
    due_at: float
    fired_at: float
    source: Source = "schedule"
    actor: str | None = None
    """The caller that triggered the firing by hand."""
    status: str = "completed"
    """`running` until the started work has ended, then `success` or `failed`. A `skipped` firing started
    nothing. The outcome of a `completed` firing is unknown."""
    skipped: str | None = None
    """Reason of a skip: `paused`, `overlap`, `misfire` or `condition`."""
    started_id: str | None = None
    ended_at: float | None = None
    duration: float | None = None
    """Duration of the started work in seconds."""
    error: str | None = None
    result: Any = None
    """Result of the started work, if it is small."""


class JobStatus(Record, kw_only=True):
    """A schedule in the status of the scheduler."""

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
    """Reason of the failure or skip."""
    next_run: float | None = None
    run_count: int = 0
    """Number of firings, including skipped ones."""
    error_count: int = 0
    is_running: bool = False
    is_paused: bool = False
    last_run_metadata: Any = None


class SchedulerStatus(Record, kw_only=True):
    """State of a server's scheduler, and its named schedules in the order of their names."""

    state: str
    """`idle`, `running` or `stopping`."""
    scheduler_running: bool
    jobs: list[JobStatus]
    next_after: str | None = None
    """Pass as `after` to read the next page; None at the end."""


class CronOverride(Record, kw_only=True):
    """An override, which replaces the definition of a schedule until it is removed."""

    name: str
    enabled: bool
    schedule: str | None = None
    updated_at: str
    """In ISO 8601."""
    updated_by: str | None = None
