"""Rows of schedules, firings and overrides, and their records."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from perdure.kernel.clock import MICROS, to_iso, to_seconds, to_seconds_or_none
from perdure.kernel.codec import decode_json
from perdure.kernel.cron import explain
from perdure.outbox.webhooks.urls import mask_target
from perdure.schedules.model import (
    API,
    CONCURRENT,
    MANAGED,
    MAX_RESULT,
    ONCE,
    SCHEDULE,
    FiringRequest,
    Texts,
    comes_next,
    compute_jitter,
)
from perdure.schedules.records import CronOverride, Firing, JobStatus, Schedule


class CronOverrideRow(NamedTuple):
    """A row of `cron_overrides`, which replaces parts of a schedule's definition."""

    name: str
    enabled: int
    schedule: str | None
    updated_at: int
    updated_by: str | None


class ScheduleRow(msgspec.Struct):
    """A row of `schedules`, with its override if there is one."""

    id: str
    name: str | None
    origin: str | None
    file: str | None
    target: str
    expression: str
    timezone: str | None
    enabled: int
    next_at: int | None
    due_at: int | None
    end_at: int | None
    jitter: int | None
    overlap: str | None
    misfire: str | None
    timeout: int | None
    unless: str | None
    assistant_id: str | None
    thread_id: str | None
    user_id: str | None
    created_at: int
    updated_at: int
    fired_at: int | None
    fired: int
    refused: int
    skipped: int | None
    failed: int | None
    running: int | None
    started_id: str | None
    error: str | None
    last_result: str | None
    last_error: str | None
    last_duration: int | None
    metadata: str
    payload: str
    last_metadata: str | None
    override: CronOverrideRow | None = None

    @property
    def texts(self) -> Texts:
        return Texts(self.metadata, self.payload)

    @property
    def is_managed(self) -> bool:
        """True if the schedule is defined elsewhere, so that callers change its override."""
        return self.origin in MANAGED

    @property
    def is_enabled(self) -> bool:
        return bool(self.enabled if self.override is None else self.override.enabled)

    @property
    def cron(self) -> str:
        """The expression in force."""
        override = None if self.override is None else self.override.schedule
        return self.expression if override is None else override

    @property
    def instant(self) -> int | None:
        """The time for which the schedule fires next, without its jitter."""
        return self.next_at if self.due_at is None else self.due_at

    @property
    def label(self) -> str:
        """Name of the schedule, otherwise its id."""
        return self.name or self.id

    def plan(self, after: int) -> None:
        """Set the next time after `after`. A paused schedule has a next time too, which is skipped."""
        due_at = comes_next(self.cron, self.timezone, end_at=self.end_at, after=after)
        self.due_at = due_at
        self.next_at = None if due_at is None else due_at + compute_jitter(self.id, due_at, self.jitter or 0)


class FiringRow(NamedTuple):
    """A row of `firings`. `open` is 1 until the started work has ended."""

    schedule_id: str
    due_at: int
    fired_at: int
    started_id: str | None
    error: str | None
    source: str | None
    actor: str | None
    target: str | None
    status: str | None
    skipped: str | None
    ended_at: int | None
    duration: int | None
    open: int | None
    metadata: str | None

    @property
    def key(self) -> FiringKey:
        return FiringKey(self.schedule_id, self.due_at)


class FiringKey(NamedTuple):
    """Key of a firing."""

    schedule_id: str
    due_at: int


class Prepared(NamedTuple):
    """A due schedule as read, with the prepared input of its target, or an error."""

    row: ScheduleRow
    start: Any
    unmet: bool = False
    """True if its condition keeps the schedule from firing."""

    def is_current(self, row: ScheduleRow) -> bool:
        """Return whether the schedule is unchanged in all that the firing depends on."""
        read = self.row
        return (row.next_at, row.updated_at, row.texts) == (read.next_at, read.updated_at, read.texts)


def row_to_firing_request(
    row: ScheduleRow, due_at: int, *, source: str = SCHEDULE, actor: str | None = None
) -> FiringRequest:
    """Build the request to the target of a schedule."""
    return FiringRequest(
        schedule_id=row.id,
        due_at=due_at,
        assistant_id=row.assistant_id,
        thread_id=row.thread_id,
        metadata=decode_json(row.metadata),
        payload=decode_json(row.payload),
        name=row.name,
        timeout=to_seconds_or_none(row.timeout),
        source=source,
        actor=actor,
    )


def kept_result(text: str | None) -> str | None:
    """Return the result of started work if it is small enough to be stored with the firing."""
    return text if text is not None and len(text) <= MAX_RESULT else None


# --- records ----------------------------------------------------------------------------------------------


def row_to_schedule(row: ScheduleRow) -> Schedule:
    """Convert a row to a schedule."""
    return Schedule(
        schedule_id=row.id,
        name=row.name,
        origin=row.origin or API,  # type: ignore[arg-type]
        file=row.file,
        target=row.target,
        expression=row.cron,
        sentence=explain(row.cron),
        timezone=row.timezone,
        enabled=row.is_enabled,
        overridden=row.override is not None,
        next_at=to_seconds_or_none(row.instant) if row.is_enabled else None,
        end_time=to_seconds_or_none(row.end_at),
        jitter=to_seconds(row.jitter or 0),
        overlap=row.overlap or CONCURRENT,  # type: ignore[arg-type]
        misfire=row.misfire or ONCE,  # type: ignore[arg-type]
        timeout=to_seconds_or_none(row.timeout),
        unless=row.unless,
        assistant_id=row.assistant_id,
        thread_id=row.thread_id,
        user_id=row.user_id,
        created_at=to_seconds(row.created_at),
        updated_at=to_seconds(row.updated_at),
        fired_at=to_seconds_or_none(row.fired_at),
        fired=row.fired,
        refused=row.refused,
        skipped=row.skipped or 0,
        failed=row.failed or 0,
        running=row.running or 0,
        started_id=row.started_id,
        error=row.error,
        metadata=decode_json(row.metadata),
        payload=_mask_webhook(decode_json(row.payload)),
    )


def _mask_webhook(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a payload without the credentials of its webhook."""
    webhook = payload.get("webhook")
    return {**payload, "webhook": mask_target(webhook)} if isinstance(webhook, str) else payload


def row_to_firing(row: FiringRow) -> Firing:
    """Convert a row to a firing. Rows of earlier releases have only an id or an error."""
    status = row.status or ("failed" if row.error is not None else "completed")
    return Firing(
        schedule_id=row.schedule_id,
        due_at=to_seconds(row.due_at),
        fired_at=to_seconds(row.fired_at),
        source=row.source or SCHEDULE,  # type: ignore[arg-type]
        actor=row.actor,
        status=status,
        skipped=row.skipped,
        started_id=row.started_id,
        ended_at=to_seconds_or_none(row.ended_at),
        duration=None if row.duration is None else row.duration / MICROS,
        error=row.error,
        result=None if row.metadata is None else decode_json(row.metadata),
    )


def row_to_job_status(row: ScheduleRow) -> JobStatus:
    """Convert a row to the status of a schedule."""
    return JobStatus(
        job_name=row.label,
        schedule_id=row.id,
        cron_expr=row.cron,
        origin=row.origin or API,  # type: ignore[arg-type]
        target=row.target,
        last_run=to_seconds_or_none(row.fired_at),
        last_duration_ms=0 if row.last_duration is None else row.last_duration // 1000,
        last_result=row.last_result,
        last_error=row.last_error,
        next_run=to_seconds_or_none(row.instant) if row.is_enabled else None,
        run_count=row.fired + row.refused + (row.skipped or 0),
        error_count=row.refused + (row.failed or 0),
        is_running=bool(row.running),
        is_paused=not row.is_enabled,
        last_run_metadata={} if row.last_metadata is None else decode_json(row.last_metadata),
    )


def row_to_cron_override(row: CronOverrideRow) -> CronOverride:
    """Convert a row to an override."""
    return CronOverride(
        name=row.name,
        enabled=bool(row.enabled),
        schedule=row.schedule,
        updated_at=to_iso(row.updated_at),
        updated_by=row.updated_by,
    )
