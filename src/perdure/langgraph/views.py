"""Reads and updates the states of graphs, and shows their nodes and schemas, for a server.

Results are JSON data in the shapes of LangGraph's API. What needs the code of a graph that this process does
not have is asked of a worker; schemas and drawings are those that workers registered.
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
from perdure.agents.records import AgentDescription
from perdure.assistants.records import Assistant
from perdure.assistants.service import Assistants
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphSteps, GraphTuple
from perdure.graph_requests.model import UnreadableState
from perdure.graph_requests.records import ApplySupersteps, GraphCall, ListStates, ReadState, UpdateState
from perdure.graph_requests.service import GraphRequests
from perdure.items.service import Items
from perdure.kernel.errors import AgentUnavailable, Conflict, InvalidInput, NotFound, NotSupported
from perdure.langgraph.descriptions import (
    GRAPH,
    GRAPH_ID,
    NO_SCHEMAS,
    build_drawing,
    build_schemas,
    build_subgraphs,
    one_node,
)
from perdure.threads.records import Checkpoint
from perdure.threads.service import Threads
from perdure.threads.unpacking import find_deltas, find_graphs

if TYPE_CHECKING:
    from perdure.langgraph.agent import GraphAgent

T = TypeVar("T")

logger = logging.getLogger(__name__)


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

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]:
        return await find_graphs(self._threads, replace(query, thread_id=self._thread_id))

    async def deltas(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        return await find_deltas(self._threads, replace(query, thread_id=self._thread_id))

    def wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return _wait(call)


def _wait(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    raise NotSupported("a sync call would block the server here: use the async one")


class NamespaceGraphs:
    """The graphs and states of one namespace, for one caller."""

    def __init__(
        self,
        agents: Mapping[str, Agent] | None,
        threads: Threads,
        assistants: Assistants,
        requests: GraphRequests,
        items: Items | None = None,
    ) -> None:
        self._agents: Mapping[str, Agent] = {} if agents is None else agents
        self._threads = threads
        self._assistants = assistants
        self._requests = requests
        self._items = items

    # --- states -----------------------------------------------------------------------------------------

    async def state(
        self, thread_id: str, checkpoint: CheckpointRef | None = None, *, subgraphs: bool = False
    ) -> dict[str, Any]:
        """A state of a thread (`ThreadState`), or its latest; without any, the values are empty.

        Has `values`, `next`, `tasks`, `metadata`, `created_at`, `checkpoint`, `parent_checkpoint`,
        `interrupts`, `checkpoint_id` and `parent_checkpoint_id`. With `subgraphs` each task has the state of
        its subgraph. NotFound for an unknown thread or checkpoint. If this process does not have the graph,
        it is the state that the thread stores, and only subgraphs are asked of a worker.
        """
        found = await self._threads.peek_state(thread_id)
        graph = await self._graph_of(thread_id, found) if _is_of_graph(found) else None
        if isinstance(graph, str) and not await self._needs_graph(found, checkpoint, subgraphs):
            graph = None
        if graph is None:
            return await self._plain_state(thread_id, checkpoint)
        call = ReadState(place=_build_place(checkpoint), subgraphs=subgraphs)
        try:
            return dict(await self._perform(graph, thread_id, found, call))
        except UnreadableState as error:
            _report_unreadable(thread_id, checkpoint, error)
        return await self._plain_state(thread_id, checkpoint)

    async def _needs_graph(
        self, found: Checkpoint | None, checkpoint: CheckpointRef | None, subgraphs: bool
    ) -> bool:
        """Whether a wanted state may have parts that only the graph can tell: those of subgraphs."""
        if found is None or (checkpoint is not None and checkpoint.checkpoint_ns):
            return found is not None
        if subgraphs and checkpoint is not None and checkpoint.checkpoint_id:
            found = await self._threads.peek_state(found.thread_id, checkpoint.checkpoint_id)
        return subgraphs and found is not None and bool(found.next)

    async def _plain_state(self, thread_id: str, checkpoint: CheckpointRef | None) -> dict[str, Any]:
        if checkpoint is not None and checkpoint.checkpoint_ns:
            raise NotFound(f"thread {thread_id} has no state of a graph, and so none of a subgraph")
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
        await self._refuse_busy(thread_id)
        if checkpoint is not None and not checkpoint.checkpoint_ns:
            # A graph would take a missing state for an empty one.
            await self._threads.peek_state(thread_id, checkpoint.checkpoint_id)
        found = await self._threads.peek_state(thread_id)
        graph = await self._graph_of(thread_id, found)
        if graph is None:
            return await self._plain_update(thread_id, values, checkpoint)
        call = UpdateState(values=values, as_node=as_node, place=_build_place(checkpoint))
        return dict(await self._perform(graph, thread_id, found, call))

    async def update_state_at(
        self, thread_id: str, values: Any, as_node: str | None, checkpoint_id: str | None
    ) -> str:
        """The same for the root graph, after a checkpoint that is named by its id; gives the new one's."""
        place = None if checkpoint_id is None else CheckpointRef(checkpoint_id=checkpoint_id)
        changed = await self.update_state(thread_id, values, as_node=as_node, checkpoint=place)
        return str(changed["checkpoint_id"])

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
        graph = await self._graph_of(thread_id, found) if found is not None and found.graph else None
        inner = checkpoint is not None and checkpoint.checkpoint_ns != ""
        if graph is None or (isinstance(graph, str) and not inner):
            return await self._plain_history(thread_id, limit, end, metadata)
        call = ListStates(place=_build_place(checkpoint), limit=limit, before=end, metadata=metadata)
        try:
            return list(await self._perform(graph, thread_id, found, call))
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
        await self._refuse_busy(thread_id)
        found = await self._threads.peek_state(thread_id)
        graph = await self._graph_of(thread_id, found, graph_id)
        if graph is None:
            raise InvalidInput(f"thread {thread_id} has no graph to apply supersteps to: give its graph_id")
        return dict(await self._perform(graph, thread_id, found, ApplySupersteps(supersteps=supersteps)))

    async def _refuse_busy(self, thread_id: str) -> None:
        """Conflict while the thread is busy: a run may be of another graph, which would refuse the change.

        A run that starts later is met when the change is stored.
        """
        if (await self._threads.get_thread(thread_id)).status == "busy":
            raise Conflict(f"Thread {thread_id} is busy with a run; its state can be changed afterwards")

    async def _perform(
        self, graph: GraphAgent | str, thread_id: str, found: Checkpoint | None, call: GraphCall
    ) -> Any:
        """Let the graph do something with a thread: here, or in a worker that has it."""
        if isinstance(graph, str):
            return await self._requests.ask(graph, thread_id, call)
        from perdure.langgraph.reading import GraphThread, perform

        checkpoints = _ReadOnlyCheckpoints(self._threads, thread_id)
        performed = await perform(graph, checkpoints, GraphThread(thread_id, self._store(), found), call)
        if performed.steps is not None:
            after = None if found is None else found.checkpoint_id
            await self._threads.update_graph(thread_id, performed.steps, after)
        return performed.answer

    async def _plain_update(
        self, thread_id: str, values: Any, checkpoint: CheckpointRef | None
    ) -> dict[str, Any]:
        wanted = None if checkpoint is None else checkpoint.checkpoint_id
        made = await self._threads.update_state(thread_id, values, checkpoint_id=wanted)
        place = _place(thread_id, made.checkpoint_id)
        return {"checkpoint": place, "configurable": place, "checkpoint_id": made.checkpoint_id}

    # --- graphs -----------------------------------------------------------------------------------------

    async def graph(self, assistant_id: str, *, xray: bool | int = False) -> dict[str, Any]:
        """The `{"nodes", "edges"}` of an assistant's graph; another agent is one node."""
        assistant = await self._assistants.get(assistant_id)
        agent = self._agents.get(assistant.agent)
        if agent is None:
            return build_drawing(await self._description(assistant.agent), xray)
        if agent.spec.kind != GRAPH:
            return one_node(agent.spec.name)
        from perdure.langgraph.shapes import nodes_and_edges

        async with self._open(assistant, agent) as graph:
            return await nodes_and_edges(graph, xray)

    async def schemas(self, assistant_id: str) -> dict[str, Any]:
        """The JSON schemas of an assistant's graph.

        Has `graph_id`, `input_schema`, `output_schema`, `state_schema`, `config_schema` and
        `context_schema`; each may be None.
        """
        assistant = await self._assistants.get(assistant_id)
        agent = self._agents.get(assistant.agent)
        if agent is None:
            return build_schemas(await self._description(assistant.agent))
        if agent.spec.kind != GRAPH:
            return {GRAPH_ID: agent.spec.name, **NO_SCHEMAS, "input_schema": agent.spec.input_schema}
        from perdure.langgraph.shapes import schemas

        async with self._open(assistant, agent) as graph:
            return {GRAPH_ID: agent.spec.name, **schemas(graph)}

    async def subgraphs(
        self, assistant_id: str, *, namespace: str | None = None, recurse: bool = False
    ) -> dict[str, Any]:
        """The schemas of the subgraphs of an assistant's graph, by their names."""
        assistant = await self._assistants.get(assistant_id)
        agent = self._agents.get(assistant.agent)
        if agent is None:
            return build_subgraphs(await self._description(assistant.agent), namespace, recurse)
        if agent.spec.kind != GRAPH:
            return {}
        from perdure.langgraph.shapes import subgraphs

        async with self._open(assistant, agent) as graph:
            return await subgraphs(graph, namespace, recurse)

    async def _description(self, agent: str) -> AgentDescription:
        """What a worker registered of an agent whose code this process does not have."""
        found = await self._assistants.description(agent)
        if found is None:
            raise AgentUnavailable(
                f"no worker has registered the schemas and drawings of the agent {agent!r} yet:"
                " start a worker that has it"
            )
        return found

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

    # --- which graph ------------------------------------------------------------------------------------

    async def _graph_of(
        self, thread_id: str, found: Checkpoint | None, named: str | None = None
    ) -> GraphAgent | str | None:
        """The graph of a thread: its agent, or its name if only workers have it."""
        name = named or await self._graph_id(thread_id, found)
        if name is None:
            return None
        agent: Any = self._agents.get(name)
        if agent is not None:
            return agent if agent.spec.kind == GRAPH else None
        if named is not None or (found is not None and _is_of_graph(found)):
            return name
        return name if await self._assistants.kind(name) == GRAPH else None

    async def _graph_id(self, thread_id: str, found: Checkpoint | None) -> str | None:
        """The graph of a thread, from its state, its metadata, or its last run."""
        name = (found.metadata if found is not None else {}).get(GRAPH_ID)
        if not isinstance(name, str):
            name = (await self._threads.get_thread(thread_id)).metadata.get(GRAPH_ID)
        if isinstance(name, str):
            return name
        runs = await self._threads.list_runs(thread_id=thread_id, limit=1)
        return runs.items[0].agent if runs.items else None


def _report_unreadable(thread_id: str, checkpoint: CheckpointRef | None, error: UnreadableState) -> None:
    """Log why a state is shown as it is stored; that of a subgraph cannot be."""
    if checkpoint is not None and checkpoint.checkpoint_ns:
        raise InvalidInput(
            f"the graph of thread {thread_id} cannot read this state: {error.message}"
        ) from error
    logger.warning(
        "thread %s: its state is shown as stored: its graph refuses it: %s", thread_id, error.message
    )


def _is_of_graph(found: Checkpoint | None) -> bool:
    """Whether the latest state of a thread can be read by a graph."""
    return found is None or found.graph or found.state is not None


def _build_place(checkpoint: CheckpointRef | None) -> dict[str, Any] | None:
    return None if checkpoint is None else checkpoint.place


# --- states as they are stored ----------------------------------------------------------------------------


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
