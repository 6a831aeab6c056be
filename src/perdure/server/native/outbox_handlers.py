"""The outbox: what is to happen outside, what has happened, and what did not."""

from __future__ import annotations

from starlette.responses import Response

from perdure.client import run_wire
from perdure.kernel.pages import PaginatedResult
from perdure.outbox.model import Effect
from perdure.server.http.routes import Call
from perdure.server.native.handlers import paged
from perdure.server.native.rooms import outbox_of


async def list_effects(call: Call) -> Response:
    query: run_wire.OutboxQuery = call.query
    found = await outbox_of(call).list(
        namespace=call.caller.namespace,
        consumer=query.consumer,
        status=query.status,
        subject=query.subject,
        limit=query.limit,
        offset=query.offset,
    )
    page = PaginatedResult(items=found.items, limit=query.limit, offset=query.offset, total=found.total)
    return paged(page)


async def get_effect(call: Call) -> Effect:
    return await outbox_of(call).get(call.path["effect_id"], namespace=call.caller.namespace)


async def retry_effect(call: Call) -> Effect:
    return await outbox_of(call).retry(
        call.path["effect_id"], namespace=call.caller.namespace, actor=call.caller.actor
    )
