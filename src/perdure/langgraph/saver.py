"""Checkpointer of a run. It stores LangGraph's checkpoints, and copies messages to the run's session."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
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
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.codec import (
    GraphCodec,
    build_config,
    build_query,
    decode_legacy,
    next_version,
    parse_config,
    query_delta,
)
from perdure.langgraph.stream import ShownStates
from perdure.langgraph.wire import build_interrupt, encode_value
from perdure.streams.model import VALUES

# --- messages of the session ------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

TOOL_BLOCKS = frozenset({"tool_use", "tool_call", "input_json_delta"})
"""Content blocks that repeat the tool calls of the message."""


class SessionMessages:
    """Writes new messages of the state to the session, and remembers those of earlier runs."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._known: set[tuple[str, Any]] = set()

    def remember(self, values: Mapping[str, Any]) -> None:
        """Mark the messages of a state as messages of earlier runs and attempts."""
        self._known.update(key for key, _ in _messages(values, values))

    def new(self, values: Mapping[str, Any], changed: Iterable[str]) -> Iterator[BaseMessage]:
        """Return the new messages of the changed channels."""
        for key, message in _messages(values, changed):
            if key not in self._known:
                self._known.add(key)
                yield message

    async def log(self, message: BaseMessage) -> None:
        """Write a message to the session."""
        try:
            await self._write(message)
        except InvalidInput as error:
            logger.warning("run %s: a message is not in its session: %s", self._ctx.run_id, error.message)

    async def _write(self, message: BaseMessage) -> None:
        ctx = self._ctx
        if isinstance(message, AIMessage):
            details = message.response_metadata
            model = details.get("model_name") or details.get("model")
            model = model if isinstance(model, str) else None
            await ctx.message("assistant", _build_content(message), model, _usage(message))
        elif isinstance(message, ToolMessage):
            await ctx.tool_result(message.tool_call_id, _content(message), message.status == "error")
        elif isinstance(message, HumanMessage):
            await ctx.message("user", _content(message))
        elif isinstance(message, SystemMessage):
            await ctx.message("system", message.text)


def _messages(values: Mapping[str, Any], channels: Iterable[str]) -> Iterator[tuple[tuple[str, Any], Any]]:
    """Return the messages in lists of a state, each with its key: its ID, or its position."""
    for channel in channels:
        value = values.get(channel)
        for place, message in enumerate(value if isinstance(value, list) else ()):
            if isinstance(message, BaseMessage):
                yield (channel, message.id or place), message


def _content(message: BaseMessage) -> str | list[dict[str, Any]]:
    return message.content if isinstance(message.content, str) else [*_blocks(message.content)]


def _blocks(content: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for block in content:
        if isinstance(block, str):
            yield {"type": "text", "text": block}
        elif isinstance(block, dict) and isinstance(block.get("type"), str):
            yield block


def _build_content(message: AIMessage) -> list[dict[str, Any]]:
    content = [message.content] if isinstance(message.content, str) else message.content
    blocks = [block for block in _blocks(content) if block["type"] not in TOOL_BLOCKS]
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
        for call in message.tool_calls
    ]
    return blocks + calls


def _usage(message: AIMessage) -> dict[str, int] | None:
    """Return the usage of a message. Cached tokens are not part of the input tokens."""
    metadata = message.usage_metadata
    if metadata is None:
        return None
    details = metadata.get("input_token_details") or {}
    read, created = details.get("cache_read") or 0, details.get("cache_creation") or 0
    usage = {
        "input_tokens": max(0, metadata["input_tokens"] - read - created),
        "output_tokens": metadata["output_tokens"],
    }
    if read or created:
        usage |= {"cache_read_input_tokens": read, "cache_creation_input_tokens": created}
    return usage


# --- the checkpointer -------------------------------------------------------------------------------------


INTERRUPT = "__interrupt__"
TASKS = "__pregel_tasks"
START = "__start__"
EMPTY_STEP = -2
"""Step of a checkpoint that contains only writes."""
NO_TASK = "00000000-0000-0000-0000-000000000000"
"""Task ID of the writes of a command."""


Written = list[GraphWrite]
"""Writes of a task. Inside a saver the name `list` is a method."""


class GraphSaver(BaseCheckpointSaver[str]):
    """LangGraph checkpointer over the stored checkpoints of one thread.

    `current_id` is the checkpoint of the root graph that is the thread's state. Later checkpoints may belong
    to rolled-back runs.
    """

    def __init__(
        self,
        checkpoints: GraphCheckpoints,
        codec: GraphCodec,
        thread_id: str,
        current_id: str | None = None,
    ) -> None:
        # LangGraph's constructor is skipped: the serializer was checked when the graph was loaded.
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
        stored = await self._checkpoints.find(query) if query is not None else []
        return self._read(stored[0]) if stored else None

    def _read(self, stored: GraphTuple) -> CheckpointTuple:
        return self._codec.read(stored)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._checkpoints.wait(lambda: self.aget_tuple(config))

    async def _query(self, config: RunnableConfig) -> CheckpointQuery | None:
        """Build the query for the checkpoint that a config names; None if it cannot exist."""
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
        for stored in await self._checkpoints.find(
            build_query(config, filter=filter, before=before, limit=limit)
        ):
            yield self._codec.read(stored, remember=False)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def listed() -> Sequence[CheckpointTuple]:
            return [item async for item in self.alist(config, filter=filter, before=before, limit=limit)]

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

    # LangGraph reads the signature at the start of each run.
    aput_writes.__signature__ = inspect.signature(aput_writes)  # type: ignore[attr-defined]


class RunSaver(GraphSaver):
    """Checkpointer of a run. It continues from the thread's state, and stores each step."""

    def __init__(self, ctx: Context, codec: GraphCodec, *, durable: bool = False) -> None:
        super().__init__(ctx.graph, codec, ctx.thread_id)
        self.shown = ShownStates() if VALUES in ctx.stream_mode else None
        """States in the run's stream, if it has any."""
        self._messages = SessionMessages(ctx)
        self.resumed = False
        """True if an earlier attempt of this run stored a checkpoint to continue from."""
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
        """Find the checkpoint to continue from. The thread's values may not come from a graph."""
        self._graph = graph
        self._output = get_output_channels(graph)
        if self.shown is not None and isinstance(graph.output_channels, str):
            self.shown.single = graph.output_channels
        latest = self._ctx.checkpoint
        if latest is None:
            return
        if latest.graph:
            self.current_id = latest.checkpoint_id
        elif latest.state is not None:
            self._revive(latest)
        elif isinstance(latest.values, dict) and latest.values:
            await self._import_values(latest.values)
            return
        self.resumed = self.current_id is not None and latest.run_id == self._ctx.run_id

    def _revive(self, latest: Any) -> None:
        """Store the state of an earlier release as checkpoints."""
        legacy = decode_legacy(latest, self._thread_id, self.serde)
        self.current_id = legacy.current_id
        if self.current_id is not None and self.current_id != latest.checkpoint_id:
            self._foreign_checkpoints.add(self.current_id)
        self._send(GraphSteps(changes=legacy.changes))

    async def _import_values(self, values: Mapping[str, Any]) -> None:
        """Make the thread's values the initial state of the graph."""
        # Not a state of the thread: a state of this run would mean that its input was applied.
        self._importing = True
        config: RunnableConfig = {"configurable": {"thread_id": self._thread_id}}
        await self._graph.aupdate_state(config, values, as_node=START)
        self._importing = False

    async def initial_input(self, input: Any, command: Command[Any] | None, *, addressed: bool) -> Any:
        """Return the input of the graph: None after an earlier attempt, a command, or the run's input.

        `addressed` is True if the run names the checkpoint to continue from.
        """
        self._addressed = addressed and not self.resumed
        if self.resumed:
            return None
        if command is None:
            self._resuming = input is None or self._addressed
            return input
        return await self._remaining(command)

    async def _remaining(self, command: Command[Any]) -> Any:
        """Return the part of a command that no earlier attempt has stored."""
        if self._ctx.attempt == 1 or self.current_id is None or not (command.update or command.goto):
            return command
        stored = await self._checkpoints.find(self._at("", self.current_id))
        if not any(write.task_id == NO_TASK and write.idx >= 0 for row in stored for write in row.writes):
            return command
        return None if command.resume is None else Command(resume=command.resume)

    # --- reading ----------------------------------------------------------------------------------------

    def _read(self, stored: GraphTuple) -> CheckpointTuple:
        if self.shown is not None:
            self.shown.read(stored)
        checkpoint = super()._read(stored)
        if not stored.checkpoint_ns and self._last is None:
            # Messages of this checkpoint are not new in the run.
            self._messages.remember(checkpoint.checkpoint["channel_values"])
        return checkpoint

    async def _query(self, config: RunnableConfig) -> CheckpointQuery | None:
        _, namespace, checkpoint_id = parse_config(config)
        if checkpoint_id is None and namespace and not self._may_exist(namespace):
            return None
        await self._settled()
        if checkpoint_id is None and not namespace and self._addressed and self._last is None:
            # LangGraph checks whether the thread has newer checkpoints than the one of the run.
            return self._at("", None)
        return await super()._query(config)

    def _may_exist(self, namespace: str) -> bool:
        """Return whether a subgraph may have a checkpoint. Subgraphs of tasks have none before the task."""
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
        async for checkpoint in super().alist(config, filter=filter, before=before, limit=limit):
            yield checkpoint

    # --- writing ----------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        config = self.put(config, checkpoint, metadata, new_versions)
        if self._importing:
            self._messages.remember(checkpoint["channel_values"])
        elif not config["configurable"]["checkpoint_ns"]:
            for message in self._messages.new(checkpoint["channel_values"], new_versions):
                await self._messages.log(message)
        if self._durable:
            await self._settled()
        else:
            await self._checkpoints.ready()
        return config

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
        """Return whether the last state suffices to know that nothing runs after it."""
        return not (last.next or self._asking == last.checkpoint_id or has_delta_channels(self._graph))


def next_nodes(graph: Any, checkpoint: Checkpoint) -> list[str]:
    """Return the nodes that may run after a checkpoint, without preparing them. Without any, none runs."""
    updated = checkpoint.get("updated_channels") or ()
    nodes = {node for channel in updated for node in graph.trigger_to_nodes.get(channel, ())}
    sent = checkpoint["channel_values"].get(TASKS) or ()
    return [*sorted(nodes), *(send.node for send in sent)]


def has_delta_channels(graph: Any) -> bool:
    """Return whether a channel of the graph is stored as changes, so that a checkpoint lacks its value."""
    return any(type(channel).__name__ == "DeltaChannel" for channel in graph.channels.values())


def visible_values(graph: Any, values: Mapping[str, Any]) -> Any:
    """Return the channels of the state that a thread shows."""
    channels = graph.stream_channels_asis
    if isinstance(channels, str):
        return values.get(channels)
    written = {name: values[name] for name in channels if name in values}
    return {**_defaults(graph, [name for name in channels if name not in values]), **written}


def _defaults(graph: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of channels without writes; most are empty."""
    return {name: channel.get() for name in names if (channel := graph.channels[name]).is_available()}


def get_output_channels(graph: Any) -> list[str] | str | None:
    """Return the channels that a run returns; None for all that the thread shows."""
    output, shown = graph.output_channels, graph.stream_channels_asis
    if isinstance(output, str):
        return None if output == shown else output
    return None if not isinstance(shown, str) and set(output) == set(shown) else list(output)


def final_state(graph: Any, snapshot: Any, checkpoint_id: str) -> GraphState:
    """Build the state of a thread from a snapshot of its graph."""
    interrupts = [
        {**build_interrupt(asked), "task_id": task.id} for task in snapshot.tasks for asked in task.interrupts
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
