"""A LangGraph checkpointer that stores its checkpoints in a perdure database, in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from msgspec import structs

from perdure.agents.project import PROJECT
from perdure.checkpoints.model import check_strategy
from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphTuple
from perdure.checkpoints.service import StoredCheckpoints
from perdure.integrations.langgraph.opening import OpenedDatabase, Place
from perdure.kernel.errors import Conflict
from perdure.langgraph.codec import (
    GraphCodec,
    build_config,
    build_query,
    next_version,
    parse_config,
    query_delta,
    query_one,
)
from perdure.langgraph.revival import Name, StrictSerializer, own_types, strict_serializer

PAGE = 50
"""Number of checkpoints per read of a list."""


class PerdureSaver(BaseCheckpointSaver[str]):
    """Stores the checkpoints of LangGraph graphs in SQLite or PostgreSQL, for async and for sync programs.

    `place` is a file, the URL of a database, or an object with an open database: a `Perdure`, a store, a
    storage. A growing list costs only what is added to it, so a conversation grows with its messages. Besides
    LangGraph's own types, these types are revived: pydantic models, dataclasses, enums and named tuples of
    the program's own code and of `packages`, if they are imported, and the types in `allowed`: classes, or
    their module and name. Other values stay plain data, and no stored name imports anything.

        saver = PerdureSaver("agents.db")
        graph = builder.compile(checkpointer=saver)
    """

    def __init__(
        self,
        place: Place,
        *,
        namespace: str | None = None,
        allowed: Iterable[type | tuple[str, ...]] = (),
        packages: Iterable[str] = (),
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde or strict_serializer(allowed))
        PROJECT.add_packages(packages)
        self._own: frozenset[Name] = frozenset()
        self._opened = OpenedDatabase(place, namespace)
        self._graphs = StoredCheckpoints(self._opened.storage, namespace=self._opened.namespace)
        self._codec = GraphCodec(self.serde)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str | None = None,
        allowed: Iterable[type | tuple[str, ...]] = (),
        packages: Iterable[str] = (),
        serde: SerializerProtocol | None = None,
    ) -> Self:
        """Open a saver by URL: `sqlite:///path`, `postgresql://host/database` or `memory:`."""
        return cls(url, namespace=namespace, allowed=allowed, packages=packages, serde=serde)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> BaseCheckpointSaver[str]:
        """Return a saver that also revives these types."""
        saver = super().with_allowlist(extra_allowlist)
        if isinstance(saver, PerdureSaver) and saver is not self:
            saver._codec = GraphCodec(saver.serde)
        return saver

    @property
    def _reader(self) -> GraphCodec:
        """The codec, which revives all types of the program that are imported by now."""
        own = own_types()
        if own is not self._own and isinstance(self.serde, StrictSerializer):
            self._own = own
            self.serde = self._codec.serde = self.serde.with_msgpack_allowlist(own)
        return self._codec

    # --- opening and closing ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the database if it was opened here."""
        self._opened.close()

    async def aclose(self) -> None:
        """Close the database if it was opened here."""
        await self._opened.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- storing ----------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint after the one in `config`. It is durable when this returns."""
        given = (config, checkpoint, metadata, new_versions)
        try:
            await self._graphs.put(GraphChanges(puts=[self._codec.put(*given)]))
        except Conflict:
            # The base of a list has been removed in the meantime, so everything is written whole.
            self._codec.forget()
            await self._graphs.put(GraphChanges(puts=[self._codec.put(*given)]))
        thread_id, namespace, _ = parse_config(config)
        return build_config(thread_id, namespace, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task after the checkpoint in `config`."""
        await self._graphs.put(GraphChanges(writes=self._codec.writes(config, writes, task_id, task_path)))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a unique version after `current`."""
        return next_version(current)

    # --- reading ----------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names, or the newest of its thread and namespace."""
        tuples = await self._graphs.find(query_one(config))
        return self._reader.read(tuples[0]) if tuples else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List the checkpoints of a thread, or of all threads, newest first."""
        pages = _Pages(self._graphs, build_query(config, filter=filter, before=before, limit=limit))
        while page := await pages.next():
            for stored in page:
                yield self._reader.read(stored, remember=False)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the history of channels that are stored as changes, from the ancestors of a checkpoint."""
        if not channels:
            return {}
        return self._reader.history(await self._graphs.delta(query_delta(config, channels)))

    # --- removing and copying ---------------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all data of a thread."""
        await self._graphs.delete_threads([str(thread_id)])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs. Those of later runs stay readable."""
        await self._graphs.delete_runs([str(run_id) for run_id in run_ids])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to a thread without checkpoints."""
        await self._graphs.copy_thread(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete these threads (`delete`), or all but the newest of each namespace (`keep_latest`)."""
        await self._graphs.prune([str(thread_id) for thread_id in thread_ids], check_strategy(strategy))

    # --- for programs without an event loop -------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Block on `aput`."""
        return self._opened.wait(lambda: self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Block on `aput_writes`."""
        self._opened.wait(lambda: self.aput_writes(config, writes, task_id, task_path))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Block on `aget_tuple`."""
        return self._opened.wait(lambda: self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Block on `alist`."""
        pages = _Pages(self._graphs, build_query(config, filter=filter, before=before, limit=limit))
        while page := self._opened.wait(pages.next):
            for stored in page:
                yield self._reader.read(stored, remember=False)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Block on `aget_delta_channel_history`."""
        return self._opened.wait(lambda: self.aget_delta_channel_history(config=config, channels=channels))

    def delete_thread(self, thread_id: str) -> None:
        """Block on `adelete_thread`."""
        self._opened.wait(lambda: self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Block on `adelete_for_runs`."""
        self._opened.wait(lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Block on `acopy_thread`."""
        self._opened.wait(lambda: self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Block on `aprune`."""
        self._opened.wait(lambda: self.aprune(thread_ids, strategy=strategy))


class _Pages:
    """A list in pages. Checkpoints with the same id, in several namespaces, stay on one page."""

    def __init__(self, graphs: StoredCheckpoints, query: CheckpointQuery) -> None:
        self._graphs = graphs
        self._query = query
        self._left = query.limit
        self._size = PAGE
        self._is_last = query.limit == 0

    async def next(self) -> Sequence[GraphTuple]:
        """Return the next page; an empty one at the end."""
        whole: Sequence[GraphTuple] = ()
        while not whole and not self._is_last:
            asked = self._size if self._left is None else min(self._left, self._size)
            tuples = await self._graphs.find(structs.replace(self._query, limit=asked))
            self._is_last = len(tuples) < asked or asked == self._left
            whole = tuples
            if not self._is_last:
                last_id = tuples[-1].checkpoint_id
                whole = [stored for stored in tuples if stored.checkpoint_id != last_id]
            self._size *= 1 if whole else 2
        if whole:
            self._query = structs.replace(self._query, before=whole[-1].checkpoint_id)
            self._left = None if self._left is None else self._left - len(whole)
        return whole
