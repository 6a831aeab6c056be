"""The states and the shapes of graphs, as a server shows and changes them, with the agents that it has.

Everything that comes out is JSON data in the shapes of LangGraph's API. What only the graph itself can tell
needs its agent in this process; without it that is `NotSupported`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.agents.agent import Agent
from perdure.assistants.records import Assistant
from perdure.assistants.service import Assistants
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.items.service import Items
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.threads.records import Checkpoint
from perdure.threads.service import ThreadService
from perdure.threads.work import Lease

if TYPE_CHECKING:
    from perdure.langgraph.agent import GraphAgent
    from perdure.langgraph.factory import Access
    from perdure.langgraph.reading import GraphView

T = TypeVar("T")

GRAPH = "graph"
GRAPH_ID = "graph_id"
"""Where a thread's metadata, or that of its states, names its graph."""


class CheckpointRef(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the history of a thread: a checkpoint of its graph, or of a subgraph of it."""

    checkpoint_id: str | None = None
    """None is the latest one of the namespace."""
    checkpoint_ns: str = ""
    """Empty is the graph itself; a subgraph is named by its path of nodes and tasks."""
    checkpoint_map: dict[str, str] | None = None

    @property
    def place(self) -> dict[str, Any]:
        """What of it a config has."""
        return {key: part for key, part in msgspec.structs.asdict(self).items() if part is not None}


class _Room:
    """Implements `GraphCheckpoints` for views: they read, and store nothing themselves."""

    def __init__(self, threads: ThreadService, thread_id: str) -> None:
        self._threads = threads
        self._held = Lease("", thread_id, "")

    def put(self, steps: GraphSteps) -> None:
        raise NotSupported("a view keeps what it has changed at its end")

    async def ready(self) -> None: ...

    async def settle(self) -> None: ...

    async def find(self, query: GraphQuery) -> list[GraphTuple]:
        return await self._threads.find_graphs(self._held, query)

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._threads.find_deltas(self._held, query)

    def wait(self, asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return _wait(asking)


def _wait(asking: Callable[[], Coroutine[Any, Any, T]]) -> T:
    raise NotSupported("a server does not stand still for a graph that is looked at: await it")


class GraphViews:
    """The graphs of one namespace: made for a caller, and thrown away after the call."""

    def __init__(
        self,
        agents: Mapping[str, Agent] | None,
        threads: ThreadService,
        assistants: Assistants,
        items: Items | None = None,
    ) -> None:
        self._agents = agents
        self._threads = threads
        self._assistants = assistants
        self._items = items

    # --- states -----------------------------------------------------------------------------------------

    async def state(
        self, thread_id: str, checkpoint: CheckpointRef | None = None, *, subgraphs: bool = False
    ) -> dict[str, Any]:
        """A state of a thread (`ThreadState`), or its latest; a thread without one has empty values.

        Has `values`, `next`, `tasks`, `metadata`, `created_at`, `checkpoint`, `parent_checkpoint`,
        `interrupts`, `checkpoint_id` and `parent_checkpoint_id`. With `subgraphs` each task has the state of
        its subgraph. NotFound for a thread that is not there, or a checkpoint that is not in it. Where this
        process does not have the graph, it is what the thread itself knows, without subgraphs.
        """
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found)
        if agent is None or not _is_kept_by(agent, found):
            return await self._plain_state(thread_id, checkpoint)
        async with self._viewing(agent, thread_id, found, "threads.read") as view:
            return await view.state(None if checkpoint is None else checkpoint.place, subgraphs=subgraphs)

    async def _plain_state(self, thread_id: str, checkpoint: CheckpointRef | None) -> dict[str, Any]:
        if checkpoint is not None and checkpoint.checkpoint_ns:
            raise NotSupported(f"the graph of thread {thread_id} is not in this process: it has no subgraphs")
        wanted = None if checkpoint is None else checkpoint.checkpoint_id
        return plain_state(thread_id, await self._threads.get_state(thread_id, wanted))

    async def update_state(
        self,
        thread_id: str,
        values: Any,
        *,
        as_node: str | None = None,
        checkpoint: CheckpointRef | None = None,
    ) -> dict[str, Any]:
        """Keep another state, as if a node had written the values.

        Gives `{"checkpoint", "configurable", "checkpoint_id"}`. `values` may be None, an object, or a list of
        objects. Conflict while the thread is busy, and InvalidInput for an update that the graph refuses.
        """
        if checkpoint is not None and not checkpoint.checkpoint_ns:
            # A graph would take a state that is not there for an empty one.
            await self._threads.peek_state(thread_id, checkpoint.checkpoint_id)
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found)
        if agent is None:
            self._refuse_graphs(thread_id, found)
            return await self._plain_update(thread_id, values, checkpoint)
        async with self._viewing(agent, thread_id, found, "threads.update") as view:
            await self._seed(view, thread_id, found)
            made = await view.update(values, as_node, None if checkpoint is None else checkpoint.place)
            await self._keep(view, thread_id, found)
        return made

    async def history(
        self,
        thread_id: str,
        *,
        limit: int = 10,
        before: CheckpointRef | None = None,
        metadata: Mapping[str, Any] | None = None,
        checkpoint: CheckpointRef | None = None,
    ) -> list[dict[str, Any]]:
        """States (`ThreadState`), the newest first: of the graph, or of the subgraph that `checkpoint` names.

        With `metadata`, those whose metadata has these values; with `before`, those older than it.
        """
        end = None if before is None else before.checkpoint_id
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found)
        if agent is None or found is None or not found.graph:
            kept = await self._threads.history(thread_id, limit=limit, before=end, metadata=metadata)
            return [plain_state(thread_id, each) for each in kept]
        place = None if checkpoint is None else checkpoint.place
        async with self._viewing(agent, thread_id, found, "threads.read") as view:
            return await view.history(place, limit=limit, before=end, metadata=metadata)

    async def supersteps(
        self, thread_id: str, supersteps: Sequence[Mapping[str, Any]], graph_id: str | None = None
    ) -> dict[str, Any]:
        """Apply updates to a thread one after the other; gives what `update_state` gives for the last.

        Each superstep is `{"updates": [{"values", "command", "as_node"}]}`. `graph_id` says which graph the
        thread is of, where its metadata does not.
        """
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found, graph_id)
        if agent is None:
            self._refuse_graphs(thread_id, found)
            raise InvalidInput(f"thread {thread_id} has no graph to apply supersteps to: give its graph_id")
        async with self._viewing(agent, thread_id, found, "threads.update") as view:
            await self._seed(view, thread_id, found)
            made = await view.supersteps(supersteps)
            await self._keep(view, thread_id, found)
        return made

    # --- shapes -----------------------------------------------------------------------------------------

    async def graph(self, assistant_id: str, *, xray: bool | int = False) -> dict[str, Any]:
        """The drawing of an assistant's graph: `{"nodes", "edges"}`; an agent that is none is one node."""
        assistant, agent = await self._agent_for(assistant_id)
        if agent.spec.kind != GRAPH:
            return _one_node(agent.spec.name)
        from perdure.langgraph.shapes import drawing

        async with self._opened(assistant, agent) as graph:
            return await drawing(graph, xray)

    async def schemas(self, assistant_id: str) -> dict[str, Any]:
        """The JSON schemas of an assistant's graph.

        Has `graph_id`, `input_schema`, `output_schema`, `state_schema`, `config_schema` and
        `context_schema`; each may be None.
        """
        assistant, agent = await self._agent_for(assistant_id)
        if agent.spec.kind != GRAPH:
            return {GRAPH_ID: agent.spec.name, **_SCHEMALESS, "input_schema": agent.spec.input_schema}
        from perdure.langgraph.shapes import schemas

        async with self._opened(assistant, agent) as graph:
            return {GRAPH_ID: agent.spec.name, **schemas(graph)}

    async def subgraphs(
        self, assistant_id: str, *, namespace: str | None = None, recurse: bool = False
    ) -> dict[str, Any]:
        """The schemas of the subgraphs of an assistant's graph, by their names."""
        assistant, agent = await self._agent_for(assistant_id)
        if agent.spec.kind != GRAPH:
            return {}
        from perdure.langgraph.shapes import subgraphs

        async with self._opened(assistant, agent) as graph:
            return await subgraphs(graph, namespace, recurse)

    @asynccontextmanager
    async def _opened(self, assistant: Assistant, agent: Any) -> AsyncIterator[Any]:
        from perdure.langgraph.factory import Surroundings

        given = assistant.config.get("configurable") or {}
        named = {"assistant_id": assistant.assistant_id, GRAPH_ID: assistant.agent}
        config = {**assistant.config, "configurable": {**given, **named}}
        async with agent.factory.opened(Surroundings(config, "assistants.read", self._store())) as graph:
            yield graph

    def _store(self) -> Any:
        """What factories may see of the items."""
        from perdure.langgraph.store import ItemStore

        return None if self._items is None else ItemStore(self._items.batch, _wait)

    # --- which agent ------------------------------------------------------------------------------------

    async def _agent_for(self, assistant_id: str) -> tuple[Assistant, Agent]:
        assistant = await self._assistants.get(assistant_id)
        if self._agents is None or assistant.agent not in self._agents:
            raise NotSupported(
                f"this process does not have the agent {assistant.agent!r}: its shape is known where it runs"
            )
        return assistant, self._agents[assistant.agent]

    async def _agent_of(
        self, thread_id: str, found: Checkpoint | None, named: str | None = None
    ) -> GraphAgent | None:
        """The graph of a thread, if it has one and this process has it."""
        if self._agents is None:
            return None
        name = named or await self._graph_id(thread_id, found)
        agent: Any = None if name is None else self._agents.get(name)
        return agent if agent is not None and agent.spec.kind == GRAPH else None

    async def _graph_id(self, thread_id: str, found: Checkpoint | None) -> str | None:
        """The name of a thread's graph: that of its state, of its metadata, or of the last run on it."""
        name = (found.metadata if found is not None else {}).get(GRAPH_ID)
        if not isinstance(name, str):
            name = (await self._threads.get_thread(thread_id)).metadata.get(GRAPH_ID)
        if isinstance(name, str):
            return name
        runs = await self._threads.list_runs(thread_id=thread_id, limit=1)
        return runs.items[0].agent if runs.items else None

    def _refuse_graphs(self, thread_id: str, found: Checkpoint | None) -> None:
        if found is not None and (found.graph or found.state is not None):
            raise NotSupported(
                f"the state of thread {thread_id} is that of a graph which this process does not have"
            )

    # --- views ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _viewing(
        self, agent: GraphAgent, thread_id: str, found: Checkpoint | None, access: Access
    ) -> AsyncIterator[GraphView]:
        from perdure.langgraph import reading as graph_reading

        thread = graph_reading.Thread(thread_id, self._store(), found)
        async with graph_reading.viewing(agent, _Room(self._threads, thread_id), thread, access) as view:
            yield view

    async def _seed(self, view: GraphView, thread_id: str, found: Checkpoint | None) -> None:
        """Values that came from somewhere else than a graph are what an update begins with."""
        if found is not None and not found.graph and found.state is None and isinstance(found.values, dict):
            await view.seed(found.values)

    async def _keep(self, view: GraphView, thread_id: str, found: Checkpoint | None) -> None:
        after = None if found is None else found.checkpoint_id
        await self._threads.update_graph(thread_id, await view.steps(), after)

    async def _plain_update(
        self, thread_id: str, values: Any, checkpoint: CheckpointRef | None
    ) -> dict[str, Any]:
        wanted = None if checkpoint is None else checkpoint.checkpoint_id
        made = await self._threads.update_state(thread_id, values, checkpoint_id=wanted)
        place = _place(thread_id, made.checkpoint_id)
        return {"checkpoint": place, "configurable": place, "checkpoint_id": made.checkpoint_id}


def _is_kept_by(agent: GraphAgent, found: Checkpoint | None) -> bool:
    """Whether the latest state of a thread is one that the agent's graph reads."""
    return found is None or found.graph or found.state is not None


# --- agents that are no graphs ----------------------------------------------------------------------------

_SCHEMALESS: dict[str, Any] = {
    "input_schema": None,
    "output_schema": None,
    "state_schema": None,
    "config_schema": None,
    "context_schema": None,
}


def _one_node(name: str) -> dict[str, Any]:
    ends = ("__start__", "__end__")
    nodes = [{"id": each, "type": "runnable", "data": {"name": each}} for each in (ends[0], name, ends[1])]
    edges = [{"source": ends[0], "target": name}, {"source": name, "target": ends[1]}]
    return {"nodes": nodes, "edges": edges}


def _place(thread_id: str, checkpoint_id: str) -> dict[str, Any]:
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}


def plain_state(thread_id: str, found: Checkpoint | None) -> dict[str, Any]:
    """A state as its thread knows it, in the shape of `ThreadState`."""
    if found is None:
        return _EMPTY_STATE | {"values": {}, "next": [], "tasks": [], "interrupts": []}
    asked = [{"id": each.id, "value": each.value} for each in found.interrupts]
    parent = found.parent_id
    return {
        "values": {} if found.values is None else found.values,
        "next": found.next,
        "tasks": [_task(name, asked if number == 0 else []) for number, name in enumerate(found.next)],
        "metadata": found.metadata,
        "created_at": datetime.fromtimestamp(found.created_at, UTC).isoformat(),
        "checkpoint": _place(thread_id, found.checkpoint_id),
        "parent_checkpoint": None if parent is None else _place(thread_id, parent),
        "interrupts": asked,
        "checkpoint_id": found.checkpoint_id,
        "parent_checkpoint_id": parent,
    }


_EMPTY_STATE: dict[str, Any] = {
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}


def _task(name: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "path": [],
        "error": None,
        "interrupts": asked,
        "checkpoint": None,
        "state": None,
        "result": None,
    }
