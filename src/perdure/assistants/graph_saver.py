"""What a LangGraph graph remembers, kept as the state of its thread.

The newest checkpoint of the graph and of each of its subgraphs, with the writes that wait there, is one
opaque value. It is written by LangGraph's own serializer in its strict form: what it reads back is data, and
types that the graph itself declares.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from perdure.assistants.context import AgentError, Context

NEWEST = 2
"""How many checkpoints of each namespace are remembered while the graph runs."""

Typed = tuple[str, bytes]


class _Kept(msgspec.Struct, array_like=True):
    """A checkpoint as it was serialized."""

    checkpoint: Typed
    metadata: Typed
    parent: str | None


class _Write(msgspec.Struct, array_like=True):
    """A write that waits for its step to end."""

    task_id: str
    index: int
    channel: str
    value: Typed
    path: str


class _State(msgspec.Struct):
    """All of it, by namespace and checkpoint id."""

    kept: dict[str, dict[str, _Kept]]
    writes: dict[str, dict[str, list[_Write]]]


class _Place(NamedTuple):
    ns: str
    id: str | None


def _place(config: RunnableConfig) -> _Place:
    return _Place(config["configurable"].get("checkpoint_ns", ""), get_checkpoint_id(config))


class RunSaver(BaseCheckpointSaver[int]):
    """Keeps each checkpoint of a graph's run with `ctx.save`, and begins where the thread was left."""

    def __init__(self, ctx: Context, serde: JsonPlusSerializer) -> None:
        super().__init__(serde=serde)
        self.graph: Any = None
        """The graph that saves here; it alone can tell what of a checkpoint is to be seen."""
        self.pending = False
        """Whether there is something that the last `ctx.save` did not hold."""
        self._ctx = ctx
        self._seeding = False
        self._lock = threading.RLock()
        self._state = _decode(ctx.checkpoint)

    # --- LangGraph's side; the sync calls come from subgraphs that sync nodes invoke --------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        ns, wanted = _place(config)
        with self._lock:
            known = self._state.kept.get(ns, {})
            checkpoint_id = wanted or max(known, default=None)
            kept = known.get(checkpoint_id) if checkpoint_id else None
            if kept is None or checkpoint_id is None:
                return None
            return self._tuple(config, _Place(ns, checkpoint_id), kept)

    def _tuple(self, config: RunnableConfig, place: _Place, kept: _Kept) -> CheckpointTuple:
        load = self.serde.loads_typed
        writes = self._state.writes.get(place.ns, {}).get(place.id or "", [])
        ordered = sorted(writes, key=lambda write: (write.path, write.task_id, write.index))
        return CheckpointTuple(
            config=_at(config, place),
            checkpoint=load(kept.checkpoint),
            metadata=load(kept.metadata),
            parent_config=_at(config, _Place(place.ns, kept.parent)) if kept.parent else None,
            pending_writes=[(each.task_id, each.channel, load(each.value)) for each in ordered],
        )

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        ns, parent = _place(config)
        dump = self.serde.dumps_typed
        told = get_checkpoint_metadata(config, metadata)
        with self._lock:
            known = self._state.kept.setdefault(ns, {})
            known[checkpoint["id"]] = _Kept(dump(checkpoint), dump(told), parent)
            self._forget(ns)
            self.pending = True
        return _at(config, _Place(ns, checkpoint["id"]))

    def _forget(self, ns: str) -> None:
        """Drop what no step will ask for again."""
        known = self._state.kept[ns]
        for old in sorted(known)[:-NEWEST]:
            del known[old]
            self._state.writes.get(ns, {}).pop(old, None)
        if ns == "":
            # A subgraph of one task ends with the step; one that remembers has no task in its name.
            for ended in [name for name in self._state.kept if ":" in name]:
                self._state.kept.pop(ended, None)
                self._state.writes.pop(ended, None)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        ns, checkpoint_id = _place(config)
        with self._lock:
            waiting = self._state.writes.setdefault(ns, {}).setdefault(checkpoint_id or "", [])
            for number, (channel, value) in enumerate(writes):
                index = WRITES_IDX_MAP.get(channel, number)
                known = [each for each in waiting if (each.task_id, each.index) == (task_id, index)]
                if known and index >= 0:
                    continue
                for each in known:
                    waiting.remove(each)
                waiting.append(_Write(task_id, index, channel, self.serde.dumps_typed(value), task_path))
            self.pending = True

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """What is remembered of a namespace, the newest first."""
        if config is None:
            return
        ns, wanted = _place(config)
        end = get_checkpoint_id(before) if before else None
        with self._lock:
            ids = sorted(self._state.kept.get(ns, {}), reverse=True)
        chosen = [each for each in ids if (not wanted or each == wanted) and (not end or each < end)]
        for checkpoint_id in chosen[:limit]:
            found = self.get_tuple(_at(config, _Place(ns, checkpoint_id)))
            if found and all(found.metadata.get(key) == value for key, value in (filter or {}).items()):
                yield found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        put = self.put(config, checkpoint, metadata, new_versions)
        if _place(put).ns == "" and not self._seeding:
            await self.save(checkpoint["id"])
        return put

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    # --- perdure's side ---------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether an earlier attempt of this run has kept something to go on from."""
        found = self._ctx.checkpoint
        return bool(self._state.kept.get("")) and found is not None and found.run_id == self._ctx.run_id

    async def seed(self) -> None:
        """Begin with the thread's values where they came from somewhere else than a graph."""
        found = self._ctx.checkpoint
        if self._state.kept or found is None or not isinstance(found.values, dict) or not found.values:
            return
        # It is kept with the first step: a state of this run's own would say that its input was taken.
        self._seeding = True
        config = {"configurable": {"thread_id": self._ctx.thread_id}}
        await self.graph.aupdate_state(config, found.values, as_node="__start__")
        self._seeding = False

    async def save(self, checkpoint_id: str | None = None) -> None:
        """Keep everything, as the thread's state: under the graph's own id, or as one more state after it."""
        seen = await self.graph.aget_state({"configurable": {"thread_id": self._ctx.thread_id}})
        with self._lock:
            state = msgspec.msgpack.encode(self._state)
            self.pending = False
        await self._ctx.save(
            seen.values,
            next=tuple(seen.next),
            interrupts=[{"id": each.id, "value": each.value} for each in seen.interrupts],
            metadata=seen.metadata,
            state=state,
            checkpoint_id=checkpoint_id,
            quiet=True,
        )


def _at(config: RunnableConfig, place: _Place) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": config["configurable"]["thread_id"],
            "checkpoint_ns": place.ns,
            "checkpoint_id": place.id,
        }
    }


def _decode(checkpoint: Any) -> _State:
    body = None if checkpoint is None else checkpoint.state
    if body is None:
        return _State(kept={}, writes={})
    try:
        return msgspec.msgpack.decode(body, type=_State)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise AgentError(
            f"checkpoint {checkpoint.checkpoint_id} does not hold the state of a graph: {error}"
        ) from error
