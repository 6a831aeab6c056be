"""Encoding and decoding of LangGraph's checkpoints as stored records, also of release 0.3.0.

Only the changed channels of a checkpoint are written. Values are bytes of LangGraph's serializer in its
strict form: only plain data and allowed types are read back. Release 0.3.0 stored one value with the newest
checkpoints of all namespaces.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.agents.context import AgentError
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphChanges,
    GraphDelta,
    GraphDeltaQuery,
    GraphPut,
    GraphTuple,
    GraphValue,
    GraphWrite,
    Piece,
    Typed,
)
from perdure.kernel.errors import InvalidInput
from perdure.langgraph.lists import Lists, Seen


def next_version(current: str | int | float | None) -> str:
    """Build a version that sorts after `current` and is unique on all branches."""
    if current is None:
        number = 0
    elif isinstance(current, str):
        number = int(current.split(".")[0], 16)
    else:
        number = int(current)
    return f"{number + 1:08x}.{random.getrandbits(40):010x}"


class GraphCodec:
    """Encodes and decodes checkpoints. Lists are encoded as new items and ranges of earlier versions."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self._lists = Lists(serde.dumps_typed)

    def forget(self) -> None:
        """Encode all lists in full next time, because their base versions may be deleted."""
        self._lists.forget()

    # --- writing ----------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> GraphPut:
        """Encode a checkpoint that follows the one in `config`, with the channels that changed."""
        thread_id, namespace, parent_id = parse_config(config)
        stored = cast("dict[str, Any]", get_serializable_checkpoint_metadata(config, metadata))
        values = checkpoint["channel_values"]
        run_id = stored.get("run_id")
        return GraphPut(
            thread_id=thread_id,
            checkpoint_ns=namespace,
            checkpoint_id=checkpoint["id"],
            parent_id=parent_id,
            run_id=run_id if isinstance(run_id, str) and run_id else None,
            checkpoint=self.serde.dumps_typed(_rest(checkpoint)),
            metadata=stored,
            versions=dict(checkpoint["channel_versions"]),
            pieces=[
                self._piece((thread_id, namespace, channel), channel, str(version), values[channel])
                for channel, version in new_versions.items()
                if channel in values
            ],
        )

    def _piece(self, place: tuple[str, str, str], channel: str, version: str, value: Any) -> Piece:
        if type(value) is not list:
            return Piece(channel=channel, version=version, value=self.serde.dumps_typed(value))
        cut = self._lists.cut(place, version, value)
        self._lists.remember(place, cut.seen)
        if cut.spans is None:
            return Piece(channel=channel, version=version, value=self.serde.dumps_typed(value))
        own = [value[at] for at in cut.own]
        return Piece(
            channel=channel,
            version=version,
            value=self.serde.dumps_typed(own) if own else None,
            spans=cut.spans,
            count=len(own),
            base=cut.base,
        )

    def writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> list[GraphWrite]:
        """Encode the writes of a task after the checkpoint in `config`."""
        thread_id, namespace, checkpoint_id = parse_config(config)
        if checkpoint_id is None:
            raise InvalidInput("writes belong to a checkpoint: the config has no checkpoint_id")
        return [
            GraphWrite(
                thread_id=thread_id,
                checkpoint_ns=namespace,
                checkpoint_id=checkpoint_id,
                task_id=task_id,
                task_path=task_path,
                idx=WRITES_IDX_MAP.get(channel, number),
                channel=channel,
                value=self.serde.dumps_typed(value),
            )
            for number, (channel, value) in enumerate(writes)
        ]

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, stored: GraphTuple, *, remember: bool = True) -> CheckpointTuple:
        """Decode a checkpoint. With `remember`, lists of later checkpoints are encoded as changes to it."""
        place = (stored.thread_id, stored.checkpoint_ns)
        checkpoint = self.serde.loads_typed(stored.checkpoint)
        if type(checkpoint) is list:
            checkpoint = dict(zip(_FIELDS, checkpoint, strict=True), id=stored.checkpoint_id)
        checkpoint["channel_versions"] = dict(stored.versions)
        checkpoint["channel_values"] = {
            value.channel: self._value(place, value, remember) for value in stored.values
        }
        return CheckpointTuple(
            config=build_config(*place, stored.checkpoint_id),
            checkpoint=cast(Checkpoint, checkpoint),
            metadata=cast(CheckpointMetadata, stored.metadata),
            parent_config=build_config(*place, stored.parent_id) if stored.parent_id else None,
            pending_writes=[self._pending(write) for write in stored.writes],
        )

    def _value(self, place: tuple[str, str], value: GraphValue, remember: bool) -> Any:
        loaded = self.load(value)
        if remember and type(loaded) is list:
            # Remember the items before a node can change them.
            seen = Seen(value.version, self._lists.prints(loaded), value.spans)
            self._lists.remember((*place, value.channel), seen)
        return loaded

    def load(self, value: GraphValue) -> Any:
        """Decode the value of a channel."""
        load = self.serde.loads_typed
        if value.parts is None:
            return load(cast(Typed, value.value))
        items: list[Any] = []
        for part in value.parts:
            items += load(part.items)[part.start : part.stop]
        return items

    def _pending(self, write: GraphWrite) -> PendingWrite:
        return write.task_id, write.channel, self.serde.loads_typed(write.value)

    def history(self, deltas: Iterable[GraphDelta]) -> Mapping[str, DeltaChannelHistory]:
        """Decode the history of channels that are stored as changes."""
        histories: dict[str, DeltaChannelHistory] = {}
        for delta in deltas:
            entry = DeltaChannelHistory(writes=[self._pending(write) for write in delta.writes])
            if delta.seed is not None:
                entry["seed"] = self.load(delta.seed)
            histories[delta.channel] = entry
        return histories


_STORED_APART = frozenset({"channel_values", "channel_versions"})
_FIELDS = ("v", "ts", "versions_seen", "updated_channels")
_USUAL = frozenset({"id", *_FIELDS, *_STORED_APART})


def _rest(checkpoint: Checkpoint) -> Any:
    """Return the part of a checkpoint to serialize; for a usual one a list, without names and ID."""
    parts = cast("Mapping[str, Any]", checkpoint)
    if parts.keys() == _USUAL:
        return [parts[name] for name in _FIELDS]
    return {name: part for name, part in parts.items() if name not in _STORED_APART}


# --- configs and queries ----------------------------------------------------------------------------------


def parse_config(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the optional checkpoint that a config names."""
    configurable = config.get("configurable") or {}
    if configurable.get("thread_id") is None:
        raise InvalidInput("the config has no thread_id: pass {'configurable': {'thread_id': ...}}")
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns") or "", get_checkpoint_id(config)


def build_config(thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> RunnableConfig:
    """Build the config that names a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


def build_query(
    config: RunnableConfig | None,
    *,
    filter: Mapping[str, Any] | None = None,
    before: RunnableConfig | None = None,
    limit: int | None = None,
) -> CheckpointQuery:
    """Build the query of a listing. It does not restrict what the config does not name."""
    end = get_checkpoint_id(before) if before else None
    if not config:
        return CheckpointQuery(before=end, limit=limit, filter=dict(filter or {}))
    thread_id, _, checkpoint_id = parse_config(config)
    return CheckpointQuery(
        thread_id=thread_id,
        checkpoint_ns=config["configurable"].get("checkpoint_ns"),
        checkpoint_id=checkpoint_id,
        before=end,
        limit=limit,
        filter=dict(filter or {}),
    )


def query_one(config: RunnableConfig) -> CheckpointQuery:
    """Build the query for the checkpoint that a config names, or the newest of its thread and namespace."""
    thread_id, namespace, checkpoint_id = parse_config(config)
    return CheckpointQuery(thread_id=thread_id, checkpoint_ns=namespace, checkpoint_id=checkpoint_id, limit=1)


def query_delta(config: RunnableConfig, channels: Sequence[str]) -> GraphDeltaQuery:
    """Build the query for the history of channels in the ancestors of a checkpoint."""
    thread_id, namespace, checkpoint_id = parse_config(config)
    return GraphDeltaQuery(
        thread_id=thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=checkpoint_id,
        channels=list(dict.fromkeys(channels)),
    )


# --- states of release 0.3.0 ------------------------------------------------------------------------------


class _Kept(msgspec.Struct, array_like=True):
    """Serialized checkpoint."""

    checkpoint: Typed
    metadata: Typed
    parent: str | None


class _Write(msgspec.Struct, array_like=True):
    """Pending write."""

    task_id: str
    index: int
    channel: str
    value: Typed
    path: str


class _State(msgspec.Struct):
    """All checkpoints and writes, by namespace and checkpoint ID."""

    kept: dict[str, dict[str, _Kept]]
    writes: dict[str, dict[str, list[_Write]]]


class Legacy(NamedTuple):
    """Content of such a state as current records, and the ID of the root graph's newest checkpoint."""

    checkpoints: list[tuple[GraphPut, Checkpoint]]
    writes: list[GraphWrite]
    current_id: str | None

    @property
    def changes(self) -> GraphChanges:
        return GraphChanges(puts=[put for put, _ in self.checkpoints], writes=self.writes)


def decode_legacy(stored: Any, thread_id: str, serde: SerializerProtocol) -> Legacy:
    """Decode the checkpoints and the writes of such a state."""
    try:
        state = msgspec.msgpack.decode(stored.state, type=_State)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise AgentError(
            f"checkpoint {stored.checkpoint_id} does not hold the state of a graph: {error}"
        ) from error
    # A separate codec: these checkpoints are in no order, and no later list builds on them.
    codec = GraphCodec(serde)
    checkpoints = [
        _put(codec, (thread_id, namespace), kept)
        for namespace, by_id in state.kept.items()
        for _, kept in sorted(by_id.items())
    ]
    writes = [
        _write((thread_id, namespace, checkpoint_id), write)
        for namespace, by_checkpoint in state.writes.items()
        for checkpoint_id, pending in by_checkpoint.items()
        for write in pending
    ]
    return Legacy(checkpoints, writes, max(state.kept.get("", ()), default=None))


def _put(codec: GraphCodec, place: tuple[str, str], kept: _Kept) -> tuple[GraphPut, Checkpoint]:
    checkpoint = cast(Checkpoint, _with_text_versions(codec.serde.loads_typed(kept.checkpoint)))
    metadata = cast(CheckpointMetadata, codec.serde.loads_typed(kept.metadata))
    codec.forget()
    config = build_config(*place, kept.parent)
    return codec.put(config, checkpoint, metadata, checkpoint["channel_versions"]), checkpoint


def _with_text_versions(checkpoint: Any) -> Any:
    """Convert versions to strings, which sort like the numbers."""
    versions = {name: _text(version) for name, version in checkpoint["channel_versions"].items()}
    seen = {
        node: {name: _text(version) for name, version in versions_seen.items()}
        for node, versions_seen in checkpoint["versions_seen"].items()
    }
    return {**checkpoint, "channel_versions": versions, "versions_seen": seen}


def _text(version: Any) -> Any:
    return f"{version:08x}.{0:010x}" if isinstance(version, int) else version


def _write(place: tuple[str, str, str], write: _Write) -> GraphWrite:
    thread_id, namespace, checkpoint_id = place
    return GraphWrite(
        thread_id=thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=checkpoint_id,
        task_id=write.task_id,
        task_path=write.path,
        idx=write.index,
        channel=write.channel,
        value=write.value,
    )
