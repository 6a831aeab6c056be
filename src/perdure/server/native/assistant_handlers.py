"""Assistants and their versions."""

from __future__ import annotations

from msgspec import structs
from starlette.responses import Response

from perdure.assistants.records import Assistant
from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.server.http.routes import Call
from perdure.server.native.handlers import paged
from perdure.server.native.rooms import assistants_of, metadata_of


async def list_assistants(call: Call) -> Response:
    query: run_wire.AssistantQuery = call.query
    terms = structs.asdict(query) | {"metadata": metadata_of(query.metadata)}
    return paged(await assistants_of(call).search(**terms))


async def create_assistant(call: Call) -> Assistant:
    wanted = structs.asdict(call.body)
    return await assistants_of(call).create(**wanted, idempotency_key=call.idempotency_key)


async def get_assistant(call: Call) -> Assistant:
    return await assistants_of(call).get(call.path["assistant_id"])


async def update_assistant(call: Call) -> Assistant:
    return await assistants_of(call).update(call.path["assistant_id"], **structs.asdict(call.body))


async def delete_assistant(call: Call) -> Response:
    await assistants_of(call).delete(call.path["assistant_id"])
    return Response(status_code=204)


async def list_versions(call: Call) -> wire.Items[Assistant]:
    query: wire.PageQuery = call.query
    found = await assistants_of(call).versions(
        call.path["assistant_id"], limit=query.limit, offset=query.offset
    )
    return wire.Items(items=found)


async def set_latest(call: Call) -> Assistant:
    return await assistants_of(call).set_latest(call.path["assistant_id"], call.body.version)
