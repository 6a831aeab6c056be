"""States of graphs as release 0.3.0 stored them: one value with the newest checkpoints of all namespaces."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.agents.context import AgentError
from perdure.checkpoints.records import GraphChanges, GraphPut, GraphWrite, Typed
from perdure.langgraph.codec import GraphCodec, build_config


class _Kept(msgspec.Struct, array_like=True):
    """A serialized checkpoint."""

    checkpoint: Typed
    metadata: Typed
    parent: str | None


class _Write(msgspec.Struct, array_like=True):
    """A pending write."""

    task_id: str
    index: int
    channel: str
    value: Typed
    path: str


class _State(msgspec.Struct):
    """All checkpoints and writes, by namespace and checkpoint id."""

    kept: dict[str, dict[str, _Kept]]
    writes: dict[str, dict[str, list[_Write]]]


class Legacy(NamedTuple):
    """The content of such a state as today's records, and the id of the root graph's newest checkpoint."""

    made: list[tuple[GraphPut, Checkpoint]]
    writes: list[GraphWrite]
    current_id: str | None

    @property
    def changes(self) -> GraphChanges:
        return GraphChanges(puts=[put for put, _ in self.made], writes=self.writes)


def decode_legacy(found: Any, thread_id: str, serde: SerializerProtocol) -> Legacy:
    """Decode the checkpoints and the writes of such a state."""
    state = _decoded(found)
    # A separate codec: these checkpoints come in no order, and nothing is based on them.
    codec = GraphCodec(serde)
    made = [
        _put(codec, (thread_id, namespace), each)
        for namespace, known in state.kept.items()
        for _, each in sorted(known.items())
    ]
    writes = [
        _write((thread_id, namespace, checkpoint_id), each)
        for namespace, known in state.writes.items()
        for checkpoint_id, waiting in known.items()
        for each in waiting
    ]
    return Legacy(made, writes, max(state.kept.get("", ()), default=None))


def _decoded(found: Any) -> _State:
    try:
        return msgspec.msgpack.decode(found.state, type=_State)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise AgentError(
            f"checkpoint {found.checkpoint_id} does not hold the state of a graph: {error}"
        ) from error


def _put(codec: GraphCodec, place: tuple[str, str], kept: _Kept) -> tuple[GraphPut, Checkpoint]:
    checkpoint = cast(Checkpoint, _with_text_versions(codec.serde.loads_typed(kept.checkpoint)))
    metadata = cast(CheckpointMetadata, codec.serde.loads_typed(kept.metadata))
    codec.forget()
    config = build_config(*place, kept.parent)
    return codec.put(config, checkpoint, metadata, checkpoint["channel_versions"]), checkpoint


def _with_text_versions(checkpoint: Any) -> Any:
    """The checkpoint with versions as today: strings, which sort as the numbers did."""
    versions = {name: _text(version) for name, version in checkpoint["channel_versions"].items()}
    seen = {
        node: {name: _text(version) for name, version in known.items()}
        for node, known in checkpoint["versions_seen"].items()
    }
    return {**checkpoint, "channel_versions": versions, "versions_seen": seen}


def _text(version: Any) -> Any:
    return f"{version:08x}.{0:010x}" if isinstance(version, int) else version


def _write(place: tuple[str, str, str], each: _Write) -> GraphWrite:
    thread_id, namespace, checkpoint_id = place
    return GraphWrite(
        thread_id=thread_id,
        checkpoint_ns=namespace,
        checkpoint_id=checkpoint_id,
        task_id=each.task_id,
        task_path=each.path,
        idx=each.index,
        channel=each.channel,
        value=each.value,
    )
