"""Descriptions of agents: what a worker registers of them, and what a server without their code shows.

A factory of graphs is described as it is without a configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.agents.agent import Agent
from perdure.agents.records import AgentDescription
from perdure.assistants.model import MAX_AGENT_DESCRIPTION
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import NotSupported, PerdureError

T = TypeVar("T")

GRAPH = "graph"
GRAPH_ID = "graph_id"
"""The key of metadata, configs and schemas that names the graph."""
LEVEL = "|"
"""What stands between the names of nested subgraphs."""
MAX_LEVELS = 8
"""How many levels of subgraphs are drawn one by one."""
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
    """Describe an agent. What fails or is too large is left out, and `problem` says why."""
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
    found = AgentDescription(agent=name, kind=GRAPH, drawn=False)
    try:
        async with agent.factory.open(FactoryContext(config, "assistants.read", store)) as graph:

            async def schemas() -> dict[str, Any]:
                return dict(plain(shapes.schemas(graph)))

            async def drawing(xray: bool | int) -> dict[str, Any]:
                return dict(plain(await shapes.nodes_and_edges(graph, xray)))

            async def subgraphs() -> dict[str, Any]:
                return dict(plain(await shapes.subgraphs(graph, None, True)))

            found = replace(
                found,
                schemas=await parts.made("schemas", schemas),
                drawings=await parts.made("drawing", lambda: _drawings(drawing)) or [],
                subgraphs=await parts.made("subgraphs", subgraphs),
            )
            found = replace(found, drawn=bool(found.drawings))
    except Exception as error:  # noqa: BLE001 - the factory of a user may raise anything
        parts.failed("graph", error)
    return replace(found, problem=parts.problem)


async def _drawings(drawing: Callable[[bool | int], Awaitable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The drawing of each level, up to the one that shows all."""
    drawings = [await drawing(False)]
    whole = await drawing(True)
    for level in range(1, MAX_LEVELS):
        if drawings[-1] == whole:
            return drawings
        drawings.append(await drawing(level))
    return drawings if drawings[-1] == whole else [*drawings, whole]


class _Parts:
    """The parts of a description; the first that fails is the problem."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self.problem: str | None = None

    async def made(self, what: str, make: Callable[[], Awaitable[T]]) -> T | None:
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
    """The description with as many of its parts as may be stored."""
    if _size(description) <= limit:
        return description
    logger.warning("the description of agent %r is too large: a part is left out", description.agent)
    found = replace(description, problem=description.problem or f"it is larger than {limit:,} characters")
    while len(found.drawings) > 1 and _size(found) > limit:
        found = replace(found, drawings=found.drawings[:-1], drawn=False)
    for part in ({"subgraphs": None}, {"drawings": [], "drawn": False}, {"schemas": None}):
        found = found if _size(found) <= limit else replace(found, **part)
    return found


def _size(description: AgentDescription) -> int:
    return len(encode_json(description, what=f"the description of agent {description.agent!r}"))


def one_node(name: str) -> dict[str, Any]:
    """The drawing of an agent that is not a graph."""
    ends = ("__start__", "__end__")
    nodes = [{"id": each, "type": "runnable", "data": {"name": each}} for each in (ends[0], name, ends[1])]
    edges = [{"source": ends[0], "target": name}, {"source": name, "target": ends[1]}]
    return {"nodes": nodes, "edges": edges}


# --- what a server shows ----------------------------------------------------------------------------------


def build_drawing(description: AgentDescription, xray: bool | int) -> dict[str, Any]:
    """The nodes and edges of an agent, with so many levels of subgraphs, or all."""
    drawings, last = description.drawings, len(description.drawings) - 1
    if drawings and (xray is False or (xray is not True and xray <= last)):
        return drawings[int(xray)]
    if not drawings or not description.drawn:
        raise _missing(description, "drawing" if not drawings else f"drawing of level {int(xray)}")
    # Beyond the levels that are drawn one by one all are shown.
    return drawings[-1]


def build_schemas(description: AgentDescription) -> dict[str, Any]:
    """The JSON Schemas of an agent, with its name."""
    if description.schemas is None:
        raise _missing(description, "schemas")
    return {GRAPH_ID: description.agent, **description.schemas}


def build_subgraphs(description: AgentDescription, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """The JSON Schemas of an agent's subgraphs: the direct ones, all, or the one with this path."""
    if description.subgraphs is None:
        raise _missing(description, "subgraphs")
    return {
        name: schemas
        for name, schemas in description.subgraphs.items()
        if (recurse or LEVEL not in name) and namespace in (None, name)
    }


def _missing(description: AgentDescription, what: str) -> NotSupported:
    reason = description.problem or "its worker did not register it"
    return NotSupported(f"no {what} of agent {description.agent!r} is known to this server: {reason}")
