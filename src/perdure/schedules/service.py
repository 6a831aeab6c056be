"""The schedules of one namespace: what is started again and again, and when."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, get_args

from msgspec import UNSET, UnsetType, structs

from perdure.access.base import Service
from perdure.access.endpoints import DELETE, GET, PATCH, POST, MetadataFilter, call
from perdure.access.model import Caller
from perdure.kernel.checks import (
    Id,
    Limit,
    Offset,
    SortOrder,
    check_choice,
    check_filter,
    check_flag,
    check_id,
    check_page,
    optional_id,
)
from perdure.kernel.errors import NotFound
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.storage.port import Storage
from perdure.schedules import model, operations
from perdure.schedules.model import Change, NewSchedule, Order, Search, Targets
from perdure.schedules.records import Firing, Schedule
from perdure.schedules.times import check_expression, check_timezone

RUN = "run"

SortField = Literal[
    "created_at", "updated_at", "next_at", "end_time", "schedule_id", "assistant_id", "thread_id"
]


class Schedules(Service):
    """The schedules of one namespace. `ScheduleTimer` fires them."""

    def __init__(
        self,
        storage: Storage,
        targets: Targets,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.targets = targets

    @call(GET("/schedules"), scope="read")
    async def search(
        self,
        *,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        enabled: bool | None = None,
        metadata: MetadataFilter = None,
        sort_by: SortField = "created_at",
        sort_order: SortOrder = "desc",
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> PaginatedResult[Schedule]:
        """List schedules, the newest first.

        Filters by assistant, thread, state and metadata; `limit=0` only counts.
        """
        check_page(limit, offset)
        query = Search(
            optional_id(assistant_id, "assistant_id"),
            optional_id(thread_id, "thread_id"),
            enabled,
            check_filter(metadata, "metadata"),
            check_choice(sort_by, get_args(SortField), "sort_by"),
            check_choice(sort_order, get_args(SortOrder), "sort_order"),
            limit,
            offset,
        )
        rows, total = await self.read(operations.search, query)
        items = [model.schedule_of(row) for row in rows]
        return PaginatedResult(items=items, limit=limit, offset=offset, total=total)

    @call(POST("/schedules"), scope="write", status=201, errors=(NotFound,))
    async def create(
        self,
        expression: str,
        *,
        assistant_id: Id,
        thread_id: Id | None = None,
        timezone: str | None = None,
        enabled: bool = True,
        end_time: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Schedule:
        """Create a schedule that starts runs of an assistant.

        `assistant_id` is the id of an assistant or the name of an agent; `payload` holds the other fields of
        the run request.
        """
        return await self.create_for(
            RUN,
            expression,
            assistant_id=assistant_id,
            thread_id=thread_id,
            timezone=timezone,
            enabled=enabled,
            end_time=end_time,
            metadata=metadata,
            payload=payload,
            idempotency_key=idempotency_key,
        )

    async def create_for(
        self,
        target: str,
        expression: str,
        *,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        timezone: str | None = None,
        enabled: bool = True,
        end_time: float | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Schedule:
        """Create a schedule of any target, in the name of a user."""
        checked_metadata = model.check_metadata(metadata)
        checked_payload = model.check_object(payload, "payload")
        request = NewSchedule(
            target=target,
            expression=check_expression(expression),
            timezone=check_timezone(timezone),
            enabled=check_flag(enabled, "enabled"),
            end_at=model.check_end(end_time),
            assistant=optional_id(assistant_id, "assistant_id"),
            thread_id=optional_id(thread_id, "thread_id"),
            user_id=optional_id(user_id, "user_id"),
            labels=checked_metadata,
            texts=model.encoded(checked_metadata, checked_payload),
        )
        order = Order(
            schedule_id="",
            due_at=0,
            assistant_id=request.assistant,
            thread_id=request.thread_id,
            metadata=checked_metadata,
            payload=checked_payload,
        )
        self.targets[target].prepare(order)
        rows = 1 + len(checked_metadata)
        schedule_id: str = await self.write_once(
            idempotency_key, operations.create, request, self.targets, rows=rows
        )
        return await self.get(schedule_id)

    @call(GET("/schedules/{schedule_id}"), scope="read", errors=(NotFound,))
    async def get(self, schedule_id: Id) -> Schedule:
        """Get a schedule."""
        return model.schedule_of(await self.read(operations.get, check_id(schedule_id, "schedule_id")))

    @call(PATCH("/schedules/{schedule_id}"), scope="write", errors=(NotFound,), repeatable=True)
    async def update(
        self,
        schedule_id: Id,
        *,
        expression: str | UnsetType = UNSET,
        timezone: str | UnsetType | None = UNSET,
        enabled: bool | UnsetType = UNSET,
        end_time: float | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Change a schedule, pause it or resume it.

        What is left out stays as it is; `end_time=None` removes the end. Metadata and payload are merged.
        """
        checked = check_id(schedule_id, "schedule_id")
        change = partial(
            Change,
            expression=UNSET if expression is UNSET else check_expression(expression),
            timezone=UNSET if timezone is UNSET else check_timezone(timezone),
            enabled=UNSET if enabled is UNSET else check_flag(enabled, "enabled"),
            end_at=UNSET if end_time is UNSET else model.check_end(end_time),
        )
        more_metadata = model.check_metadata(metadata)
        more_payload = model.check_object(payload, "payload")
        updated = False
        # Metadata and payload are merged outside of the transaction; another change in between repeats it.
        while not updated:
            row = await self.read(operations.get, checked)
            order = model.order_of(row, 0)
            labels = {**order.metadata, **more_metadata}
            merged = {**order.payload, **more_payload}
            self.targets[row.target].prepare(structs.replace(order, metadata=labels, payload=merged))
            texts = model.encoded(labels, merged, row.metadata)
            updated = await self.write(
                operations.update, checked, change(labels=labels, texts=texts, known=row.texts)
            )
        return await self.get(schedule_id)

    async def pause(self, schedule_id: str) -> Schedule:
        """Pause a schedule until it is resumed."""
        return await self.update(schedule_id, enabled=False)

    async def resume(self, schedule_id: str) -> Schedule:
        """Resume a schedule from its next time on. Times missed while it was paused are not made up for."""
        return await self.update(schedule_id, enabled=True)

    @call(DELETE("/schedules/{schedule_id}"), scope="write", errors=(NotFound,))
    async def delete(self, schedule_id: Id) -> None:
        """Delete a schedule. The runs it started stay."""
        await self.write(operations.delete, check_id(schedule_id, "schedule_id"))

    @call(GET("/schedules/{schedule_id}/firings"), scope="read", errors=(NotFound,))
    async def firings(
        self, schedule_id: Id, *, limit: Limit = model.KEPT_FIRINGS, offset: Offset = 0
    ) -> list[Firing]:
        """List the latest firings of a schedule, the newest first."""
        check_page(limit, offset)
        checked = check_id(schedule_id, "schedule_id")
        rows = await self.read(operations.firings, checked, min(limit, model.KEPT_FIRINGS), offset)
        return [model.firing_of(row) for row in rows]
