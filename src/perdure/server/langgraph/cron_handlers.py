"""Crons: schedules that start runs."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from perdure.kernel.errors import BadRequest
from perdure.schedules.records import Schedule
from perdure.schedules.service import RUN, SortField
from perdure.server.http.routes import Call
from perdure.server.langgraph import cron_wire
from perdure.server.langgraph.auth_pass import known_to, user_of
from perdure.server.langgraph.cron_wire import SORTED_BY, cron_of, seconds_of
from perdure.server.langgraph.run_requests import RunBody, request_of
from perdure.server.langgraph.wire import PAGE, answer, check_uuid, nothing, page, selected
from perdure.server.native.rooms import assistants_of, schedules_of


async def create_cron(call: Call) -> Response:
    return answer(cron_of(await _create(call, None)))


async def create_thread_cron(call: Call) -> Response:
    return answer(cron_of(await _create(call, call.path["thread_id"])))


async def _create(call: Call, thread_id: str | None) -> Schedule:
    body: cron_wire.CronCreate = call.body
    payload, metadata = _parts(body, body.assistant_id)
    user = user_of(call)
    if user is not None:
        payload["config"] = known_to(user, payload.get("config") or {})
    if thread_id is not None:
        payload.pop("on_run_completed", None)
    return await schedules_of(call).create_for(
        RUN,
        body.schedule,
        assistant_id=body.assistant_id,
        thread_id=thread_id,
        timezone=body.timezone,
        enabled=body.enabled is not False,
        end_time=seconds_of(body.end_time),
        user_id=None if user is None else user.identity,
        metadata=metadata,
        payload=payload,
    )


def _parts(body: cron_wire.Scheduled, assistant_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a cron's runs are asked for, checked as a run is, and its metadata."""
    asked = cron_wire.given(body)
    fields = {name: value for name, value in asked.items() if name in RunBody.__struct_fields__}
    request = request_of(msgspec.convert({**fields, "assistant_id": assistant_id}, RunBody), None)
    if "config" in asked:
        asked["config"] = request.config
    if asked.pop("checkpoint_during", None) is not None:
        asked["durability"] = request.options["durability"]
    return asked, asked.pop("metadata", {})


async def get_cron(call: Call) -> Response:
    return answer(cron_of(await schedules_of(call).get(call.path["cron_id"])))


async def update_cron(call: Call) -> Response:
    body: cron_wire.CronPatch = call.body
    if body == cron_wire.CronPatch():
        raise BadRequest("there is nothing to change: the body names no field")
    payload, metadata = _parts(body, "any")
    user = user_of(call)
    if user is not None and "config" in payload:
        payload["config"] = known_to(user, payload["config"])
    changed = await schedules_of(call).update(
        call.path["cron_id"],
        expression=UNSET if body.schedule is None else body.schedule,
        timezone=UNSET if body.timezone is None else body.timezone,
        enabled=UNSET if body.enabled is None else body.enabled,
        end_time=UNSET if body.end_time is UNSET else seconds_of(body.end_time),
        metadata=metadata,
        payload=payload,
    )
    return answer(cron_of(changed))


async def delete_cron(call: Call) -> Response:
    await schedules_of(call).delete(call.path["cron_id"])
    return nothing()


# --- searching --------------------------------------------------------------------------------------------


async def search_crons(call: Call) -> Response:
    body: cron_wire.CronSearch = call.body
    limit, offset = body.limit or PAGE, body.offset or 0
    wanted = await _wanted(call, body)
    if wanted is None:
        return page([], 0, limit, offset)
    sort_by = body.sort_by or "created_at"
    found = await schedules_of(call).search(
        **wanted,
        enabled=body.enabled,
        sort_by=cast("SortField", SORTED_BY.get(sort_by, sort_by)),
        sort_order=body.sort_order or "desc",
        limit=limit,
        offset=offset,
    )
    items = [selected(cron_of(each), body.select) for each in found.items]
    return page(items, found.total, limit, offset)


async def count_crons(call: Call) -> Response:
    wanted = await _wanted(call, call.body)
    return answer(0 if wanted is None else (await schedules_of(call).search(**wanted, limit=0)).total)


async def _wanted(call: Call, body: cron_wire.CronCount) -> dict[str, Any] | None:
    """What is searched for, or None if nothing can be found: there is no assistant of that name."""
    wanted: dict[str, Any] = {"metadata": body.metadata}
    if body.thread_id is not None:
        wanted["thread_id"] = check_uuid(body.thread_id, "thread_id")
    if body.assistant_id is not None:
        assistant = (await assistants_of(call).resolve([body.assistant_id])).get(body.assistant_id)
        if assistant is None:
            return None
        wanted["assistant_id"] = assistant.assistant_id
    return wanted
