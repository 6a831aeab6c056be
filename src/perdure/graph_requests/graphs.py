"""Graphs of one namespace: their drawings, their schemas, and changes of their states."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from perdure.kernel.checks import Id, check_id, optional_id, optional_text
from perdure.kernel.errors import AgentUnavailable, BadRequest, Conflict, NotFound, NotSupported
from perdure.kernel.record import Record
from perdure.kernel.storage.port import Storage
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, POST, call, under


class Drawing(Record, kw_only=True):
    """The nodes and edges of a graph, in LangGraph's form."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class GraphSchemas(Record, kw_only=True):
    """JSON Schemas of an agent's inputs and outputs. Missing ones are null."""

    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    state_schema: dict[str, Any] | None = None
    config_schema: dict[str, Any] | None = None
    context_schema: dict[str, Any] | None = None


class GraphReader(Protocol):
    """Reads graphs from their code, or asks a worker that has it."""

    async def graph(self, assistant_id: str) -> dict[str, Any]: ...
    async def schemas(self, assistant_id: str) -> dict[str, Any]: ...
    async def update_state_at(
        self, thread_id: str, values: Any, as_node: str | None, checkpoint_id: str | None
    ) -> str: ...


class AgentGraphs(Service):
    """The graphs of one namespace. An agent without a graph is drawn as one node."""

    def __init__(
        self,
        storage: Storage,
        reader: GraphReader,
        *,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self._reader = reader

    @call(
        GET("/assistants/{assistant_id}/graph"),
        scope="read",
        errors=(NotFound, NotSupported, AgentUnavailable),
    )
    async def drawing(self, assistant_id: Id) -> Drawing:
        """Get the nodes and edges of an assistant's graph."""
        drawing = await self._reader.graph(check_id(assistant_id, "assistant_id"))
        return Drawing(nodes=drawing["nodes"], edges=drawing["edges"])

    @call(
        GET("/assistants/{assistant_id}/schemas"),
        scope="read",
        errors=(NotFound, NotSupported, AgentUnavailable),
    )
    async def schemas(self, assistant_id: Id) -> GraphSchemas:
        """Get the JSON Schemas of an assistant's inputs, outputs and configuration."""
        schemas = await self._reader.schemas(check_id(assistant_id, "assistant_id"))
        return GraphSchemas(**{name: schemas.get(name) for name in GraphSchemas.__struct_fields__})

    @call(
        POST("/threads/{thread_id}/graph-state"),
        scope="write",
        status=201,
        errors=(BadRequest, NotFound, Conflict, AgentUnavailable),
    )
    async def update_state(
        self,
        thread_id: Id,
        values: Any = None,
        *,
        as_node: str | None = None,
        checkpoint_id: str | None = None,
    ) -> Annotated[str, under("checkpoint_id", str, "UpdatedState")]:
        """Add a state to a thread, as if a node of its graph had written the values. Return its checkpoint.

        It follows the given checkpoint, or the latest. Conflict while the thread is busy.
        """
        place = optional_id(checkpoint_id, "checkpoint_id")
        node = optional_text(as_node, "as_node")
        return await self._reader.update_state_at(check_id(thread_id, "thread_id"), values, node, place)
