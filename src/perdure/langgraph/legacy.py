"""Decoding of graph states of release 0.3.0: one value with the newest checkpoints of all namespaces."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.agents.context import AgentError
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphWrite, Typed
from perdure.langgraph.codec import GraphCodec, build_config


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
