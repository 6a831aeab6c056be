"""A LangGraph checkpointer and a LangGraph store in a perdure database.

The database is opened by name, or passed in open. Checkpoints are stored in pieces.
"""

from __future__ import annotations

import os
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

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
from langgraph.store.base import IndexConfig, TTLConfig, ensure_embeddings
from msgspec import structs

from perdure.agents.project import PROJECT
from perdure.agents.sections import parse_item_policy
from perdure.checkpoints.model import check_strategy
from perdure.checkpoints.records import CheckpointQuery, GraphChanges, GraphTuple
from perdure.checkpoints.service import StoredCheckpoints
from perdure.items.service import Items
from perdure.items.vectors import ItemIndex
from perdure.kernel.background import Background
from perdure.kernel.errors import Conflict
from perdure.kernel.storage.port import Storage
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
from perdure.langgraph.store import ItemStore
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.stores import MEMORY_URLS, open_store, sqlite_file

# --- the database -----------------------------------------------------------------------------------------


T = TypeVar("T")


class StoreHolder(Protocol):
    """A `Perdure`, or another object with an open store."""

    @property
    def store(self) -> DatabaseLightningStore: ...


Database = DatabaseLightningStore | StoreHolder | Storage
"""An open database."""

Place = str | os.PathLike[str] | Database
"""A file, the URL of a database, or an open database."""


_lock = threading.Lock()
_shared: dict[tuple[int, str], tuple[DatabaseLightningStore, int]] = {}
"""Databases opened here by name, with their number of users, because a file has one owner."""


def _acquire(place: str) -> DatabaseLightningStore:
    key = _key(place)
    with _lock:
        # These users claim nothing, so no watchdog is needed.
        store, holders = _shared.get(key) or (open_store(place, watchdog_interval=None), 0)
        if place not in MEMORY_URLS:
            _shared[key] = (store, holders + 1)
        return store


def _release(place: str) -> bool:
    """Release a database. Return True if it has no other users."""
    key = _key(place)
    with _lock:
        store, holders = _shared.pop(key, (None, 1))
        if store is not None and holders > 1:
            _shared[key] = (store, holders - 1)
        return holders <= 1


def _get_storage(database: Database) -> tuple[Storage, str]:
    """Return the storage of an open database, and its default namespace."""
    store = database if isinstance(database, DatabaseLightningStore) else getattr(database, "store", None)
    if isinstance(store, DatabaseLightningStore):
        return store.storage, store.namespace
    return cast(Storage, database), "default"


def _key(place: str) -> tuple[int, str]:
    file = sqlite_file(place)
    return os.getpid(), place if file is None else str(Path(file).expanduser().resolve())


class OpenedDatabase:
    """An open database, and one thread through which callers without an event loop use it.

    Closing it closes the database only if it was opened here. A database that is named twice is opened once,
    and closed by the last of its users.
    """

    def __init__(self, place: Place, namespace: str | None = None) -> None:
        self._own: DatabaseLightningStore | None = None
        self._name = ""
        if isinstance(place, str | os.PathLike):
            self._name = os.fspath(place)
            place = self._own = _acquire(self._name)
        self.storage, default = _get_storage(place)
        self.namespace = namespace or default
        self._portal = Background("perdure-langgraph")

    def wait(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread, and block until it has ended."""
        return self._portal.wait(action)

    async def aclose(self) -> None:
        """End the thread, and close the database if it was opened here."""
        own, self._own = self._own, None
        if own is not None and _release(self._name):
            await own.close()
        self._portal.close()

    def close(self) -> None:
        """End the thread and close the database, for callers without an event loop."""
        own, self._own = self._own, None
        if own is not None and _release(self._name):
            self._portal.wait(own.close)
        self._portal.close()


# --- the store --------------------------------------------------------------------------------------------


class _Closing:
    """Closes the database of a saver or a store, at the end of `with` or `async with`."""

    _opened: OpenedDatabase

    def close(self) -> None:
        """Close the database, if it was opened here."""
        self._opened.close()

    async def aclose(self) -> None:
        """Close the database, if it was opened here, for callers with an event loop."""
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


class PerdureStore(_Closing, ItemStore):
    """The long-term memory of agents as a LangGraph store, in a perdure database.

    `place` is a file, the URL of a database, or an object with an open database, such as a `Perdure`. Use it
    with `with` or `async with`, or close it; a database that was passed in open stays open. `ttl` is the
    lifetime of items, and `index` configures the search by meaning, as for LangGraph's other stores.
    """

    def __init__(
        self,
        place: Place,
        *,
        namespace: str | None = None,
        ttl: TTLConfig | None = None,
        index: IndexConfig | None = None,
    ) -> None:
        policy, searched = parse_item_policy(ttl or {}), _index(index)
        self._opened = OpenedDatabase(place, namespace)
        self.items = Items(
            self._opened.storage, namespace=self._opened.namespace, policy=policy, index=searched
        )
        self.items.start_timers()
        super().__init__(self.items.run, self._opened.wait, ttl)

    def sweep_ttl(self) -> int:
        """Delete expired items now, and return their number. They are invisible in any case."""
        return self._opened.wait(self.items.expire)

    async def asweep_ttl(self) -> int:
        """Delete expired items now, for callers with an event loop."""
        return await self.items.expire()


def _index(given: IndexConfig | None) -> ItemIndex | None:
    if not given:
        return None
    embed = ensure_embeddings(given.get("embed"))
    return ItemIndex(embed, dims=given.get("dims"), fields=given.get("fields"))


# --- the checkpointer -------------------------------------------------------------------------------------


PAGE = 50
"""Number of checkpoints per read of a list."""


class PerdureSaver(_Closing, BaseCheckpointSaver[str]):
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
