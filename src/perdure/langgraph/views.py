"""Reads and updates the states of graphs, and shows their nodes and schemas, for a server.

Results are JSON data in the shapes of LangGraph's API. What needs the graph itself is `NotSupported` if this
process does not have its agent.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.agents.agent import Agent
from perdure.assistants.records import Assistant
from perdure.assistants.service import Assistants
from perdure.graphs import queries as graphs
from perdure.graphs.records import GraphDelta, GraphDeltaQuery, GraphQuery, GraphSteps, GraphTuple
from perdure.graphs.rows import tuple_of
from perdure.items.service import Items
from perdure.kernel.errors import InvalidInput, NotSupported
from perdure.threads.records import Checkpoint
from perdure.threads.service import Threads

if TYPE_CHECKING:
    from perdure.langgraph.agent import GraphAgent
    from perdure.langgraph.factory import Access
    from perdure.langgraph.reading import GraphView

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRAPH = "graph"
GRAPH_ID = "graph_id"
"""The metadata key of threads and states that names the graph."""


class CheckpointRef(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a thread's graph, or of a subgraph."""

    checkpoint_id: str | None = None
    """None is the latest of the namespace."""
    checkpoint_ns: str = ""
    """Empty for the root graph; a subgraph is named by its path of nodes and tasks."""
    checkpoint_map: dict[str, str] | None = None

    @property
    def place(self) -> dict[str, Any]:
        """The keys that name the checkpoint in a config."""
        return {key: part for key, part in msgspec.structs.asdict(self).items() if part is not None}


class _ReadOnlyCheckpoints:
    """Implements `GraphCheckpoints` for views, which store their changes all at once at the end."""

    def __init__(self, threads: Threads, thread_id: str) -> None:
        self._threads = threads
        self._thread_id = thread_id

    def put(self, steps: GraphSteps) -> None:
        raise NotSupported("a view stores its changes at its end")

    async def ready(self) -> None: ...

    async def settle(self) -> None: ...

    async def find(self, query: GraphQuery) -> list[GraphTuple]:
        found = await self._threads.read(graphs.find, replace(query, thread_id=self._thread_id))
        return [tuple_of(each) for each in found]

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await self._threads.read(graphs.delta, replace(query, thread_id=self._thread_id))

    def wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return _wait(call)


def _wait(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    raise NotSupported("a sync call would block the server here: use the async one")


class GraphViews:
    """The graphs and states of one namespace, for one caller."""

    def __init__(
        self,
        agents: Mapping[str, Agent] | None,
        threads: Threads,
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
        """A state of a thread (`ThreadState`), or its latest; without any, the values are empty.

        Has `values`, `next`, `tasks`, `metadata`, `created_at`, `checkpoint`, `parent_checkpoint`,
        `interrupts`, `checkpoint_id` and `parent_checkpoint_id`. With `subgraphs` each task has the state of
        its subgraph. NotFound for an unknown thread or checkpoint. If this process does not have the graph,
        it is the state that the thread stores, without subgraphs.
        """
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found)
        if agent is None or not _is_of_graph(found):
            return await self._plain_state(thread_id, checkpoint)
        from perdure.langgraph.reading import UnreadableState

        try:
            async with self._open_view(agent, thread_id, found, "threads.read") as view:
                return await view.state(None if checkpoint is None else checkpoint.place, subgraphs=subgraphs)
        except UnreadableState as error:
            _report_unreadable(thread_id, checkpoint, error)
        return await self._plain_state(thread_id, checkpoint)

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
        """Add a state, as if a node had written the values.

        Gives `{"checkpoint", "configurable", "checkpoint_id"}`. `values` may be None, an object, or a list of
        objects. Conflict while the thread is busy, and InvalidInput for an update that the graph refuses.
        """
        if checkpoint is not None and not checkpoint.checkpoint_ns:
            # A graph would take a missing state for an empty one.
            await self._threads.peek_state(thread_id, checkpoint.checkpoint_id)
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found)
        if agent is None:
            self._refuse_graphs(thread_id, found)
            return await self._plain_update(thread_id, values, checkpoint)
        async with self._open_view(agent, thread_id, found, "threads.update") as view:
            await self._import_values(view, found)
            made = await view.update(values, as_node, None if checkpoint is None else checkpoint.place)
            await self._store_changes(view, thread_id, found)
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
            return await self._plain_history(thread_id, limit, end, metadata)
        from perdure.langgraph.reading import UnreadableState

        place = None if checkpoint is None else checkpoint.place
        try:
            async with self._open_view(agent, thread_id, found, "threads.read") as view:
                return await view.history(place, limit=limit, before=end, metadata=metadata)
        except UnreadableState as error:
            _report_unreadable(thread_id, checkpoint, error)
        return await self._plain_history(thread_id, limit, end, metadata)

    async def _plain_history(
        self, thread_id: str, limit: int, before: str | None, metadata: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        kept = await self._threads.history(thread_id, limit=limit, before=before, metadata=metadata)
        return [plain_state(thread_id, each) for each in kept]

    async def supersteps(
        self, thread_id: str, supersteps: Sequence[Mapping[str, Any]], graph_id: str | None = None
    ) -> dict[str, Any]:
        """Apply supersteps to a thread in order; gives what `update_state` gives for the last.

        Each superstep is `{"updates": [{"values", "command", "as_node"}]}`. `graph_id` names the graph if the
        thread's metadata does not.
        """
        found = await self._threads.peek_state(thread_id)
        agent = await self._agent_of(thread_id, found, graph_id)
        if agent is None:
            self._refuse_graphs(thread_id, found)
            raise InvalidInput(f"thread {thread_id} has no graph to apply supersteps to: give its graph_id")
        async with self._open_view(agent, thread_id, found, "threads.update") as view:
            await self._import_values(view, found)
            made = await view.supersteps(supersteps)
            await self._store_changes(view, thread_id, found)
        return made

    # --- graphs -----------------------------------------------------------------------------------------

    async def graph(self, assistant_id: str, *, xray: bool | int = False) -> dict[str, Any]:
        """The `{"nodes", "edges"}` of an assistant's graph; another agent is one node."""
        assistant, agent = await self._agent_for(assistant_id)
        if agent.spec.kind != GRAPH:
            return _one_node(agent.spec.name)
        from perdure.langgraph.shapes import nodes_and_edges

        async with self._open(assistant, agent) as graph:
            return await nodes_and_edges(graph, xray)

    async def schemas(self, assistant_id: str) -> dict[str, Any]:
        """The JSON schemas of an assistant's graph.

        Has `graph_id`, `input_schema`, `output_schema`, `state_schema`, `config_schema` and
        `context_schema`; each may be None.
        """
        assistant, agent = await self._agent_for(assistant_id)
        if agent.spec.kind != GRAPH:
            return {GRAPH_ID: agent.spec.name, **_NO_SCHEMAS, "input_schema": agent.spec.input_schema}
        from perdure.langgraph.shapes import schemas

        async with self._open(assistant, agent) as graph:
            return {GRAPH_ID: agent.spec.name, **schemas(graph)}

    async def subgraphs(
        self, assistant_id: str, *, namespace: str | None = None, recurse: bool = False
    ) -> dict[str, Any]:
        """The schemas of the subgraphs of an assistant's graph, by their names."""
        assistant, agent = await self._agent_for(assistant_id)
        if agent.spec.kind != GRAPH:
            return {}
        from perdure.langgraph.shapes import subgraphs

        async with self._open(assistant, agent) as graph:
            return await subgraphs(graph, namespace, recurse)

    @asynccontextmanager
    async def _open(self, assistant: Assistant, agent: Any) -> AsyncIterator[Any]:
        from perdure.langgraph.factory import FactoryContext

        given = assistant.config.get("configurable") or {}
        named = {"assistant_id": assistant.assistant_id, GRAPH_ID: assistant.agent}
        config = {**assistant.config, "configurable": {**given, **named}}
        async with agent.factory.open(FactoryContext(config, "assistants.read", self._store())) as graph:
            yield graph

    def _store(self) -> Any:
        """The store that factories get."""
        from perdure.langgraph.store import ItemStore

        return None if self._items is None else ItemStore(self._items.run, _wait)

    # --- which agent ------------------------------------------------------------------------------------

    async def _agent_for(self, assistant_id: str) -> tuple[Assistant, Agent]:
        assistant = await self._assistants.get(assistant_id)
        if self._agents is None or assistant.agent not in self._agents:
            raise NotSupported(
                f"this process does not have the agent {assistant.agent!r}: ask a process that runs it"
            )
        return assistant, self._agents[assistant.agent]

    async def _agent_of(
        self, thread_id: str, found: Checkpoint | None, named: str | None = None
    ) -> GraphAgent | None:
        """The graph agent of a thread, if this process has it."""
        if self._agents is None:
            return None
        name = named or await self._graph_id(thread_id, found)
        agent: Any = None if name is None else self._agents.get(name)
        return agent if agent is not None and agent.spec.kind == GRAPH else None

    async def _graph_id(self, thread_id: str, found: Checkpoint | None) -> str | None:
        """The graph of a thread, from its state, its metadata, or its last run."""
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
    async def _open_view(
        self, agent: GraphAgent, thread_id: str, found: Checkpoint | None, access: Access
    ) -> AsyncIterator[GraphView]:
        from perdure.langgraph import reading as graph_reading

        thread = graph_reading.Thread(thread_id, self._store(), found)
        checkpoints = _ReadOnlyCheckpoints(self._threads, thread_id)
        async with graph_reading.open_view(agent, checkpoints, thread, access) as view:
            yield view

    async def _import_values(self, view: GraphView, found: Checkpoint | None) -> None:
        """Let an update start with values that do not come from a graph."""
        if found is not None and not found.graph and found.state is None and isinstance(found.values, dict):
            await view.import_values(found.values)

    async def _store_changes(self, view: GraphView, thread_id: str, found: Checkpoint | None) -> None:
        after = None if found is None else found.checkpoint_id
        await self._threads.update_graph(thread_id, await view.steps(), after)

    async def _plain_update(
        self, thread_id: str, values: Any, checkpoint: CheckpointRef | None
    ) -> dict[str, Any]:
        wanted = None if checkpoint is None else checkpoint.checkpoint_id
        made = await self._threads.update_state(thread_id, values, checkpoint_id=wanted)
        place = _place(thread_id, made.checkpoint_id)
        return {"checkpoint": place, "configurable": place, "checkpoint_id": made.checkpoint_id}


def _report_unreadable(thread_id: str, checkpoint: CheckpointRef | None, error: Exception) -> None:
    """Log why a state is shown as it is stored; that of a subgraph cannot be."""
    if checkpoint is not None and checkpoint.checkpoint_ns:
        raise InvalidInput(f"the graph of thread {thread_id} cannot read this state: {error}") from error
    logger.warning("thread %s: its state is shown as stored: its graph refuses it: %s", thread_id, error)


def _is_of_graph(found: Checkpoint | None) -> bool:
    """Whether the latest state of a thread can be read by a graph."""
    return found is None or found.graph or found.state is not None


# --- agents that are not graphs ---------------------------------------------------------------------------

_NO_SCHEMAS: dict[str, Any] = {
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
    """A stored state in the shape of `ThreadState`."""
    if found is None:
        return _EMPTY_STATE | {"values": {}, "next": [], "tasks": [], "interrupts": []}
    interrupts = [{"id": each.id, "value": each.value} for each in found.interrupts]
    parent = found.parent_id
    return {
        "values": {} if found.values is None else found.values,
        "next": found.next,
        "tasks": [_task(name, interrupts if number == 0 else []) for number, name in enumerate(found.next)],
        "metadata": found.metadata,
        "created_at": datetime.fromtimestamp(found.created_at, UTC).isoformat(),
        "checkpoint": _place(thread_id, found.checkpoint_id),
        "parent_checkpoint": None if parent is None else _place(thread_id, parent),
        "interrupts": interrupts,
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


def _task(name: str, interrupts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        "path": [],
        "error": None,
        "interrupts": interrupts,
        "checkpoint": None,
        "state": None,
        "result": None,
    }
