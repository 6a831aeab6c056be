"""Schedules over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from perdure.client.api import Api
from perdure.client.native_wire import MAX_PAGE
from perdure.client.session import path_segment
from perdure.kernel.pages import PaginatedResult
from perdure.schedules.records import Firing, Schedule


class RemoteSchedules:
    """The schedules of a namespace behind a server."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(
        self,
        expression: str,
        *,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        timezone: str | None = None,
        enabled: bool = True,
        end_time: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Make a schedule that starts runs. `assistant_id` is an id or the name of an agent."""
        body = {
            "expression": expression,
            "assistant_id": assistant_id,
            "thread_id": thread_id,
            "timezone": timezone,
            "enabled": enabled,
            "end_time": end_time,
            "metadata": metadata,
            "payload": payload,
        }
        return await self._api.send(Schedule, "POST", "/schedules", body, effect="once")

    async def update(
        self,
        schedule_id: str,
        *,
        expression: str | UnsetType = UNSET,
        timezone: str | UnsetType | None = UNSET,
        enabled: bool | UnsetType = UNSET,
        end_time: float | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Change what is given; `end_time=None` takes the end away. Metadata and payload are merged."""
        asked = {
            "expression": expression,
            "timezone": timezone,
            "enabled": enabled,
            "end_time": end_time,
            "metadata": metadata or UNSET,
            "payload": payload or UNSET,
        }
        body = {name: value for name, value in asked.items() if value is not UNSET}
        return await self._api.send(Schedule, "PATCH", _path(schedule_id), body)

    async def pause(self, schedule_id: str) -> Schedule:
        """Let it fire no more until it is resumed."""
        return await self.update(schedule_id, enabled=False)

    async def resume(self, schedule_id: str) -> Schedule:
        """Let it fire again, from its next time on: what came while it was paused is not made up for."""
        return await self.update(schedule_id, enabled=True)

    async def delete(self, schedule_id: str) -> None:
        """Remove a schedule; what it has started stays."""
        await self._api.delete(_path(schedule_id))

    async def get(self, schedule_id: str) -> Schedule:
        return await self._api.get(Schedule, _path(schedule_id))

    async def firings(self, schedule_id: str, *, limit: int = 10, offset: int = 0) -> list[Firing]:
        """What came of its latest times, the newest first."""
        path = _path(schedule_id, "/firings")
        return await self._api.items(Firing, path, limit=min(limit, MAX_PAGE), offset=offset)

    async def search(
        self,
        *,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        enabled: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        sort_by: str = "created_at",
        sort_order: str = "desc",
        limit: int = 10,
        offset: int = 0,
    ) -> PaginatedResult[Schedule]:
        """Schedules of an assistant, of a thread, with at least this metadata."""
        return await self._api.page(
            Schedule,
            "/schedules",
            limit,
            offset,
            assistant_id=assistant_id,
            thread_id=thread_id,
            enabled=enabled,
            metadata=metadata or None,
            sort_by=sort_by,
            sort_order=sort_order,
        )


def _path(schedule_id: str, rest: str = "") -> str:
    return "/schedules/" + path_segment(schedule_id, "schedule_id") + rest
