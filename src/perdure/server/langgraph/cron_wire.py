"""What the LangGraph protocol is asked of crons, and how it shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.schedules.records import Schedule
from perdure.server.langgraph.run_requests import Durability, Nodes, StreamMode
from perdure.server.langgraph.wire import Body, Limit, Metadata, Offset, SortOrder, iso, iso_or_none
from perdure.threads.records import MultitaskStrategy, OnCompletion

CronSort = Literal[
    "cron_id", "assistant_id", "thread_id", "next_run_date", "end_time", "created_at", "updated_at"
]
CronField = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "on_run_completed",
    "end_time",
    "schedule",
    "timezone",
    "created_at",
    "updated_at",
    "user_id",
    "payload",
    "next_run_date",
    "metadata",
    "enabled",
]
SORTED_BY: Final = {"cron_id": "schedule_id", "next_run_date": "next_at"}
"""The fields that have another name in the room."""


class Scheduled(Body, kw_only=True):
    """What a cron's runs are asked for."""

    input: Any = None
    metadata: Metadata | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    webhook: Annotated[str, Meta(min_length=1)] | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    multitask_strategy: MultitaskStrategy | None = None
    on_run_completed: OnCompletion | None = None
    checkpoint_during: bool | None = None
    durability: Durability | None = None
    stream_mode: StreamMode | list[StreamMode] | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None


class CronCreate(Scheduled, kw_only=True):
    """A cron to be made."""

    assistant_id: Annotated[str, Meta(min_length=1)]
    schedule: str
    timezone: str | None = None
    end_time: datetime | None = None
    enabled: bool | None = None


class CronPatch(Scheduled, kw_only=True):
    """What is to change of a cron; an `end_time` of null takes its end away."""

    schedule: str | None = None
    timezone: str | None = None
    end_time: datetime | UnsetType | None = UNSET
    enabled: bool | None = None


class CronCount(Body, kw_only=True):
    """Which crons."""

    assistant_id: str | None = None
    thread_id: str | None = None
    metadata: Metadata | None = None


class CronSearch(CronCount, kw_only=True):
    """Which crons, which of their fields, in which order."""

    enabled: bool | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    sort_by: CronSort | None = None
    sort_order: SortOrder | None = None
    select: list[CronField] | None = None


def seconds_of(time: datetime | None) -> float | None:
    """A time in epoch seconds; without a time zone it is UTC."""
    if time is None:
        return None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def cron_of(schedule: Schedule) -> dict[str, Any]:
    """A cron, with what its runs are asked for in `payload`."""
    of_thread = schedule.thread_id is not None
    return {
        "cron_id": schedule.schedule_id,
        "assistant_id": schedule.assistant_id,
        "thread_id": schedule.thread_id,
        "on_run_completed": None if of_thread else schedule.payload.get("on_run_completed", "delete"),
        "end_time": iso_or_none(schedule.end_time),
        "schedule": schedule.expression,
        "timezone": schedule.timezone,
        "created_at": iso(schedule.created_at),
        "updated_at": iso(schedule.updated_at),
        "user_id": schedule.user_id,
        "payload": _payload_of(schedule),
        "next_run_date": iso_or_none(schedule.next_at),
        "metadata": schedule.metadata,
        "enabled": schedule.enabled,
    }


def _payload_of(schedule: Schedule) -> dict[str, Any]:
    """What a run is asked for."""
    shown = {"assistant_id": schedule.assistant_id, "schedule": schedule.expression, **schedule.payload}
    return {**shown, "metadata": schedule.metadata} if schedule.metadata else shown


def given(body: Scheduled) -> dict[str, Any]:
    """The fields of a body that were given."""
    fields = {name: getattr(body, name) for name in Scheduled.__struct_fields__}
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value is not None}
