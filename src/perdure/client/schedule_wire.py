"""What the native door takes of schedules, beyond their records."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from perdure.client.native_wire import Body, Metadata, PageQuery
from perdure.client.run_wire import Id, Terms
from perdure.rollouts.contract import SortOrder


class ScheduleQuery(PageQuery, kw_only=True):
    """Which schedules; `metadata` is `key:text`, as often as needed, or a JSON object."""

    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: Terms | None = None
    sort_by: Literal[
        "created_at", "updated_at", "next_at", "end_time", "schedule_id", "assistant_id", "thread_id"
    ] = "created_at"
    sort_order: SortOrder = "desc"


class NewSchedule(Body, kw_only=True):
    """A schedule that starts runs; `payload` holds what they are asked for."""

    expression: str
    assistant_id: Id
    thread_id: Id | None = None
    timezone: str | None = None
    enabled: bool = True
    end_time: float | None = None
    metadata: Metadata | None = None
    payload: dict[str, Any] | None = None


class SchedulePatch(Body, kw_only=True):
    """What is to change; an `end_time` of null takes the end away. Metadata and payload are merged."""

    expression: str | UnsetType = UNSET
    timezone: str | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    end_time: float | UnsetType | None = UNSET
    metadata: Metadata | None = None
    payload: dict[str, Any] | None = None
