"""Crons of the LangGraph protocol: schedules that start runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType, to_builtins
from starlette.responses import Response

from perdure.kernel.errors import BadRequest, NotFound
from perdure.schedules.records import Schedule
from perdure.schedules.service import RUN, SortField
from perdure.server.http.routes import Call
from perdure.server.langgraph.protocol import (
    PAGE,
    Limit,
    Metadata,
    Offset,
    RequestBody,
    Select,
    SortOrder,
    answer,
    check_uuid,
    get_user,
    iso,
    iso_or_none,
    no_content,
    page,
    search_page,
    uuid_or_none,
)
from perdure.server.langgraph.routing import (
    Authorization,
    LangGraphResource,
    Rule,
    before,
    config_with,
    counting,
    matches,
    searching,
)
from perdure.server.langgraph.run_requests import Durability, Nodes, RunBody, StreamMode, build_run_request
from perdure.server.langgraph.threads import THREAD
from perdure.threads.records import MultitaskStrategy, OnCompletion

crons = LangGraphResource("crons", "runs")

CRON = "/runs/crons/{cron_id}"
Record = dict[str, Any]

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
SORT_FIELDS: Final[dict[CronSort, SortField]] = {
    "cron_id": "schedule_id",
    "assistant_id": "assistant_id",
    "thread_id": "thread_id",
    "next_run_date": "next_at",
    "end_time": "end_time",
    "created_at": "created_at",
    "updated_at": "updated_at",
}
"""Sort fields, mapped to the names of schedules."""


def show_cron(schedule: Schedule) -> Record:
    """Return a cron, with the request of its runs in `payload`."""
    on_thread = schedule.thread_id is not None
    return {
        "cron_id": schedule.schedule_id,
        "assistant_id": schedule.assistant_id,
        "thread_id": schedule.thread_id,
        "on_run_completed": None if on_thread else schedule.payload.get("on_run_completed", "delete"),
        "end_time": iso_or_none(schedule.end_time),
        "schedule": schedule.expression,
        "timezone": schedule.timezone,
        "created_at": iso(schedule.created_at),
        "updated_at": iso(schedule.updated_at),
        "user_id": schedule.user_id,
        "payload": _build_payload(schedule),
        "next_run_date": iso_or_none(schedule.next_at),
        "metadata": schedule.metadata,
        "enabled": schedule.enabled,
    }


def _build_payload(schedule: Schedule) -> Record:
    shown = {"assistant_id": schedule.assistant_id, "schedule": schedule.expression, **schedule.payload}
    return {**shown, "metadata": schedule.metadata} if schedule.metadata else shown


async def _authorize_cron(request: Authorization, action: str, **value: Any) -> dict[str, Any]:
    """Check that the user may perform this action on the path's cron. Return the handler's value."""
    cron_id = request.call.path["cron_id"]
    value = {"cron_id": UUID(cron_id), **value}
    filter = await request.authorize("crons", action, value)
    if filter and not matches(filter, (await request.call.schedules.get(cron_id)).metadata):
        raise NotFound(f"Cron {cron_id} not found")
    return value


def on_cron(action: str) -> Rule:
    """Build a rule for an action on the path's cron."""

    async def check(request: Authorization) -> None:
        await _authorize_cron(request, action)

    return before(check)


# --- create -----------------------------------------------------------------------------------------------


class ScheduledRun(RequestBody, kw_only=True):
    """The request of a cron's runs."""

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


class CronCreate(ScheduledRun, kw_only=True):
    """A new cron."""

    assistant_id: Annotated[str, Meta(min_length=1)]
    schedule: str
    timezone: str | None = None
    end_time: datetime | None = None
    enabled: bool | None = None


@before
async def _authorize_create(request: Authorization) -> None:
    body: CronCreate = request.call.body
    thread_id = request.call.path.get("thread_id")
    value = {
        "payload": to_builtins(body),
        "schedule": body.schedule,
        "cron_id": None,
        "thread_id": uuid_or_none(thread_id),
        "user_id": request.user.identity,
        "end_time": body.end_time,
        "metadata": dict(body.metadata or {}),
    }
    await request.authorize_create("crons", "create", value)
    await request.authorize_execution(body.assistant_id)
    if thread_id is not None:
        await request.authorize_thread("read", thread_id)
    body.metadata = value["metadata"]


@crons.route(
    "POST",
    THREAD + "/runs/crons",
    rule=_authorize_create,
    scope="write",
    summary="Create a cron that runs on a thread",
    body=CronCreate,
    answer=Record,
    errors=(BadRequest, NotFound),
)
@crons.route(
    "POST",
    "/runs/crons",
    rule=_authorize_create,
    scope="write",
    summary="Create a cron whose runs get temporary threads",
    body=CronCreate,
    answer=Record,
    errors=(BadRequest, NotFound),
)
async def create_cron(call: Call) -> Response:
    body: CronCreate = call.body
    thread_id, user = call.path.get("thread_id"), get_user(call)
    payload, metadata = _payload_and_metadata(body, body.assistant_id)
    if user is not None:
        payload["config"] = config_with(user, payload.get("config") or {})
    if thread_id is not None:
        payload.pop("on_run_completed", None)
    created = await call.schedules.create_for(
        RUN,
        body.schedule,
        assistant_id=body.assistant_id,
        thread_id=thread_id,
        timezone=body.timezone,
        enabled=body.enabled is not False,
        end_time=_seconds(body.end_time),
        user_id=None if user is None else user.identity,
        metadata=metadata,
        payload=payload,
    )
    return answer(show_cron(created))


def _payload_and_metadata(body: ScheduledRun, assistant_id: str) -> tuple[Record, Record]:
    """Return the checked request of a cron's runs, and the metadata of the cron."""
    fields = {name: getattr(body, name) for name in ScheduledRun.__struct_fields__}
    payload = {name: to_builtins(value) for name, value in fields.items() if value is not None}
    run = {name: value for name, value in payload.items() if name in RunBody.__struct_fields__}
    request = build_run_request(msgspec.convert({**run, "assistant_id": assistant_id}, RunBody), None)
    if "config" in payload:
        payload["config"] = request.config
    if payload.pop("checkpoint_during", None) is not None:
        payload["durability"] = request.options["durability"]
    return payload, payload.pop("metadata", {})


def _seconds(time: datetime | None) -> float | None:
    """Convert a time to epoch seconds; without a time zone it is UTC."""
    if time is None:
        return None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


# --- search -----------------------------------------------------------------------------------------------


class CronCount(RequestBody, kw_only=True):
    """Filter of counted crons."""

    assistant_id: str | None = None
    thread_id: str | None = None
    metadata: Metadata | None = None


class CronSearch(CronCount, kw_only=True):
    """Search of crons: filter, fields and order."""

    enabled: bool | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    sort_by: CronSort | None = None
    sort_order: SortOrder | None = None
    select: Select[CronField] | None = None


async def _filters(call: Call, body: CronCount) -> dict[str, Any] | None:
    """Build the filters of a search. Return None if the assistant does not exist."""
    filters: dict[str, Any] = {"metadata": body.metadata, "target": RUN}
    if body.thread_id is not None:
        filters["thread_id"] = check_uuid(body.thread_id, "thread_id")
    if body.assistant_id is not None:
        assistant = (await call.assistants.resolve([body.assistant_id])).get(body.assistant_id)
        if assistant is None:
            return None
        filters["assistant_id"] = assistant.assistant_id
    return filters


@crons.route(
    "POST",
    "/runs/crons/search",
    rule=searching("crons"),
    scope="read",
    summary="Search crons, the newest first",
    body=CronSearch,
    answer=list[Record],
)
async def search_crons(call: Call) -> Response:
    body: CronSearch = call.body
    limit, offset = body.limit or PAGE, body.offset or 0
    filters = await _filters(call, body)
    if filters is None:
        return page([], 0, limit, offset)
    result = await call.schedules.search(
        **filters,
        enabled=body.enabled,
        sort_by=SORT_FIELDS[body.sort_by or "created_at"],
        sort_order=body.sort_order or "desc",
        limit=limit,
        offset=offset,
    )
    return search_page(result, show_cron, body.select)


@crons.route(
    "POST",
    "/runs/crons/count",
    rule=counting("crons", CronSearch, search_crons),
    scope="read",
    summary="Count crons",
    body=CronCount,
    answer=int,
)
async def count_crons(call: Call) -> Response:
    filters = await _filters(call, call.body)
    return answer(0 if filters is None else (await call.schedules.search(**filters, limit=0)).total)


# --- one cron ---------------------------------------------------------------------------------------------


@crons.route(
    "GET",
    CRON,
    rule=on_cron("read"),
    scope="read",
    summary="Get a cron",
    answer=Record,
    errors=(NotFound,),
)
async def get_cron(call: Call) -> Response:
    return answer(show_cron(await _get_schedule(call)))


async def _get_schedule(call: Call) -> Schedule:
    """Return the path's cron. Schedules with other targets are not crons of this protocol."""
    cron_id = call.path["cron_id"]
    schedule = await call.schedules.get(cron_id)
    if schedule.target != RUN or schedule.schedule_id != cron_id:
        raise NotFound(f"Cron {cron_id} not found")
    return schedule


class CronPatch(ScheduledRun, kw_only=True):
    """The fields of a cron to change; an `end_time` of null removes its end."""

    schedule: str | None = None
    timezone: str | None = None
    end_time: datetime | UnsetType | None = UNSET
    enabled: bool | None = None


@before
async def _authorize_update(request: Authorization) -> None:
    body: CronPatch = request.call.body
    metadata: dict[str, Any] = {} if body.metadata is None else {"metadata": dict(body.metadata)}
    payload = {name: value for name, value in to_builtins(body).items() if value is not None}
    value = await _authorize_cron(request, "update", payload=payload, schedule=body.schedule, **metadata)
    if value.get("metadata"):
        body.metadata = value["metadata"]


@crons.route(
    "PATCH",
    CRON,
    rule=_authorize_update,
    scope="write",
    summary="Change, pause or resume a cron",
    body=CronPatch,
    answer=Record,
    errors=(BadRequest, NotFound),
)
async def update_cron(call: Call) -> Response:
    body: CronPatch = call.body
    if body == CronPatch():
        raise BadRequest("nothing to change: the body names no field")
    await _get_schedule(call)
    payload, metadata = _payload_and_metadata(body, "any")
    user = get_user(call)
    if user is not None and "config" in payload:
        payload["config"] = config_with(user, payload["config"])
    changed = await call.schedules.update(
        call.path["cron_id"],
        expression=UNSET if body.schedule is None else body.schedule,
        timezone=UNSET if body.timezone is None else body.timezone,
        enabled=UNSET if body.enabled is None else body.enabled,
        end_time=UNSET if body.end_time is UNSET else _seconds(body.end_time),
        metadata=metadata,
        payload=payload,
    )
    return answer(show_cron(changed))


@crons.route(
    "DELETE",
    CRON,
    rule=on_cron("delete"),
    scope="write",
    summary="Delete a cron; its runs stay",
    status=204,
    errors=(NotFound,),
)
async def delete_cron(call: Call) -> Response:
    await call.schedules.delete((await _get_schedule(call)).schedule_id)
    return no_content()
