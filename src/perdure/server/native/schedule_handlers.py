"""Schedules, and what came of them."""

from __future__ import annotations

from msgspec import structs
from starlette.responses import Response

from perdure.client import native_wire as wire
from perdure.client import schedule_wire
from perdure.schedules.records import Firing, Schedule
from perdure.server.http.routes import Call
from perdure.server.native.handlers import paged
from perdure.server.native.rooms import metadata_of, schedules_of


async def list_schedules(call: Call) -> Response:
    query: schedule_wire.ScheduleQuery = call.query
    terms = structs.asdict(query) | {"metadata": metadata_of(query.metadata)}
    return paged(await schedules_of(call).search(**terms))


async def create_schedule(call: Call) -> Schedule:
    return await schedules_of(call).create(**structs.asdict(call.body))


async def get_schedule(call: Call) -> Schedule:
    return await schedules_of(call).get(call.path["schedule_id"])


async def update_schedule(call: Call) -> Schedule:
    return await schedules_of(call).update(call.path["schedule_id"], **structs.asdict(call.body))


async def delete_schedule(call: Call) -> Response:
    await schedules_of(call).delete(call.path["schedule_id"])
    return Response(status_code=204)


async def list_firings(call: Call) -> wire.Items[Firing]:
    query: wire.PageQuery = call.query
    found = await schedules_of(call).firings(call.path["schedule_id"], limit=query.limit, offset=query.offset)
    return wire.Items(items=found)
