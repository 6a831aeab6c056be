"""The object that callers of this room hold: the schedules of one namespace, and who fires them all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from perdure.access.operations import ensure_namespace
from perdure.kernel.errors import BadQuery, InvalidInput, NotFound, StorageClosed, StorageError
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.storage.filters import check_page
from perdure.kernel.storage.port import Operation, Storage
from perdure.schedules import model, operations
from perdure.schedules.model import Change, NewSchedule, Order, Search, Targets
from perdure.schedules.operations import ANY, CHANNEL, FIRE_ROWS
from perdure.schedules.records import Firing, Schedule
from perdure.schedules.times import check_expression, check_timezone

T = TypeVar("T")

POLL_SECONDS = 5.0
LEAST_REST = 0.05
"""What is due and yet not there is being fired by another process."""
RUN = "run"
SORT_FIELDS = (
    "schedule_id",
    "assistant_id",
    "thread_id",
    "next_at",
    "end_time",
    "created_at",
    "updated_at",
)

logger = logging.getLogger(__name__)


class Schedules:
    """The schedules of one namespace. With an `actor` every write leaves an entry in the audit.

    `start` fires those of every namespace. Any number of processes may fire from one database.
    """

    def __init__(
        self,
        storage: Storage,
        targets: Targets,
        *,
        namespace: str = "default",
        actor: str | None = None,
        poll: float = POLL_SECONDS,
    ) -> None:
        self.storage = storage
        self.targets = targets
        self.namespace = namespace
        self.actor = actor
        self.poll = poll
        self._number: int | None = None
        self._firing: asyncio.Task[None] | None = None

    def acting_as(self, namespace: str, actor: str | None) -> Schedules:
        """The schedules of a namespace of the same database, changed in the name of `actor`."""
        return Schedules(self.storage, self.targets, namespace=namespace, actor=actor)

    async def _ns(self) -> int:
        if self._number is None:
            self._number = await self.storage.run(ensure_namespace, self.namespace)
        return self._number

    async def _write(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.run(operation, self.actor, *args, self.targets, ns=await self._ns())

    async def _read(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.read(operation, *args, ns=await self._ns())

    # --- making and changing ----------------------------------------------------------------------------

    async def create(
        self,
        expression: str,
        *,
        target: str = RUN,
        assistant_id: str | None = None,
        thread_id: str | None = None,
        timezone: str | None = None,
        enabled: bool = True,
        end_time: float | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        payload: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Make a schedule. `assistant_id` is an id or the name of an agent; `payload` is for the target."""
        request = NewSchedule(
            target=target,
            expression=check_expression(expression),
            timezone=check_timezone(timezone),
            enabled=_check_flag(enabled),
            end_at=model.check_end(end_time),
            assistant=model.optional_id(assistant_id, "assistant_id"),
            thread_id=model.optional_id(thread_id, "thread_id"),
            user_id=model.optional_id(user_id, "user_id"),
            metadata=model.check_metadata(metadata),
            payload=model.check_object(payload, "payload"),
        )
        self.targets[target].check(_order(request))
        (schedule_id,) = await self._write(operations.create, [request])
        return await self.get(schedule_id)

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
        change = Change(
            expression=UNSET if expression is UNSET else check_expression(expression),
            timezone=UNSET if timezone is UNSET else check_timezone(timezone),
            enabled=UNSET if enabled is UNSET else _check_flag(enabled),
            end_at=UNSET if end_time is UNSET else model.check_end(end_time),
            metadata=model.check_metadata(metadata),
            payload=model.check_object(payload, "payload"),
        )
        await self._write(operations.update, model.check_id(schedule_id, "cron_id"), change)
        return await self.get(schedule_id)

    async def pause(self, schedule_id: str) -> Schedule:
        """Let it fire no more until it is resumed."""
        return await self.update(schedule_id, enabled=False)

    async def resume(self, schedule_id: str) -> Schedule:
        """Let it fire again, from its next time on: what came while it was paused is not made up for."""
        return await self.update(schedule_id, enabled=True)

    async def delete(self, schedule_id: str) -> None:
        """Remove a schedule; what it has started stays."""
        checked = model.check_id(schedule_id, "cron_id")
        await self.storage.run(operations.delete, self.actor, checked, ns=await self._ns())

    # --- reading ----------------------------------------------------------------------------------------

    async def get(self, schedule_id: str) -> Schedule:
        (row,) = await self._read(operations.get, [model.check_id(schedule_id, "cron_id")])
        if row is None:
            raise NotFound(f"Cron {schedule_id} not found")
        return model.schedule_of(row)

    async def firings(self, schedule_id: str, *, limit: int = 10, offset: int = 0) -> list[Firing]:
        """What came of its latest times, the newest first."""
        check_page(limit, offset)
        most = model.KEPT_FIRINGS if limit == -1 else min(limit, model.KEPT_FIRINGS)
        checked = model.check_id(schedule_id, "cron_id")
        return [model.firing_of(row) for row in await self._read(operations.firings, checked, most, offset)]

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
        """Schedules of an assistant, of a thread, with at least this metadata; limit 0 only counts."""
        check_page(limit, offset)
        if sort_by not in SORT_FIELDS:
            raise BadQuery(f"Invalid sort_by: {sort_by}, allowed fields are: {', '.join(SORT_FIELDS)}")
        query = Search(
            model.optional_id(assistant_id, "assistant_id"),
            model.optional_id(thread_id, "thread_id"),
            enabled,
            model.check_metadata(metadata),
            sort_by,
            sort_order,
            limit,
            offset,
        )
        rows, total = await self._read(operations.search, query)
        items = [model.schedule_of(row) for row in rows]
        return PaginatedResult(items=items, limit=limit, offset=offset, total=total)

    # --- firing -----------------------------------------------------------------------------------------

    async def fire_due(self) -> float | None:
        """Fire what is due in every namespace; returns the seconds until something is due again."""
        names = self.targets.names()
        for ns in await self.storage.read(operations.due_namespaces, names):
            while await self._fire_some(ns) == FIRE_ROWS:
                pass
        return await self.storage.read(operations.until_next, names)

    async def _fire_some(self, ns: int) -> int:
        try:
            return await self.storage.run(operations.fire, self.targets, ns=ns)
        except StorageError:
            raise
        except Exception:
            # One of them stands in the way of the others: each alone.
            logger.exception("schedules could not be fired together")
            return await self._fire_alone(ns)

    async def _fire_alone(self, ns: int) -> int:
        found = await self.storage.read(operations.due, self.targets.names(), ns=ns)
        for schedule_id, due_at in found:
            try:
                await self.storage.run(operations.fire_one, schedule_id, due_at, self.targets, ns=ns)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - kept with the schedule, which goes on
                text = model.error_text(error)
                await self.storage.run(operations.fail_one, schedule_id, due_at, text, ns=ns)
        return len(found)

    def start(self) -> None:
        """Begin to fire whatever is due, in the running event loop; a second call does nothing."""
        if self._firing is None:
            self._firing = asyncio.get_running_loop().create_task(self._keep_firing())

    async def stop(self) -> None:
        """Fire no more. A firing that has begun comes to its end."""
        firing, self._firing = self._firing, None
        if firing is not None:
            firing.cancel()
            await asyncio.wait([firing])

    async def _keep_firing(self) -> None:
        with self.storage.signals.watch(CHANNEL, [ANY]) as watch:
            try:
                while True:
                    await watch.changed(await self._fire_and_rest())
            except StorageClosed:
                logger.info("schedules no longer fire: the storage is closed")

    async def _fire_and_rest(self) -> float:
        """Fire what is due; returns for how long there is nothing to do."""
        try:
            wait = await self.fire_due()
        except StorageClosed:
            raise
        except Exception as error:  # noqa: BLE001 - nobody else would fire in its place
            logger.warning("schedules cannot be fired, trying again in %s s: %s", self.poll, error)
            return self.poll
        return self.poll if wait is None else max(min(wait, self.poll), LEAST_REST)


def _check_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"enabled is {value!r}; it must be true or false")
    return value


def _order(request: NewSchedule) -> Order:
    """What the target would be asked for."""
    return Order(
        schedule_id="",
        due_at=0,
        assistant_id=request.assistant,
        thread_id=request.thread_id,
        metadata=request.metadata,
        payload=request.payload,
    )
