"""Assistants of the LangGraph protocol, their versions and their graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta
from starlette.responses import Response

from perdure.assistants.records import Assistant, IfExists
from perdure.kernel.errors import AgentUnavailable, BadRequest, Conflict, NotFound, NotSupported
from perdure.server.http.routes import Call
from perdure.server.langgraph.protocol import (
    MAX_PAGE,
    PAGE,
    Limit,
    Metadata,
    Offset,
    RequestBody,
    Select,
    SortOrder,
    answer,
    check_uuid_or_none,
    get_graphs,
    iso,
    no_content,
    search_page,
    uuid_or_none,
)
from perdure.server.langgraph.routing import (
    CONFIGURABLE,
    SCAN,
    Authorization,
    LangGraphResource,
    before,
    check_not_taken,
    counting,
    equalities,
    matches,
    on_assistant,
    searching,
)

assistants = LangGraphResource("assistants")

ASSISTANT = "/assistants/{assistant_id}"
UNNAMED = "Untitled"
MAX_DEPTH = 1000

AssistantField = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "metadata",
    "version",
    "created_at",
    "updated_at",
]
AssistantSort = Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"]


class VersionShape(TypedDict):
    """A version of an assistant."""

    assistant_id: str
    graph_id: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    version: int
    created_at: str


class AssistantShape(VersionShape):
    """An assistant, in its current version."""

    updated_at: str


def show_assistant(assistant: Assistant) -> AssistantShape:
    return {
        **show_version(assistant),
        "created_at": iso(assistant.created_at),
        "updated_at": iso(assistant.updated_at),
    }


def show_version(assistant: Assistant) -> VersionShape:
    """Return a version of an assistant, which never changes. This protocol calls its agent a graph."""
    return {
        "assistant_id": assistant.assistant_id,
        "graph_id": assistant.agent,
        "name": assistant.name,
        "description": assistant.description,
        "config": assistant.config,
        "context": assistant.context,
        "metadata": assistant.metadata,
        "version": assistant.version,
        "created_at": iso(assistant.updated_at),
    }


# --- create -----------------------------------------------------------------------------------------------


class AssistantCreate(RequestBody, kw_only=True):
    """A new assistant of a graph."""

    graph_id: str
    assistant_id: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: Metadata | None = None
    if_exists: IfExists | None = None
    name: str | None = None
    description: str | None = None


@before
async def _authorize_create(request: Authorization) -> None:
    body: AssistantCreate = request.call.body
    assistant_id = check_uuid_or_none(body.assistant_id, "assistant_id")
    value: dict[str, Any] = {
        "assistant_id": uuid_or_none(assistant_id),
        "graph_id": body.graph_id,
        "config": body.config or {},
        "context": body.context or {},
        "metadata": dict(body.metadata or {}),
        "if_exists": body.if_exists or "raise",
        "name": body.name,
    }
    filter = await request.authorize_create("assistants", "create", value)
    if assistant_id is not None and filter:
        await check_not_taken(request.call.assistants.get, assistant_id, filter)
    body.metadata = value["metadata"]


@assistants.route(
    "POST",
    "/assistants",
    rule=_authorize_create,
    scope="write",
    summary="Create an assistant of a graph",
    body=AssistantCreate,
    answer=AssistantShape,
    errors=(BadRequest, NotFound, Conflict),
)
async def create_assistant(call: Call) -> Response:
    body: AssistantCreate = call.body
    config, context = mirrored(body.config, body.context)
    created = await call.assistants.create(
        body.graph_id,
        assistant_id=check_uuid_or_none(body.assistant_id, "assistant_id"),
        name=body.name or UNNAMED,
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata,
        if_exists=body.if_exists or "raise",
    )
    return answer(show_assistant(created))


def mirrored(
    config: Mapping[str, Any] | None, context: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return config and context. If the caller sent only one of the two, the other has the same content."""
    configurable = (config or {}).get(CONFIGURABLE)
    if context and configurable:
        raise BadRequest("give either context or config.configurable, not both: context is the newer of them")
    if context:
        return {**(config or {}), CONFIGURABLE: dict(context)}, dict(context)
    if isinstance(configurable, dict):
        return dict(config or {}), dict(configurable)
    return (None if config is None else dict(config)), (None if context is None else dict(context))


# --- search -----------------------------------------------------------------------------------------------


class AssistantCount(RequestBody, kw_only=True):
    """Filter of counted assistants."""

    metadata: Metadata | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount, kw_only=True):
    """Search of assistants: filter, fields and order."""

    limit: Limit | None = None
    offset: Offset | None = None
    sort_by: AssistantSort | None = None
    sort_order: SortOrder | None = None
    select: Select[AssistantField] | None = None


@assistants.route(
    "POST",
    "/assistants/search",
    rule=searching("assistants"),
    scope="read",
    summary="Search assistants, the newest first",
    body=AssistantSearch,
    answer=list[dict[str, Any]],
)
async def search_assistants(call: Call) -> Response:
    body: AssistantSearch = call.body
    sort_by = body.sort_by or "created_at"
    result = await call.assistants.search(
        agent=body.graph_id,
        name=body.name,
        metadata=body.metadata,
        sort_by="agent" if sort_by == "graph_id" else sort_by,
        sort_order=body.sort_order or "desc",
        limit=body.limit or PAGE,
        offset=body.offset or 0,
    )
    return search_page(result, show_assistant, body.select)


@assistants.route(
    "POST",
    "/assistants/count",
    rule=counting("assistants", AssistantSearch, search_assistants),
    scope="read",
    summary="Count assistants",
    body=AssistantCount,
    answer=int,
)
async def count_assistants(call: Call) -> Response:
    body: AssistantCount = call.body
    count = await call.assistants.count(agent=body.graph_id, name=body.name, metadata=body.metadata)
    return answer(count)


# --- one assistant ----------------------------------------------------------------------------------------


@assistants.route(
    "GET",
    ASSISTANT,
    rule=on_assistant("read"),
    scope="read",
    summary="Get an assistant",
    answer=AssistantShape,
    errors=(NotFound,),
)
async def get_assistant(call: Call) -> Response:
    return answer(show_assistant(await call.assistants.get(call.path["assistant_id"])))


class AssistantPatch(RequestBody, kw_only=True):
    """The next version of an assistant; a field that is left out keeps its value."""

    graph_id: str | None = None
    config: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    metadata: Metadata | None = None
    name: str | None = None
    description: str | None = None


@before
async def _authorize_update(request: Authorization) -> None:
    body: AssistantPatch = request.call.body
    value = await request.authorize_assistant(
        "update",
        request.call.path["assistant_id"],
        graph_id=body.graph_id,
        config=body.config or {},
        context=body.context or {},
        metadata=dict(body.metadata or {}),
        name=body.name,
    )
    body.metadata = value["metadata"]


@assistants.route(
    "PATCH",
    ASSISTANT,
    rule=_authorize_update,
    scope="write",
    summary="Create the next version of an assistant",
    body=AssistantPatch,
    answer=AssistantShape,
    errors=(BadRequest, NotFound, Conflict),
)
async def update_assistant(call: Call) -> Response:
    body: AssistantPatch = call.body
    config, context = mirrored(body.config, body.context)
    changed = await call.assistants.update(
        call.path["assistant_id"],
        agent=body.graph_id,
        name=body.name,
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata,
    )
    return answer(show_assistant(changed))


class DeleteQuery(msgspec.Struct, kw_only=True):
    """Whether to delete the threads of the assistant too."""

    delete_threads: bool = False


@before
async def _authorize_delete(request: Authorization) -> None:
    """Delete the assistant's threads, except threads that the user must not delete."""
    call, assistant_id = request.call, request.call.path["assistant_id"]
    await request.authorize_assistant("delete", assistant_id)
    if not call.query.delete_threads:
        return
    filter = await request.authorize("threads", "delete", {"metadata": {"assistant_id": assistant_id}})
    if filter:
        await _delete_matching_threads(call, assistant_id, filter)
        call.query.delete_threads = False


async def _delete_matching_threads(call: Call, assistant_id: str, filter: Mapping[str, Any]) -> None:
    wanted, skipped = {"assistant_id": assistant_id, **equalities(filter)}, 0
    while threads := (
        await call.threads.search_threads(metadata=wanted, values=False, limit=SCAN, offset=skipped)
    ).items:
        matching = [thread for thread in threads if matches(filter, thread.metadata)]
        skipped += len(threads) - len(matching)
        for thread in matching:
            await call.threads.delete_thread(thread.thread_id)


@assistants.route(
    "DELETE",
    ASSISTANT,
    rule=_authorize_delete,
    scope="write",
    summary="Delete an assistant, and its threads if asked to; that of a graph itself cannot be deleted",
    query=DeleteQuery,
    status=204,
    errors=(NotFound, Conflict),
)
async def delete_assistant(call: Call) -> Response:
    """Delete the threads before the assistant, so that a repeated request deletes the rest."""
    assistant_id = call.path["assistant_id"]
    assistant = await call.assistants.get(assistant_id)
    if assistant.system:
        raise Conflict(
            f"Assistant {assistant_id} is the graph {assistant.agent}'s own, and cannot be deleted"
        )
    if call.query.delete_threads:
        await _delete_threads(call, assistant_id)
    await call.assistants.delete(assistant_id)
    return no_content()


async def _delete_threads(call: Call, assistant_id: str) -> None:
    wanted = {"assistant_id": assistant_id}
    while threads := (await call.threads.search_threads(metadata=wanted, values=False, limit=MAX_PAGE)).items:
        for thread in threads:
            await call.threads.delete_thread(thread.thread_id)


# --- versions ---------------------------------------------------------------------------------------------


class VersionSearch(RequestBody, kw_only=True):
    """Search of an assistant's versions, newest first."""

    metadata: Metadata | None = None
    limit: Limit | None = None
    offset: Offset | None = None


@assistants.route(
    "POST",
    ASSISTANT + "/versions",
    rule=on_assistant("read"),
    scope="read",
    summary="List the versions of an assistant, the newest first",
    body=VersionSearch,
    answer=list[VersionShape],
    errors=(NotFound,),
)
async def list_versions(call: Call) -> Response:
    body: VersionSearch = call.body
    versions = await call.assistants.versions(
        call.path["assistant_id"], metadata=body.metadata, limit=body.limit or PAGE, offset=body.offset or 0
    )
    return answer([show_version(version) for version in versions])


class VersionChange(RequestBody, kw_only=True):
    """The version to make current."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]


@assistants.route(
    "POST",
    ASSISTANT + "/latest",
    rule=on_assistant("update"),
    scope="write",
    summary="Make a version of an assistant the current one",
    body=VersionChange,
    answer=AssistantShape,
    errors=(NotFound, Conflict),
)
async def set_latest(call: Call) -> Response:
    assistant = await call.assistants.set_latest(call.path["assistant_id"], call.body.version)
    return answer(show_assistant(assistant))


# --- graphs -----------------------------------------------------------------------------------------------


class GraphShape(TypedDict):
    """The nodes and edges of a graph."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class SchemasShape(TypedDict):
    """The input, output, state, config and context of a graph, as JSON Schema."""

    graph_id: NotRequired[str]
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    state_schema: dict[str, Any] | None
    config_schema: dict[str, Any] | None
    context_schema: dict[str, Any] | None


class GraphQuery(msgspec.Struct, kw_only=True):
    """Subgraphs to show: none, all, or a number of levels."""

    xray: bool | Annotated[int, Meta(ge=1, le=MAX_DEPTH)] | None = None


@assistants.route(
    "GET",
    ASSISTANT + "/graph",
    takes_name=True,
    rule=on_assistant("read"),
    scope="read",
    summary="Get the nodes and edges of an assistant's graph",
    query=GraphQuery,
    answer=GraphShape,
    errors=(NotFound, NotSupported, AgentUnavailable),
)
async def get_graph(call: Call) -> Response:
    return answer(await get_graphs(call).graph(call.path["assistant_id"], xray=call.query.xray or False))


@assistants.route(
    "GET",
    ASSISTANT + "/schemas",
    rule=on_assistant("read"),
    scope="read",
    summary="Get the JSON Schemas of an assistant's graph",
    answer=SchemasShape,
    errors=(NotFound, NotSupported, AgentUnavailable),
)
async def get_schemas(call: Call) -> Response:
    return answer(await get_graphs(call).schemas(call.path["assistant_id"]))


class SubgraphQuery(msgspec.Struct, kw_only=True):
    """Whether to show subgraphs of subgraphs too."""

    recurse: bool = False


@assistants.route(
    "GET",
    ASSISTANT + "/subgraphs/{namespace}",
    rule=on_assistant("read"),
    scope="read",
    summary="Get the JSON Schemas of a subgraph of an assistant's graph",
    query=SubgraphQuery,
    answer=dict[str, SchemasShape],
    errors=(NotFound, NotSupported, AgentUnavailable),
)
@assistants.route(
    "GET",
    ASSISTANT + "/subgraphs",
    rule=on_assistant("read"),
    scope="read",
    summary="Get the JSON Schemas of the subgraphs of an assistant's graph",
    query=SubgraphQuery,
    answer=dict[str, SchemasShape],
    errors=(NotFound, NotSupported, AgentUnavailable),
)
async def get_subgraphs(call: Call) -> Response:
    subgraphs = await get_graphs(call).subgraphs(
        call.path["assistant_id"], namespace=call.path.get("namespace"), recurse=call.query.recurse
    )
    return answer(subgraphs)
