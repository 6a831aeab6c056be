"""Descriptions of agents: workers register them, and servers without the agents' code show them.

A factory of graphs is described without a configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.agents.context import Agent
from perdure.agents.records import AgentDescription
from perdure.assistants.model import MAX_AGENT_DESCRIPTION
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import NotSupported, PerdureError

T = TypeVar("T")

GRAPH = "graph"
GRAPH_ID = "graph_id"
"""Key of the graph's name in metadata, configs and schemas."""
LEVEL = "|"
"""Separator of the names of nested subgraphs."""
MAX_LEVELS = 8
"""Number of levels of subgraphs that are drawn one by one."""
NO_SCHEMAS: Mapping[str, Any] = {
    "input_schema": None,
    "output_schema": None,
    "state_schema": None,
    "config_schema": None,
    "context_schema": None,
}

logger = logging.getLogger(__name__)


# --- what a worker registers ------------------------------------------------------------------------------


async def describe(agent: Agent, store: Any = None) -> AgentDescription:
    """Describe an agent. Parts that fail or are too large are left out, and `problem` says why."""
    spec = agent.spec
    if spec.kind == GRAPH:
        return fitting(await _describe_graph(agent, store))
    schemas = {**NO_SCHEMAS, "input_schema": spec.input_schema}
    drawings = [one_node(spec.name)]
    return fitting(
        AgentDescription(agent=spec.name, kind=spec.kind, schemas=schemas, drawings=drawings, subgraphs={})
    )


async def _describe_graph(agent: Any, store: Any) -> AgentDescription:
    from perdure.langgraph import shapes
    from perdure.langgraph.factory import FactoryContext
    from perdure.langgraph.wire import plain

    name = agent.spec.name
    parts = _Parts(name)
    config = {"configurable": {GRAPH_ID: name}}
    description = AgentDescription(agent=name, kind=GRAPH, drawn=False)
    try:
        async with agent.factory.open(FactoryContext(config, "assistants.read", store)) as graph:

            async def schemas() -> dict[str, Any]:
                return dict(plain(shapes.schemas(graph)))

            async def drawing(xray: bool | int) -> dict[str, Any]:
                return dict(plain(await shapes.nodes_and_edges(graph, xray)))

            async def subgraphs() -> dict[str, Any]:
                return dict(plain(await shapes.subgraphs(graph, None, True)))

            description = replace(
                description,
                schemas=await parts.build("schemas", schemas),
                drawings=await parts.build("drawing", lambda: _drawings(drawing)) or [],
                subgraphs=await parts.build("subgraphs", subgraphs),
            )
            description = replace(description, drawn=bool(description.drawings))
    except Exception as error:  # noqa: BLE001 - the factory of a user may raise anything
        parts.failed("graph", error)
    return replace(description, problem=parts.problem)


async def _drawings(drawing: Callable[[bool | int], Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a drawing for each level, up to the level that shows everything."""
    drawings = [await drawing(False)]
    whole = await drawing(True)
    for level in range(1, MAX_LEVELS):
        if drawings[-1] == whole:
            return drawings
        drawings.append(await drawing(level))
    return drawings if drawings[-1] == whole else [*drawings, whole]


class _Parts:
    """Builder of the parts of a description. The first failure becomes the problem."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self.problem: str | None = None

    async def build(self, what: str, make: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await make()
        except Exception as error:  # noqa: BLE001 - types and nodes of users may raise anything
            self.failed(what, error)
            return None

    def failed(self, what: str, error: Exception) -> None:
        logger.warning("the %s of agent %r cannot be described", what, self._agent, exc_info=error)
        reason = error.message if isinstance(error, PerdureError) else type(error).__name__
        self.problem = self.problem or f"its {what} failed with {reason}; see the worker's log"


def fitting(description: AgentDescription, limit: int = MAX_AGENT_DESCRIPTION) -> AgentDescription:
    """Drop parts until the description is small enough to be stored."""
    if _size(description) <= limit:
        return description
    logger.warning("the description of agent %r is too large: a part is left out", description.agent)
    fitted = replace(description, problem=description.problem or f"it is larger than {limit:,} characters")
    while len(fitted.drawings) > 1 and _size(fitted) > limit:
        fitted = replace(fitted, drawings=fitted.drawings[:-1], drawn=False)
    for part in ({"subgraphs": None}, {"drawings": [], "drawn": False}, {"schemas": None}):
        fitted = fitted if _size(fitted) <= limit else replace(fitted, **part)
    return fitted


def _size(description: AgentDescription) -> int:
    return len(encode_json(description, what=f"the description of agent {description.agent!r}"))


def one_node(name: str) -> dict[str, Any]:
    """Draw an agent that is not a graph as one node."""
    ends = ("__start__", "__end__")
    nodes = [{"id": node, "type": "runnable", "data": {"name": node}} for node in (ends[0], name, ends[1])]
    edges = [{"source": ends[0], "target": name}, {"source": name, "target": ends[1]}]
    return {"nodes": nodes, "edges": edges}


# --- what a server shows ----------------------------------------------------------------------------------


def build_drawing(description: AgentDescription, xray: bool | int) -> dict[str, Any]:
    """Return the nodes and edges of an agent, with `xray` levels of subgraphs, or all of them for True."""
    drawings, last = description.drawings, len(description.drawings) - 1
    if drawings and (xray is False or (xray is not True and xray <= last)):
        return drawings[int(xray)]
    if not drawings or not description.drawn:
        raise _missing(description, "drawing" if not drawings else f"drawing of level {int(xray)}")
    # The last drawing shows all levels.
    return drawings[-1]


def build_schemas(description: AgentDescription) -> dict[str, Any]:
    """Return the JSON Schemas of an agent, with its name."""
    if description.schemas is None:
        raise _missing(description, "schemas")
    return {GRAPH_ID: description.agent, **description.schemas}


def build_subgraphs(description: AgentDescription, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """Return the JSON Schemas of an agent's subgraphs: the direct ones, all, or the one with this path."""
    if description.subgraphs is None:
        raise _missing(description, "subgraphs")
    return {
        name: schemas
        for name, schemas in description.subgraphs.items()
        if (recurse or LEVEL not in name) and namespace in (None, name)
    }


def _missing(description: AgentDescription, what: str) -> NotSupported:
    reason = description.problem or "its worker did not register it"
    return NotSupported(f"this server has no {what} of agent {description.agent!r}: {reason}")
