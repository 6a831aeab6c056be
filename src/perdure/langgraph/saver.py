"""The checkpointer of a run: LangGraph's checkpoints, stored as records of the graphs domain."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.types import Command

from perdure.agents.context import Context, GraphCheckpoints
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphChanges,
    GraphPut,
    GraphState,
    GraphSteps,
    GraphTuple,
    GraphWrite,
)
from perdure.langgraph.codec import (
    GraphCodec,
    build_config,
    build_query,
    next_version,
    parse_config,
    query_delta,
)
from perdure.langgraph.legacy import decode_legacy
from perdure.langgraph.session import SessionMessages
from perdure.langgraph.shown import ShownStates
from perdure.langgraph.wire import build_interrupt, encode_value
from perdure.streams.model import VALUES

INTERRUPT = "__interrupt__"
TASKS = "__pregel_tasks"
START = "__start__"
EMPTY_STEP = -2
"""The step of a checkpoint that holds nothing but writes."""
NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task id of the writes of a command."""


Written = list[GraphWrite]
"""The writes of a task. Inside a saver the name `list` is a method."""


class GraphSaver(BaseCheckpointSaver[str]):
    """A LangGraph checkpointer over the stored checkpoints of one thread.

    `current_id` is the checkpoint of the root graph that is the thread's state. Later checkpoints may exist
    that belong to runs which were rolled back.
    """

    def __init__(
        self,
        checkpoints: GraphCheckpoints,
        codec: GraphCodec,
        thread_id: str,
        current_id: str | None = None,
    ) -> None:
        # Not by LangGraph's constructor: whether it is a serializer was asked when the graph was loaded.
        self.serde = codec.serde
        self.current_id = current_id
        self._checkpoints = checkpoints
        self._codec = codec
        self._thread_id = thread_id

    def get_next_version(self, current: str | None, channel: None) -> str:
        return next_version(current)

    # --- reading; sync calls come from subgraphs that sync nodes invoke ----------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        query = await self._query(config)
        found = await self._checkpoints.find(query) if query is not None else []
        return self._read(found[0]) if found else None

    def _read(self, found: GraphTuple) -> CheckpointTuple:
        return self._codec.read(found)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._checkpoints.wait(lambda: self.aget_tuple(config))

    async def _query(self, config: RunnableConfig) -> CheckpointQuery | None:
        """The query for the checkpoint that a config names; None if there cannot be one."""
        _, namespace, checkpoint_id = parse_config(config)
        if checkpoint_id is None and not namespace:
            return None if self.current_id is None else self._at("", self.current_id)
        return self._at(namespace, checkpoint_id)

    def _at(self, namespace: str, checkpoint_id: str | None) -> CheckpointQuery:
        return CheckpointQuery(
            thread_id=self._thread_id, checkpoint_ns=namespace, checkpoint_id=checkpoint_id, limit=1
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        if config is None:
            return
        for found in await self._checkpoints.find(
            build_query(config, filter=filter, before=before, limit=limit)
        ):
            yield self._codec.read(found, remember=False)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def listed() -> Sequence[CheckpointTuple]:
            return [each async for each in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._checkpoints.wait(listed)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        if not channels:
            return {}
        await self._checkpoints.settle()
        return self._codec.history(await self._checkpoints.deltas(query_delta(config, channels)))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._checkpoints.wait(
            lambda: self.aget_delta_channel_history(config=config, channels=channels)
        )

    # --- writing ----------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        put = self._codec.put(config, checkpoint, metadata, new_versions)
        self._keep(put, checkpoint)
        return build_config(put.thread_id, put.checkpoint_ns, put.checkpoint_id)

    def _keep(self, put: GraphPut, checkpoint: Checkpoint) -> None:
        raise NotImplementedError

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._keep_writes(self._codec.writes(config, writes, task_id, task_path))

    def _keep_writes(self, writes: Written) -> None:
        raise NotImplementedError

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    # LangGraph asks for it at the start of each run.
    aput_writes.__signature__ = inspect.signature(aput_writes)  # type: ignore[attr-defined]


class RunSaver(GraphSaver):
    """The checkpointer of a run: it continues from the thread's state, and stores each step."""

    def __init__(self, ctx: Context, codec: GraphCodec, *, durable: bool = False) -> None:
        super().__init__(ctx.graph, codec, ctx.thread_id)
        self.shown = ShownStates() if VALUES in ctx.stream_mode else None
        """The states that the run's stream shows, if it shows any."""
        self._messages = SessionMessages(ctx)
        self.resumed = False
        """Whether an earlier attempt of this run has stored a checkpoint to continue from."""
        self._ctx = ctx
        self._durable = durable
        self._graph: Any = None
        self._output: list[str] | str | None = None
        self._addressed = False
        self._resuming = True
        self._importing = False
        self._unsettled = False
        self._namespaces: set[str] = set()
        self._last: GraphState | None = None
        self._values: Mapping[str, Any] = {}
        self._asking: str | None = None
        self._foreign_checkpoints: set[str] = set()
        """Checkpoints that are not states of the thread."""

    # --- start ------------------------------------------------------------------------------------------

    async def start(self, graph: Any) -> None:
        """Find the checkpoint to continue from; the thread's values may not come from a graph."""
        self._graph = graph
        self._output = get_output_channels(graph)
        if self.shown is not None and isinstance(graph.output_channels, str):
            self.shown.single = graph.output_channels
        found = self._ctx.checkpoint
        if found is None:
            return
        if found.graph:
            self.current_id = found.checkpoint_id
        elif found.state is not None:
            self._revive(found)
        elif isinstance(found.values, dict) and found.values:
            await self._import_values(found.values)
            return
        self.resumed = self.current_id is not None and found.run_id == self._ctx.run_id

    def _revive(self, found: Any) -> None:
        """Store the state of an earlier release as checkpoints."""
        legacy = decode_legacy(found, self._thread_id, self.serde)
        self.current_id = legacy.current_id
        if self.current_id is not None and self.current_id != found.checkpoint_id:
            self._foreign_checkpoints.add(self.current_id)
        self._send(GraphSteps(changes=legacy.changes))

    async def _import_values(self, values: Mapping[str, Any]) -> None:
        """Make the thread's values the state that the graph starts with."""
        # This is no state of the thread: one of this run would mean that its input was applied.
        self._importing = True
        config: RunnableConfig = {"configurable": {"thread_id": self._thread_id}}
        await self._graph.aupdate_state(config, values, as_node=START)
        self._importing = False

    async def initial_input(self, input: Any, command: Command[Any] | None, *, addressed: bool) -> Any:
        """What the graph is started with: nothing after an earlier attempt, a command, or the input.

        `addressed` says whether the run names the checkpoint to continue from.
        """
        self._addressed = addressed and not self.resumed
        if self.resumed:
            return None
        if command is None:
            self._resuming = input is None or self._addressed
            return input
        return await self._remaining(command)

    async def _remaining(self, command: Command[Any]) -> Any:
        """The part of a command that no earlier attempt has stored."""
        if self._ctx.attempt == 1 or self.current_id is None or not (command.update or command.goto):
            return command
        found = await self._checkpoints.find(self._at("", self.current_id))
        if not any(write.task_id == NO_TASK and write.idx >= 0 for each in found for write in each.writes):
            return command
        return None if command.resume is None else Command(resume=command.resume)

    # --- reading ----------------------------------------------------------------------------------------

    def _read(self, found: GraphTuple) -> CheckpointTuple:
        if self.shown is not None:
            self.shown.read(found)
        checkpoint = super()._read(found)
        if not found.checkpoint_ns and self._last is None:
            # The run adds to what it continues from.
            self._messages.remember(checkpoint.checkpoint["channel_values"])
        return checkpoint

    async def _query(self, config: RunnableConfig) -> CheckpointQuery | None:
        _, namespace, checkpoint_id = parse_config(config)
        if checkpoint_id is None and namespace and not self._may_exist(namespace):
            return None
        await self._settled()
        if checkpoint_id is None and not namespace and self._addressed and self._last is None:
            # LangGraph checks whether the thread has moved on since the checkpoint of the run.
            return self._at("", None)
        return await super()._query(config)

    def _may_exist(self, namespace: str) -> bool:
        """Whether a subgraph may have a checkpoint; that of a task has none before the task starts."""
        if namespace in self._namespaces:
            return True
        return self._ctx.checkpoint is not None and (self._resuming or ":" not in namespace)

    async def _settled(self) -> None:
        if self._unsettled:
            self._unsettled = False
            await self._checkpoints.settle()

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        await self._settled()
        async for each in super().alist(config, filter=filter, before=before, limit=limit):
            yield each

    # --- writing ----------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        made = self.put(config, checkpoint, metadata, new_versions)
        if self._importing:
            self._messages.remember(checkpoint["channel_values"])
        elif not made["configurable"]["checkpoint_ns"]:
            for message in self._messages.new(checkpoint["channel_values"], new_versions):
                await self._messages.log(message)
        if self._durable:
            await self._settled()
        else:
            await self._checkpoints.ready()
        return made

    def _keep(self, put: GraphPut, checkpoint: Checkpoint) -> None:
        self._namespaces.add(put.checkpoint_ns)
        states: list[GraphState] = []
        if not put.checkpoint_ns:
            self.current_id = put.checkpoint_id
            if self._importing or put.metadata.get("step") == EMPTY_STEP:
                self._foreign_checkpoints.add(put.checkpoint_id)
            else:
                states = [self._state(put, checkpoint)]
        self._send(GraphSteps(changes=GraphChanges(puts=[put]), states=states))
        if self.shown is not None:
            self.shown.stored(put)

    def _state(self, put: GraphPut, checkpoint: Checkpoint) -> GraphState:
        self._values = checkpoint["channel_values"]
        state = self._last = GraphState(
            checkpoint_id=put.checkpoint_id,
            parent_id=None if put.parent_id in self._foreign_checkpoints else put.parent_id,
            next=next_nodes(self._graph, checkpoint),
            metadata=put.metadata,
            output=self._output,
        )
        return state

    def _keep_writes(self, writes: Written) -> None:
        for write in writes:
            if write.channel == INTERRUPT and not write.checkpoint_ns:
                self._asking = write.checkpoint_id
        self._send(GraphSteps(changes=GraphChanges(writes=writes)))

    def _send(self, steps: GraphSteps) -> None:
        self._unsettled = True
        self._checkpoints.put(steps)

    # --- end --------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Store the final state of the thread: its values, the next nodes, and the interrupts."""
        if self.current_id is None:
            return
        self._addressed = False
        last = self._last
        if last is not None and self._is_done(last):
            body = encode_value(visible_values(self._graph, self._values))
            state = msgspec.structs.replace(last, parent_id=None, body=body, again=True)
        else:
            snapshot = await self._graph.aget_state({"configurable": {"thread_id": self._thread_id}})
            final = final_state(self._graph, snapshot, self.current_id)
            state = msgspec.structs.replace(final, again=self.current_id not in self._foreign_checkpoints)
        self._send(GraphSteps(states=[state]))

    def _is_done(self, last: GraphState) -> bool:
        """Whether the last state alone shows that nothing runs after it."""
        return not (last.next or self._asking == last.checkpoint_id or has_delta_channels(self._graph))


def next_nodes(graph: Any, checkpoint: Checkpoint) -> list[str]:
    """The nodes that may run after a checkpoint, without preparing them; if none is given, none runs."""
    updated = checkpoint.get("updated_channels") or ()
    nodes = {node for channel in updated for node in graph.trigger_to_nodes.get(channel, ())}
    sent = checkpoint["channel_values"].get(TASKS) or ()
    return [*sorted(nodes), *(send.node for send in sent)]


def has_delta_channels(graph: Any) -> bool:
    """Whether a channel of the graph is stored as changes, so that a checkpoint lacks its value."""
    return any(type(channel).__name__ == "DeltaChannel" for channel in graph.channels.values())


def visible_values(graph: Any, values: Mapping[str, Any]) -> Any:
    """The channels that are part of the state that a thread shows."""
    channels = graph.stream_channels_asis
    if isinstance(channels, str):
        return values.get(channels)
    known = {name: values[name] for name in channels if name in values}
    return {**_defaults(graph, [name for name in channels if name not in values]), **known}


def _defaults(graph: Any, names: Sequence[str]) -> dict[str, Any]:
    """The values of channels that nothing was written to yet; most are empty."""
    return {name: channel.get() for name in names if (channel := graph.channels[name]).is_available()}


def get_output_channels(graph: Any) -> list[str] | str | None:
    """The channels that a run returns; None for all that the thread shows."""
    output, shown = graph.output_channels, graph.stream_channels_asis
    if isinstance(output, str):
        return None if output == shown else output
    return None if not isinstance(shown, str) and set(output) == set(shown) else list(output)


def final_state(graph: Any, snapshot: Any, checkpoint_id: str) -> GraphState:
    """The state of a thread, from a snapshot of its graph."""
    interrupts = [
        {**build_interrupt(each), "task_id": task.id} for task in snapshot.tasks for each in task.interrupts
    ]
    return GraphState(
        checkpoint_id=checkpoint_id,
        next=list(snapshot.next),
        interrupts=interrupts,
        metadata=cast("dict[str, Any]", snapshot.metadata or {}),
        body=encode_value(snapshot.values),
        whole=has_delta_channels(graph),
        output=get_output_channels(graph),
    )
