"""The LangGraph protocol's routes of assistants."""

from __future__ import annotations

from typing import Any

from perdure.kernel.errors import BadRequest, Conflict, NotFound, NotSupported
from perdure.server.langgraph import assistant_handlers as handlers
from perdure.server.langgraph import assistant_wire as wire
from perdure.server.langgraph.declare import declaring
from perdure.server.langgraph.shapes import AssistantShape, GraphShape, SchemasShape, VersionShape

_assistants = declaring("assistants")
_ONE = "/assistants/{assistant_id}"

_RECORDS = (
    _assistants(
        "POST",
        "/assistants",
        handlers.create_assistant,
        "write",
        "Make an assistant of a graph",
        body=wire.AssistantCreate,
        answer=AssistantShape,
        errors=(BadRequest, NotFound, Conflict, NotSupported),
    ),
    _assistants(
        "POST",
        "/assistants/search",
        handlers.search_assistants,
        "read",
        "Search assistants, the newest first",
        body=wire.AssistantSearch,
        answer=list[dict[str, Any]],
        errors=(NotSupported,),
    ),
    _assistants(
        "POST",
        "/assistants/count",
        handlers.count_assistants,
        "read",
        "Count assistants",
        body=wire.AssistantCount,
        answer=int,
        errors=(NotSupported,),
    ),
    _assistants(
        "GET",
        _ONE,
        handlers.get_assistant,
        "read",
        "An assistant",
        answer=AssistantShape,
        errors=(NotFound, NotSupported),
    ),
    _assistants(
        "PATCH",
        _ONE,
        handlers.update_assistant,
        "write",
        "Make the next version of an assistant",
        body=wire.AssistantPatch,
        answer=AssistantShape,
        errors=(BadRequest, NotFound, Conflict, NotSupported),
    ),
    _assistants(
        "DELETE",
        _ONE,
        handlers.delete_assistant,
        "write",
        "Remove an assistant, and its threads if asked to; a graph's own stays",
        query=wire.DeleteQuery,
        status=204,
        errors=(NotFound, Conflict, NotSupported),
    ),
    _assistants(
        "POST",
        _ONE + "/versions",
        handlers.list_versions,
        "read",
        "What an assistant was in its versions, the newest first",
        body=wire.VersionSearch,
        answer=list[VersionShape],
        errors=(NotFound, NotSupported),
    ),
    _assistants(
        "POST",
        _ONE + "/latest",
        handlers.set_latest,
        "write",
        "Go back, or forth, to a version",
        body=wire.VersionChange,
        answer=AssistantShape,
        errors=(NotFound, Conflict, NotSupported),
    ),
)

_GRAPHS = (
    _assistants(
        "GET",
        _ONE + "/graph",
        handlers.get_graph,
        "read",
        "The nodes and edges of an assistant's graph",
        query=wire.GraphQuery,
        answer=GraphShape,
        errors=(NotFound, NotSupported),
    ),
    _assistants(
        "GET",
        _ONE + "/schemas",
        handlers.get_schemas,
        "read",
        "What an assistant's graph takes, gives and keeps, as JSON Schema",
        answer=SchemasShape,
        errors=(NotFound, NotSupported),
    ),
    *(
        _assistants(
            "GET",
            _ONE + path,
            handlers.get_subgraphs,
            "read",
            "The graphs within an assistant's graph, with their schemas",
            query=wire.SubgraphQuery,
            answer=dict[str, SchemasShape],
            errors=(NotFound, NotSupported),
        )
        for path in ("/subgraphs", "/subgraphs/{namespace}")
    ),
)

ASSISTANT_ROUTES = (*_RECORDS, *_GRAPHS)
