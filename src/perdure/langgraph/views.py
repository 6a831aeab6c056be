"""Reads and updates of graph states, and the nodes and schemas of graphs, for a server.

Results are JSON data in the shapes of LangGraph's API. If this process does not have the code of a graph, a
worker reads and updates its states; schemas and drawings come from the registrations of workers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.agents.context import Agent
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
    """Checkpoint of a thread's graph, or of a subgraph."""

    checkpoint_id: str | None = None
    """None means the latest of the namespace."""
    checkpoint_ns: str = ""
    """Empty for the root graph; a path of nodes and tasks for a subgraph."""
    checkpoint_map: dict[str, str] | None = None

    @property
    def place(self) -> dict[str, Any]:
        """Keys that name the checkpoint in a config."""
        return {key: part for key, part in msgspec.structs.asdict(self).items() if part is not None}


class _ReadOnlyCheckpoints:
    """`GraphCheckpoints` of views, which store all changes at their end."""

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
    """Graphs and states of one namespace, for one caller."""

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
        """Get a state of a thread (`ThreadState`), by default the latest; empty if there is none.

        The result has `values`, `next`, `tasks`, `metadata`, `created_at`, `checkpoint`, `parent_checkpoint`,
        `interrupts`, `checkpoint_id` and `parent_checkpoint_id`. With `subgraphs` each task has the state of
        its subgraph. NotFound for an unknown thread or checkpoint. If this process does not have the graph,
        the result is the stored state, and only states of subgraphs come from a worker.
        """
        latest = await self._threads.peek_state(thread_id)
        graph = await self._find_graph(thread_id, latest) if _is_of_graph(latest) else None
        if isinstance(graph, str) and not await self._needs_graph(latest, checkpoint, subgraphs):
            graph = None
        if graph is None:
            return await self._plain_state(thread_id, checkpoint)
        call = ReadState(place=_build_place(checkpoint), subgraphs=subgraphs)
        try:
            return dict(await self._perform(graph, thread_id, latest, call))
        except UnreadableState as error:
            _report_unreadable(thread_id, checkpoint, error)
        return await self._plain_state(thread_id, checkpoint)

    async def _needs_graph(
        self, state: Checkpoint | None, checkpoint: CheckpointRef | None, subgraphs: bool
    ) -> bool:
        """Return whether only the graph can read parts of a state: those of subgraphs."""
        if state is None or (checkpoint is not None and checkpoint.checkpoint_ns):
            return state is not None
        if subgraphs and checkpoint is not None and checkpoint.checkpoint_id:
            state = await self._threads.peek_state(state.thread_id, checkpoint.checkpoint_id)
        return subgraphs and state is not None and bool(state.next)

    async def _plain_state(self, thread_id: str, checkpoint: CheckpointRef | None) -> dict[str, Any]:
        if checkpoint is not None and checkpoint.checkpoint_ns:
            raise NotFound(f"thread {thread_id} has no state of a graph, so it has no state of a subgraph")
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

        Returns `{"checkpoint", "configurable", "checkpoint_id"}`. `values` may be None, an object, or a list
        of objects. Conflict while the thread is busy, and InvalidInput for an update that the graph refuses.
        """
        await self._refuse_busy(thread_id)
        if checkpoint is not None and not checkpoint.checkpoint_ns:
            # A graph would treat a missing state as an empty one.
            await self._threads.peek_state(thread_id, checkpoint.checkpoint_id)
        latest = await self._threads.peek_state(thread_id)
        graph = await self._find_graph(thread_id, latest)
        if graph is None:
            return await self._plain_update(thread_id, values, checkpoint)
        call = UpdateState(values=values, as_node=as_node, place=_build_place(checkpoint))
        return dict(await self._perform(graph, thread_id, latest, call))

    async def update_state_at(
        self, thread_id: str, values: Any, as_node: str | None, checkpoint_id: str | None
    ) -> str:
        """Add a state of the root graph after a checkpoint; return the ID of the new checkpoint."""
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
        """List states (`ThreadState`) of the graph, or of the subgraph in `checkpoint`, the newest first.

        `metadata` filters by values of the metadata; `before` returns only older states.
        """
        end = None if before is None else before.checkpoint_id
        latest = await self._threads.peek_state(thread_id)
        graph = await self._find_graph(thread_id, latest) if latest is not None and latest.graph else None
        inner = checkpoint is not None and checkpoint.checkpoint_ns != ""
        if graph is None or (isinstance(graph, str) and not inner):
            return await self._plain_history(thread_id, limit, end, metadata)
        call = ListStates(place=_build_place(checkpoint), limit=limit, before=end, metadata=metadata)
        try:
            return list(await self._perform(graph, thread_id, latest, call))
        except UnreadableState as error:
            _report_unreadable(thread_id, checkpoint, error)
        return await self._plain_history(thread_id, limit, end, metadata)

    async def _plain_history(
        self, thread_id: str, limit: int, before: str | None, metadata: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        rows = await self._threads.history(thread_id, limit=limit, before=before, metadata=metadata)
        return [plain_state(thread_id, row) for row in rows]

    async def supersteps(
        self, thread_id: str, supersteps: Sequence[Mapping[str, Any]], graph_id: str | None = None
    ) -> dict[str, Any]:
        """Apply supersteps to a thread in order; return what `update_state` returns for the last.

        Each superstep is `{"updates": [{"values", "command", "as_node"}]}`. `graph_id` names the graph if the
        thread's metadata does not.
        """
        await self._refuse_busy(thread_id)
        latest = await self._threads.peek_state(thread_id)
        graph = await self._find_graph(thread_id, latest, graph_id)
        if graph is None:
            raise InvalidInput(f"thread {thread_id} has no graph to apply supersteps to: give its graph_id")
        return dict(await self._perform(graph, thread_id, latest, ApplySupersteps(supersteps=supersteps)))

    async def _refuse_busy(self, thread_id: str) -> None:
        """Raise Conflict while the thread is busy, because a run's graph may refuse the change.

        If a run starts later, storing the change raises the Conflict.
        """
        if (await self._threads.get_thread(thread_id)).status == "busy":
            raise Conflict(f"Thread {thread_id} is busy with a run; its state can be changed afterwards")

    async def _perform(
        self, graph: GraphAgent | str, thread_id: str, latest: Checkpoint | None, call: GraphCall
    ) -> Any:
        """Execute a call on a thread with its graph: here, or in a worker that has the graph."""
        if isinstance(graph, str):
            return await self._requests.ask(graph, thread_id, call)
        from perdure.langgraph.reading import GraphThread, perform

        checkpoints = _ReadOnlyCheckpoints(self._threads, thread_id)
        performed = await perform(graph, checkpoints, GraphThread(thread_id, self._store(), latest), call)
        if performed.steps is not None:
            after = None if latest is None else latest.checkpoint_id
            await self._threads.update_graph(thread_id, performed.steps, after)
        return performed.answer

    async def _plain_update(
        self, thread_id: str, values: Any, checkpoint: CheckpointRef | None
    ) -> dict[str, Any]:
        wanted = None if checkpoint is None else checkpoint.checkpoint_id
        state = await self._threads.update_state(thread_id, values, checkpoint_id=wanted)
        place = _place(thread_id, state.checkpoint_id)
        return {"checkpoint": place, "configurable": place, "checkpoint_id": state.checkpoint_id}

    # --- graphs -----------------------------------------------------------------------------------------

    async def graph(self, assistant_id: str, *, xray: bool | int = False) -> dict[str, Any]:
        """Get the `{"nodes", "edges"}` of an assistant's graph. Other agents have one node."""
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
        """Get the JSON Schemas of an assistant's graph.

        The result has `graph_id`, `input_schema`, `output_schema`, `state_schema`, `config_schema` and
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
        """Get the schemas of the subgraphs of an assistant's graph, by name."""
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
        """Get what a worker registered about an agent whose code this process does not have."""
        description = await self._assistants.description(agent)
        if description is None:
            raise AgentUnavailable(
                f"no worker has registered the schemas and drawings of the agent {agent!r} yet:"
                " start a worker that has it"
            )
        return description

    @asynccontextmanager
    async def _open(self, assistant: Assistant, agent: Any) -> AsyncIterator[Any]:
        from perdure.langgraph.factory import FactoryContext

        given = assistant.config.get("configurable") or {}
        named = {"assistant_id": assistant.assistant_id, GRAPH_ID: assistant.agent}
        config = {**assistant.config, "configurable": {**given, **named}}
        async with agent.factory.open(FactoryContext(config, "assistants.read", self._store())) as graph:
            yield graph

    def _store(self) -> Any:
        """Return the store for factories."""
        from perdure.langgraph.store import ItemStore

        return None if self._items is None else ItemStore(self._items.run, _wait)

    # --- the graph of a thread --------------------------------------------------------------------------

    async def _find_graph(
        self, thread_id: str, latest: Checkpoint | None, named: str | None = None
    ) -> GraphAgent | str | None:
        """Find the graph of a thread: its agent, or its name if only workers have it."""
        name = named or await self._graph_id(thread_id, latest)
        if name is None:
            return None
        agent: Any = self._agents.get(name)
        if agent is not None:
            return agent if agent.spec.kind == GRAPH else None
        if named is not None or (latest is not None and _is_of_graph(latest)):
            return name
        return name if await self._assistants.kind(name) == GRAPH else None

    async def _graph_id(self, thread_id: str, latest: Checkpoint | None) -> str | None:
        """Return the name of a thread's graph, from its state, its metadata, or its last run."""
        name = (latest.metadata if latest is not None else {}).get(GRAPH_ID)
        if not isinstance(name, str):
            name = (await self._threads.get_thread(thread_id)).metadata.get(GRAPH_ID)
        if isinstance(name, str):
            return name
        runs = await self._threads.list_runs(thread_id=thread_id, limit=1)
        return runs.items[0].agent if runs.items else None


def _report_unreadable(thread_id: str, checkpoint: CheckpointRef | None, error: UnreadableState) -> None:
    """Log that a state is shown as stored. For a state of a subgraph, raise InvalidInput."""
    if checkpoint is not None and checkpoint.checkpoint_ns:
        raise InvalidInput(
            f"the graph of thread {thread_id} cannot read this state: {error.message}"
        ) from error
    logger.warning(
        "thread %s: its state is shown as stored, because its graph refuses it: %s", thread_id, error.message
    )


def _is_of_graph(state: Checkpoint | None) -> bool:
    """Return whether a graph can read the latest state of a thread."""
    return state is None or state.graph or state.state is not None


def _build_place(checkpoint: CheckpointRef | None) -> dict[str, Any] | None:
    return None if checkpoint is None else checkpoint.place


# --- stored states ----------------------------------------------------------------------------------------


def _place(thread_id: str, checkpoint_id: str) -> dict[str, Any]:
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}


def plain_state(thread_id: str, state: Checkpoint | None) -> dict[str, Any]:
    """Return a stored state in the shape of `ThreadState`."""
    if state is None:
        return _EMPTY_STATE | {"values": {}, "next": [], "tasks": [], "interrupts": []}
    interrupts = [{"id": interrupt.id, "value": interrupt.value} for interrupt in state.interrupts]
    parent = state.parent_id
    return {
        "values": {} if state.values is None else state.values,
        "next": state.next,
        "tasks": [_task(name, interrupts if number == 0 else []) for number, name in enumerate(state.next)],
        "metadata": state.metadata,
        "created_at": datetime.fromtimestamp(state.created_at, UTC).isoformat(),
        "checkpoint": _place(thread_id, state.checkpoint_id),
        "parent_checkpoint": None if parent is None else _place(thread_id, parent),
        "interrupts": interrupts,
        "checkpoint_id": state.checkpoint_id,
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
