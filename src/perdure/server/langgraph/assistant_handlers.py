"""Assistants, their versions, and the graphs behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from perdure.kernel.errors import BadRequest, Conflict
from perdure.server.http.routes import Call
from perdure.server.langgraph import assistant_wire
from perdure.server.langgraph.rooms import views_of
from perdure.server.langgraph.wire import (
    MAX_PAGE,
    PAGE,
    answer,
    assistant_of,
    check_uuid,
    nothing,
    page,
    selected,
    version_of,
)
from perdure.server.native.rooms import assistants_of, threads_of

UNNAMED = "Untitled"
CONFIGURABLE = "configurable"


async def create_assistant(call: Call) -> Response:
    body: assistant_wire.AssistantCreate = call.body
    given = None if body.assistant_id is None else check_uuid(body.assistant_id, "assistant_id")
    config, context = mirrored(body.config, body.context)
    made = await assistants_of(call).create(
        body.graph_id,
        assistant_id=given,
        name=body.name or UNNAMED,
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata,
        if_exists=body.if_exists or "raise",
    )
    return answer(assistant_of(made))


def mirrored(
    config: Mapping[str, Any] | None, context: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """A config and a context of which each says what the other does; giving both is a contradiction."""
    configurable = (config or {}).get(CONFIGURABLE)
    if context and configurable:
        raise BadRequest("give either context or config.configurable, not both: context is the newer of them")
    if context:
        return {**(config or {}), CONFIGURABLE: dict(context)}, dict(context)
    if isinstance(configurable, dict):
        return dict(config or {}), dict(configurable)
    return (None if config is None else dict(config)), (None if context is None else dict(context))


async def get_assistant(call: Call) -> Response:
    return answer(assistant_of(await assistants_of(call).get(call.path["assistant_id"])))


async def update_assistant(call: Call) -> Response:
    body: assistant_wire.AssistantPatch = call.body
    config, context = mirrored(body.config, body.context)
    changed = await assistants_of(call).update(
        call.path["assistant_id"],
        agent=body.graph_id,
        name=body.name,
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata,
    )
    return answer(assistant_of(changed))


async def delete_assistant(call: Call) -> Response:
    """Remove an assistant, after its threads if they go too: what is repeated then finds what is left."""
    assistants, assistant_id = assistants_of(call), call.path["assistant_id"]
    assistant = await assistants.get(assistant_id)
    if assistant.system:
        raise Conflict(
            f"Assistant {assistant_id} is the graph {assistant.agent}'s own, and cannot be deleted"
        )
    if call.query.delete_threads:
        await _delete_threads(call, assistant_id)
    await assistants.delete(assistant_id)
    return nothing()


async def _delete_threads(call: Call, assistant_id: str) -> None:
    threads, of_it = threads_of(call), {"assistant_id": assistant_id}
    while found := (await threads.search_threads(metadata=of_it, values=False, limit=MAX_PAGE)).items:
        for thread in found:
            await threads.delete_thread(thread.thread_id)


# --- searching --------------------------------------------------------------------------------------------


async def search_assistants(call: Call) -> Response:
    body: assistant_wire.AssistantSearch = call.body
    limit, offset = body.limit or PAGE, body.offset or 0
    sort_by = body.sort_by or "created_at"
    found = await assistants_of(call).search(
        agent=body.graph_id,
        name=body.name,
        metadata=body.metadata,
        sort_by="agent" if sort_by == "graph_id" else sort_by,
        sort_order=body.sort_order or "desc",
        limit=limit,
        offset=offset,
    )
    items = [selected(assistant_of(each), body.select) for each in found.items]
    return page(items, found.total, limit, offset)


async def count_assistants(call: Call) -> Response:
    body: assistant_wire.AssistantCount = call.body
    count = await assistants_of(call).count(agent=body.graph_id, name=body.name, metadata=body.metadata)
    return answer(count)


async def list_versions(call: Call) -> Response:
    body: assistant_wire.VersionSearch = call.body
    found = await assistants_of(call).versions(
        call.path["assistant_id"],
        metadata=body.metadata,
        limit=body.limit or PAGE,
        offset=body.offset or 0,
    )
    return answer([version_of(each) for each in found])


async def set_latest(call: Call) -> Response:
    found = await assistants_of(call).set_latest(call.path["assistant_id"], call.body.version)
    return answer(assistant_of(found))


# --- graphs -----------------------------------------------------------------------------------------------


async def get_graph(call: Call) -> Response:
    return answer(await views_of(call).graph(call.path["assistant_id"], xray=call.query.xray or False))


async def get_schemas(call: Call) -> Response:
    return answer(await views_of(call).schemas(call.path["assistant_id"]))


async def get_subgraphs(call: Call) -> Response:
    found = await views_of(call).subgraphs(
        call.path["assistant_id"], namespace=call.path.get("namespace"), recurse=call.query.recurse
    )
    return answer(found)
