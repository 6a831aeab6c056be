"""Reads and updates of the graph states of a thread, from outside its runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.types import StateUpdate
from pydantic import ValidationError

from perdure.agents.context import AgentError, GraphCheckpoints
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphState, GraphSteps, Typed
from perdure.graph_requests.model import UnreadableState
from perdure.graph_requests.records import (
    GraphCall,
    ListStates,
    Place,
    ReadState,
    UpdateState,
)
from perdure.kernel.errors import BadRequest, NotFound, PerdureError
from perdure.langgraph.agent import GraphAgent, build_command, with_checkpointer
from perdure.langgraph.codec import GraphCodec, build_config, decode_legacy, parse_config
from perdure.langgraph.factory import Access, FactoryContext
from perdure.langgraph.saver import START, GraphSaver, Written, final_state, get_output_channels, next_nodes
from perdure.langgraph.wire import build_state, get_checkpoint, plain

_REFUSED = (InvalidUpdateError, EmptyInputError, ValidationError, ValueError, TypeError, KeyError)
"""Errors of a graph that refuses an update."""


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except PerdureError:
        raise
    except Exception as error:
        raise UnreadableState(f"{type(error).__name__}: {error}") from error


class GraphThread(NamedTuple):
    """Thread whose states are read or updated."""

    thread_id: str
    store: Any
    latest: Any
    """Latest state (`perdure.threads.records.Checkpoint`), or None."""


class _Unsaved(NamedTuple):
    """Checkpoint that is not stored yet."""

    whole: Typed
    put: GraphPut


class CollectingSaver(GraphSaver):
    """Checkpointer that collects changes, to be stored together."""

    def __init__(
        self, checkpoints: GraphCheckpoints, codec: GraphCodec, thread_id: str, current_id: str | None
    ) -> None:
        super().__init__(checkpoints, codec, thread_id, current_id)
        self.changes = GraphChanges()
        self.foreign_checkpoints: set[str] = set()
        self._unsaved: dict[tuple[str, str], _Unsaved] = {}
        self._latest: dict[str, str] = {}

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        _, namespace, checkpoint_id = parse_config(config)
        wanted = checkpoint_id or self._latest.get(namespace)
        unsaved = self._unsaved.get((namespace, wanted or ""))
        return self._tuple(unsaved) if unsaved is not None else await super().aget_tuple(config)

    def _tuple(self, unsaved: _Unsaved) -> CheckpointTuple:
        put = unsaved.put
        place = (put.thread_id, put.checkpoint_ns)
        pending = [
            (write.task_id, write.channel, self.serde.loads_typed(write.value))
            for write in self.changes.writes
            if (write.checkpoint_ns, write.checkpoint_id) == (put.checkpoint_ns, put.checkpoint_id)
        ]
        return CheckpointTuple(
            config=build_config(*place, put.checkpoint_id),
            checkpoint=self.serde.loads_typed(unsaved.whole),
            metadata=cast(CheckpointMetadata, dict(put.metadata)),
            parent_config=build_config(*place, put.parent_id) if put.parent_id else None,
            pending_writes=pending,
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        _, namespace, checkpoint_id = parse_config(config)
        if (namespace, checkpoint_id or self._latest.get(namespace, "")) in self._unsaved:
            return await BaseCheckpointSaver.aget_delta_channel_history(
                self, config=config, channels=channels
            )
        return await super().aget_delta_channel_history(config=config, channels=channels)

    def _keep(self, put: GraphPut, checkpoint: Checkpoint) -> None:
        self._unsaved[put.checkpoint_ns, put.checkpoint_id] = _Unsaved(
            self.serde.dumps_typed(checkpoint), put
        )
        self._latest[put.checkpoint_ns] = put.checkpoint_id
        self.changes.puts.append(put)
        if not put.checkpoint_ns:
            self.current_id = put.checkpoint_id

    def _keep_writes(self, writes: Written) -> None:
        self.changes.writes.extend(writes)

    def revive(self, stored: Any) -> None:
        """Add the checkpoints of a state that an earlier release stored."""
        legacy = decode_legacy(stored, self._thread_id, self.serde)
        for put, checkpoint in legacy.checkpoints:
            self._keep(put, checkpoint)
        self.changes.writes.extend(legacy.writes)
        self.current_id = legacy.current_id
        self.mark_foreign()

    def mark_foreign(self) -> None:
        """Exclude the checkpoints collected so far from the states of the thread."""
        self.foreign_checkpoints.update(put.checkpoint_id for put in self.changes.puts)

    def unsaved_checkpoint(self, put: GraphPut) -> Checkpoint:
        """Return a checkpoint that is not stored yet."""
        whole = self._unsaved[put.checkpoint_ns, put.checkpoint_id].whole
        return cast(Checkpoint, self.serde.loads_typed(whole))


class GraphStates:
    """Graph and its states in one thread."""

    def __init__(self, graph: Any, name: str, saver: CollectingSaver, thread_id: str) -> None:
        self._graph = graph
        self._name = name
        self._saver = saver
        self._thread_id = thread_id

    def _config(self, place: Place | None) -> RunnableConfig:
        given = {key: part for key, part in (place or {}).items() if part is not None}
        configurable = {"thread_id": self._thread_id, **given}
        return {"configurable": configurable, "metadata": {"graph_id": self._name}}

    # --- reading ----------------------------------------------------------------------------------------

    async def state(self, place: Place | None, *, subgraphs: bool) -> dict[str, Any]:
        """Get a state, by default the latest. UnreadableState if the graph's code refuses it."""
        with _reading():
            snapshot = await self._graph.aget_state(self._config(place), subgraphs=subgraphs)
        if place and place.get("checkpoint_id") and snapshot.metadata is None:
            raise NotFound(f"Checkpoint {place['checkpoint_id']} not found in thread {self._thread_id}")
        return cast("dict[str, Any]", plain(build_state(snapshot)))

    async def history(
        self, place: Place | None, *, limit: int, before: str | None, metadata: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """List states, the newest first. UnreadableState if the graph's code refuses one."""
        end = None if before is None else build_config(self._thread_id, "", before)
        snapshots = self._graph.aget_state_history(
            self._config({"checkpoint_ns": "", **(place or {})}),
            filter=dict(metadata) if metadata else None,
            before=end,
            limit=limit,
        )
        with _reading():
            return [plain(build_state(snapshot)) async for snapshot in snapshots]

    # --- changing ---------------------------------------------------------------------------------------

    async def start_with(self, latest: Any) -> None:
        """Start with the values of the latest state, if they do not come from a graph."""
        if latest is None or latest.graph or latest.state is not None or not isinstance(latest.values, dict):
            return
        await self._updating(self._graph.aupdate_state(self._config(None), latest.values, as_node=START))
        self._saver.mark_foreign()

    async def update(self, values: Any, as_node: str | None, place: Place | None) -> dict[str, Any]:
        """Add a state; return its checkpoint."""
        config = await self._updating(self._graph.aupdate_state(self._config(place), values, as_node))
        return _checkpoint_in(config)

    async def supersteps(self, supersteps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add states, each from several concurrent updates; return the last checkpoint."""
        steps = [[_update(update) for update in step.get("updates") or ()] for step in supersteps]
        config = await self._updating(self._graph.abulk_update_state(self._config(None), steps))
        return _checkpoint_in(config)

    async def _updating(self, updating: Any) -> Any:
        try:
            return await updating
        except _REFUSED as error:
            raise BadRequest(f"the graph refuses the update: {type(error).__name__}: {error}") from error

    async def steps(self) -> GraphSteps:
        """Return all changes, to be stored."""
        changes = self._saver.changes
        foreign_checkpoints = self._saver.foreign_checkpoints
        roots = [
            put
            for put in changes.puts
            if not put.checkpoint_ns and put.checkpoint_id not in foreign_checkpoints
        ]
        states = [self._state(put) for put in roots]
        if states:
            snapshot = await self._graph.aget_state(self._config(None))
            final = final_state(self._graph, snapshot, states[-1].checkpoint_id)
            states[-1] = msgspec.structs.replace(final, parent_id=states[-1].parent_id)
        return GraphSteps(changes=changes, states=states)

    def _state(self, put: GraphPut) -> GraphState:
        return GraphState(
            checkpoint_id=put.checkpoint_id,
            parent_id=None if put.parent_id in self._saver.foreign_checkpoints else put.parent_id,
            next=next_nodes(self._graph, self._saver.unsaved_checkpoint(put)),
            metadata=put.metadata,
            output=get_output_channels(self._graph),
        )


def _update(given: Mapping[str, Any]) -> StateUpdate:
    command = given.get("command")
    values: Any = build_command(command) if command else given.get("values")
    return StateUpdate(values, given.get("as_node"))


def _checkpoint_in(config: RunnableConfig) -> dict[str, Any]:
    checkpoint = get_checkpoint(config)
    if checkpoint is None:
        raise AgentError("the graph stored no checkpoint")
    return {
        "checkpoint": checkpoint,
        "configurable": checkpoint,
        "checkpoint_id": checkpoint["checkpoint_id"],
    }


class Performed(NamedTuple):
    """Answer to a call as plain data, and the changes to the thread."""

    answer: Any
    steps: GraphSteps | None = None


async def perform(
    agent: GraphAgent, checkpoints: GraphCheckpoints, thread: GraphThread, call: GraphCall
) -> Performed:
    """Read or update the states of a graph. Nothing is stored: the caller stores the steps."""
    reads = isinstance(call, ReadState | ListStates)
    async with open_view(agent, checkpoints, thread, "threads.read" if reads else "threads.update") as view:
        if isinstance(call, ReadState):
            return Performed(await view.state(call.place, subgraphs=call.subgraphs))
        if isinstance(call, ListStates):
            states = await view.history(
                call.place, limit=call.limit, before=call.before, metadata=call.metadata
            )
            return Performed(states)
        await view.start_with(thread.latest)
        if isinstance(call, UpdateState):
            checkpoint = await view.update(call.values, call.as_node, call.place)
        else:
            checkpoint = await view.supersteps(call.supersteps)
        return Performed(checkpoint, await view.steps())


@asynccontextmanager
async def open_view(
    agent: GraphAgent, checkpoints: GraphCheckpoints, thread: GraphThread, access: Access
) -> AsyncIterator[GraphStates]:
    """Open the graph of an agent in a thread."""
    name, latest = agent.spec.name, thread.latest
    config = {"configurable": {"thread_id": thread.thread_id, "graph_id": name}}
    async with agent.factory.open(FactoryContext(config, access, thread.store)) as graph:
        codec = GraphCodec(agent.factory.serializer(graph))
        current_id = latest.checkpoint_id if latest is not None and latest.graph else None
        saver = CollectingSaver(checkpoints, codec, thread.thread_id, current_id)
        if latest is not None and latest.state is not None:
            saver.revive(latest)
        yield GraphStates(with_checkpointer(graph, name, saver, thread.store), name, saver, thread.thread_id)
