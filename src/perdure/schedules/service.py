"""Service of the schedules of one namespace."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Protocol, get_args

from msgspec import UNSET, Meta, UnsetType, structs

from perdure.kernel.checks import (
    Id,
    Limit,
    Offset,
    SortOrder,
    check_choice,
    check_choices,
    check_filter,
    check_flag,
    check_id,
    check_number,
    check_page,
    optional_id,
)
from perdure.kernel.cron import check_expression, check_timezone, explain
from perdure.kernel.cursors import LAST
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.pages import Keyset, PaginatedResult, Part
from perdure.kernel.storage.labels import encode_labels
from perdure.kernel.storage.port import Storage
from perdure.schedules import model, rows, sql
from perdure.schedules.model import (
    API,
    IDLE,
    MANUAL,
    MAX_JITTER,
    FiringRequest,
    Misfire,
    NewSchedule,
    Origin,
    Overlap,
    OverrideChange,
    ScheduleChange,
    ScheduleFilter,
    ScheduleTargets,
)
from perdure.schedules.operations import edit, fire, overrides, queries
from perdure.schedules.operations.edit import Synced
from perdure.schedules.operations.fire import Trigger, Triggered
from perdure.schedules.records import CronOverride, Firing, Schedule, SchedulerStatus, Upcoming
from perdure.schedules.settling import Settling
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import DELETE, GET, PATCH, POST, MetadataFilter, call

RUN = "run"
_FIRINGS = Keyset[rows.FiringRow, tuple[int]]("firings", (LAST,), lambda row: (row.due_at,))

Target = Literal["run", "rollout", "workflow"]
"""Targets that callers may use over HTTP."""
SortField = Literal[
    "created_at", "updated_at", "next_at", "end_time", "schedule_id", "name", "assistant_id", "thread_id"
]
Seconds = Annotated[float, Meta(ge=0)]
MAX_TIMES = 100
"""Limit of next times that `upcoming` returns."""
Times = Annotated[int, Meta(ge=0, le=MAX_TIMES)]


Origins = list[Origin]


def _to_list(origin: Origin | Origins) -> Origins:
    return [origin] if isinstance(origin, str) else origin


class Scheduler(Protocol):
    """The scheduler of this process."""

    @property
    def state(self) -> str: ...


class Schedules(Service):
    """Schedules of one namespace. `ScheduleTimer` fires them.

    A `schedule_id` may also be the name of the schedule.
    """

    def __init__(
        self,
        storage: Storage,
        targets: ScheduleTargets,
        *,
        scheduler: Scheduler | None = None,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.targets = targets
        self._scheduler = scheduler
        self._settling = Settling(storage, targets)

    @call(GET("/schedules"), scope="read")
    async def search(
        self,
        *,
        target: str | None = None,
        origin: Origin | Origins | None = None,
        name: str | None = None,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        enabled: bool | None = None,
        metadata: MetadataFilter = None,
        sort_by: SortField = "created_at",
        sort_order: SortOrder = "desc",
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> PaginatedResult[Schedule]:
        """List schedules, newest first.

        Filter by target, origin, name, assistant, thread, state and metadata; `limit=0` only counts.
        """
        order = sql.order(
            check_choice(sort_by, get_args(SortField), "sort_by"),
            check_choice(sort_order, get_args(SortOrder), "sort_order"),
        )
        request = order.keyset("schedules").open_page(limit, offset, cursor)
        query = ScheduleFilter(
            optional_id(target, "target"),
            None if origin is None else check_choices(_to_list(origin), get_args(Origin), "origin"),
            optional_id(name, "name"),
            optional_id(assistant_id, "assistant_id"),
            optional_id(thread_id, "thread_id"),
            enabled,
            check_filter(metadata, "metadata"),
            limit,
            offset,
            order,
            request.place,
        )
        records, total = await self.read(queries.search, query)
        return request.build_page(records, map(rows.row_to_schedule, records), total)

    @call(POST("/schedules"), scope="write", status=201, errors=(NotFound, Conflict))
    async def create(
        self,
        expression: str,
        *,
        name: str | None = None,
        target: Target = "run",
        assistant_id: Id | None = None,
        thread_id: Id | None = None,
        timezone: str | None = None,
        enabled: bool = True,
        end_time: float | None = None,
        jitter: Seconds = 0.0,
        overlap: Overlap = "concurrent",
        misfire: Misfire = "once",
        timeout: Seconds | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Schedule:
        """Create a schedule that starts runs of an assistant, or the work of another target.

        `assistant_id` is the id of an assistant or the name of an agent; `payload` has the other fields of
        the run request. The schedule fires up to `jitter` seconds after its time. With overlap `skip` it does
        not fire while its earlier work has not ended. `misfire` sets which of the times fire that were missed
        while no server was running: one (`once`), none (`skip`) or `all`.
        """
        return await self.create_for(
            check_choice(target, get_args(Target), "target"),
            expression,
            name=name,
            assistant_id=assistant_id,
            thread_id=thread_id,
            timezone=timezone,
            enabled=enabled,
            end_time=end_time,
            jitter=jitter,
            overlap=overlap,
            misfire=misfire,
            timeout=timeout,
            metadata=metadata,
            payload=payload,
            idempotency_key=idempotency_key,
        )

    async def create_for(
        self,
        target: str,
        expression: str,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Schedule:
        """Create a schedule of any target in the name of a user; the fields are those of `definition`."""
        request = self.definition(target, expression, **fields)
        schedule_id: str = await self.write_once(
            idempotency_key, edit.create, request, self.targets, rows=1 + len(request.labels)
        )
        return await self.get(schedule_id)

    def definition(
        self,
        target: str,
        expression: str,
        *,
        name: str | None = None,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        timezone: str | None = None,
        enabled: bool = True,
        end_time: float | None = None,
        jitter: float = 0.0,
        overlap: Overlap = "concurrent",
        misfire: Misfire = "once",
        timeout: float | None = None,
        unless: str | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
        origin: str = API,
        file: str | None = None,
    ) -> NewSchedule:
        """Build a schedule to be created or synced, also checked by its target."""
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
            labels=encode_labels(checked_metadata),
            texts=model.encoded(checked_metadata, checked_payload),
            name=model.check_schedule_name(name),
            origin=origin,
            file=file,
            jitter=model.check_seconds(jitter, "jitter", MAX_JITTER),
            overlap=check_choice(overlap, get_args(Overlap), "overlap"),
            misfire=check_choice(misfire, get_args(Misfire), "misfire"),
            timeout=model.check_timeout(timeout),
            unless=optional_id(unless, "unless"),
        )
        order = FiringRequest(
            schedule_id="",
            due_at=0,
            assistant_id=request.assistant,
            thread_id=request.thread_id,
            metadata=checked_metadata,
            payload=checked_payload,
            name=request.name,
            timeout=timeout,
        )
        self.targets[target].prepare(order)
        return request

    @call(GET("/schedules/{schedule_id}"), scope="read", errors=(NotFound,))
    async def get(self, schedule_id: Id) -> Schedule:
        """Get a schedule."""
        return rows.row_to_schedule(await self.read(queries.get, check_id(schedule_id, "schedule_id")))

    @call(PATCH("/schedules/{schedule_id}"), scope="write", errors=(NotFound, Conflict), repeatable=True)
    async def update(
        self,
        schedule_id: Id,
        *,
        expression: str | UnsetType = UNSET,
        timezone: str | UnsetType | None = UNSET,
        enabled: bool | UnsetType = UNSET,
        end_time: float | UnsetType | None = UNSET,
        jitter: Seconds | UnsetType = UNSET,
        overlap: Overlap | UnsetType = UNSET,
        misfire: Misfire | UnsetType = UNSET,
        timeout: Seconds | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Change, pause or resume a schedule.

        Metadata and payload are merged with the stored ones. If code or a file defines the schedule, only
        `expression` and `enabled` can be changed; the change is an override.
        """
        checked = check_id(schedule_id, "schedule_id")
        change = partial(
            ScheduleChange,
            expression=UNSET if expression is UNSET else check_expression(expression),
            timezone=UNSET if timezone is UNSET else check_timezone(timezone),
            enabled=UNSET if enabled is UNSET else check_flag(enabled, "enabled"),
            end_at=UNSET if end_time is UNSET else model.check_end(end_time),
            jitter=UNSET if jitter is UNSET else model.check_seconds(jitter, "jitter", MAX_JITTER),
            overlap=UNSET if overlap is UNSET else check_choice(overlap, get_args(Overlap), "overlap"),
            misfire=UNSET if misfire is UNSET else check_choice(misfire, get_args(Misfire), "misfire"),
            timeout=UNSET if timeout is UNSET else model.check_timeout(timeout),
        )
        more_metadata = model.check_metadata(metadata)
        more_payload = model.check_object(payload, "payload")
        updated = False
        # Metadata and payload are merged outside of the transaction; after a concurrent change the loop
        # repeats.
        while not updated:
            row = await self.read(queries.get, checked)
            if row.is_managed:
                fixed = (timezone, end_time, jitter, overlap, misfire, timeout)
                if more_metadata or more_payload or any(value is not UNSET for value in fixed):
                    raise edit.managed(row, "changed")
                await self.set_override(row.id, enabled=enabled, schedule=expression)
                break
            order = rows.row_to_firing_request(row, 0)
            merged_metadata = {**order.metadata, **more_metadata}
            merged = {**order.payload, **more_payload}
            self.targets[row.target].prepare(structs.replace(order, metadata=merged_metadata, payload=merged))
            texts = model.encoded(merged_metadata, merged, row.metadata)
            labels = encode_labels(merged_metadata)
            updated = await self.write(
                edit.update, row.id, change(labels=labels, texts=texts, known=row.texts)
            )
        return await self.get(schedule_id)

    async def pause(self, schedule_id: str) -> Schedule:
        """Pause a schedule until it is resumed. Its times are recorded as skipped."""
        return await self.update(schedule_id, enabled=False)

    async def resume(self, schedule_id: str) -> Schedule:
        """Resume a schedule from its next time on. Times missed while it was paused do not fire."""
        return await self.update(schedule_id, enabled=True)

    @call(DELETE("/schedules/{schedule_id}"), scope="write", errors=(NotFound, Conflict))
    async def delete(self, schedule_id: Id) -> None:
        """Delete a schedule. The runs it started stay.

        A schedule of a file cannot be deleted. A schedule of code returns at the next start.
        """
        await self.write(edit.delete, check_id(schedule_id, "schedule_id"))

    # --- firing -------------------------------------------------------------------------------------------

    @call(POST("/schedules/{schedule_id}/trigger"), scope="write", errors=(NotFound,))
    async def trigger(self, schedule_id: Id, *, idempotency_key: str | None = None) -> Firing:
        """Fire a schedule now, also if it is paused. Its next time stays as it is.

        The firing is skipped if overlap is `skip` and earlier work has not ended.
        """
        while True:
            row, now = await self.read(queries.get_now, check_id(schedule_id, "schedule_id"))
            open_firings = await self._settling.look(await self.ns(), [row.id] if row.running else [])
            order = rows.row_to_firing_request(row, now, source=MANUAL, actor=self.actor_name)
            wanted = Trigger(row, self.targets[row.target].prepare(order), open_firings.outcomes)
            fired: Triggered = await self.write_once(idempotency_key, fire.trigger, wanted, self.targets)
            if fired.due_at is not None:
                return rows.row_to_firing(
                    await self.read(queries.get_firing, fired.schedule_id, fired.due_at)
                )

    @call(GET("/schedules/{schedule_id}/firings"), scope="read", errors=(NotFound,))
    async def firings(
        self,
        schedule_id: Id,
        *,
        limit: Limit = model.KEPT_FIRINGS,
        offset: Offset = 0,
        cursor: str | None = None,
    ) -> Part[Firing]:
        """List the latest firings of a schedule, newest first."""
        request = _FIRINGS.open_part(limit, cursor, offset)
        row = await self.read(queries.get, check_id(schedule_id, "schedule_id"))
        if row.running:
            await self._settling.settle(await self.ns(), [row.id])
        firings = await self.read(queries.firings, row.id, *request.place, request.rows, offset)
        return request.build_part(firings, rows.row_to_firing)

    @call(GET("/schedules/{schedule_id}/upcoming"), scope="read", errors=(NotFound,))
    async def upcoming(self, schedule_id: Id, *, limit: Times = 5) -> Upcoming:
        """Describe in words when a schedule fires, and list its next times, also if it is paused."""
        check_number(limit, "limit", 0, MAX_TIMES)
        row, now = await self.read(queries.get_now, check_id(schedule_id, "schedule_id"))
        times = model.upcoming(row.expression, row.timezone, end_at=row.end_at, after=now, limit=limit)
        return Upcoming(sentence=explain(row.expression), items=times)

    @call(GET("/scheduler"), scope="read")
    async def status(self, *, after: str = "", limit: Limit = 100) -> SchedulerStatus:
        """Get the state of this server's scheduler, and the named schedules in the order of their names.

        `after` is the last name of the page before.
        """
        check_page(limit, 0)
        await self._settling.settle_namespace(await self.ns())
        records = await self.read(queries.named, check_id(after, "after"), limit)
        state = IDLE if self._scheduler is None else self._scheduler.state
        return SchedulerStatus(
            state=state,
            scheduler_running=state != IDLE,
            jobs=[rows.row_to_job_status(row) for row in records],
            next_after=records[-1].name if records and len(records) == limit else None,
        )

    # --- definitions and overrides ------------------------------------------------------------------------

    async def sync(
        self,
        origin: str,
        definitions: Sequence[NewSchedule],
        *,
        keeping: Collection[str] | None = None,
    ) -> Synced:
        """Store the definitions of code or of files. Their overrides stay and have priority.

        Schedules of the origin without a definition stay; with `keeping`, only those of these files do.
        """
        return await self.write(edit.sync, origin, definitions, self.targets, keeping)

    @call(GET("/cron-overrides"), scope="read")
    async def overrides(self, *, after: str = "", limit: Limit = 100) -> list[CronOverride]:
        """List the overrides in the order of their names. `after` is the last name of the page before."""
        check_page(limit, 0)
        records = await self.read(queries.list_overrides, check_id(after, "after"), limit)
        return [rows.row_to_cron_override(row) for row in records]

    @call(GET("/cron-overrides/{name}"), scope="read")
    async def get_override(self, name: Id) -> CronOverride | None:
        """Get the override of a schedule that code or a file defines; null if there is none."""
        row = await self.read(queries.get_override, check_id(name, "name"))
        return None if row is None else rows.row_to_cron_override(row)

    @call(PATCH("/cron-overrides/{name}"), scope="write", errors=(NotFound, Conflict), repeatable=True)
    async def set_override(
        self,
        name: Id,
        *,
        enabled: bool | UnsetType = UNSET,
        schedule: str | UnsetType | None = UNSET,
    ) -> CronOverride:
        """Override `enabled` and the cron expression of a schedule that code or a file defines.

        An omitted field stays as it is; a `schedule` of null restores that of the definition.
        """
        change = OverrideChange(
            UNSET if enabled is UNSET else check_flag(enabled, "enabled"),
            check_expression(schedule) if isinstance(schedule, str) else schedule,
        )
        return rows.row_to_cron_override(
            await self.write(overrides.set_override, check_id(name, "name"), change)
        )

    @call(DELETE("/cron-overrides/{name}"), scope="write", errors=(NotFound,))
    async def clear_override(self, name: Id) -> None:
        """Delete an override, so that the definition applies again."""
        await self.write(overrides.clear_override, check_id(name, "name"))
