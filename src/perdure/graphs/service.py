"""The service of graph checkpoints: those of one namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from perdure.access.operations import add_entry, ensure_namespace
from perdure.graphs import model, operations, queries
from perdure.graphs.records import (
    GraphChanges,
    GraphDelta,
    GraphDeltaQuery,
    GraphQuery,
    GraphTuple,
    PruneStrategy,
)
from perdure.graphs.rows import EncodedChanges, encode_changes, tuple_of
from perdure.kernel.merge import Merger
from perdure.kernel.storage.port import Operation, Storage, Tx

T = TypeVar("T")


class Graphs:
    """The checkpoints of one namespace. With an `actor` every removal and copy leaves an audit entry."""

    def __init__(self, storage: Storage, namespace: str = "default", actor: str | None = None) -> None:
        self.storage = storage
        self.namespace = namespace
        self.actor = actor
        self._number: int | None = None
        self._merger = Merger()

    def acting_as(self, namespace: str, actor: str | None) -> Graphs:
        """The checkpoints of a namespace of the same database, changed in the name of `actor`."""
        return Graphs(self.storage, namespace, actor)

    async def _ns(self) -> int:
        if self._number is None:
            self._number = await self.storage.run(ensure_namespace, self.namespace)
        return self._number

    async def _read(self, operation: Operation[..., T], *args: Any) -> T:
        return await self.storage.read(operation, *args, ns=await self._ns())

    # --- keeping and reading ----------------------------------------------------------------------------

    async def put(self, changes: GraphChanges) -> None:
        """Keep checkpoints and writes; they are durable when this returns.

        A list that is based on a version which is no longer there is a Conflict: send it as a whole.
        """
        rows = sum(1 + len(put.pieces) for put in changes.puts) + len(changes.writes)
        encoded = encode_changes(changes)
        await self._merger.call("put", self._put_batch, encoded, rows=rows, size=_size(encoded))

    async def _put_batch(self, batch: Sequence[EncodedChanges]) -> Sequence[None]:
        await self.storage.run(operations.put, batch, ns=await self._ns())
        return [None] * len(batch)

    async def find(self, query: GraphQuery) -> list[GraphTuple]:
        """The checkpoints that are meant, the newest first."""
        return [tuple_of(found) for found in await self._read(queries.find, query)]

    async def delta(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        """What the ancestors of a checkpoint say of channels that are kept as changes."""
        return await self._read(queries.delta, query)

    # --- removing and copying ---------------------------------------------------------------------------

    async def delete_threads(self, thread_ids: Sequence[str]) -> None:
        """Remove everything that graphs have kept in these threads."""
        threads = list(thread_ids)
        await self._noted("delete_graph_thread", threads, operations.delete_threads, threads)

    async def delete_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made; those after them stay readable."""
        runs = list(run_ids)
        await self._noted("delete_graph_run", runs, operations.delete_runs, runs)

    async def copy_thread(self, source: str, target: str) -> None:
        """Give another thread all that graphs have kept in this one. Conflict if it has something itself."""
        await self._noted("copy_graph_thread", [target], operations.copy_thread, source, target)

    async def prune(self, thread_ids: Sequence[str], strategy: PruneStrategy = "keep_latest") -> None:
        """Remove all of these threads, or all but the newest checkpoint of each namespace."""
        threads, chosen = list(thread_ids), model.check_strategy(strategy)
        await self._noted("prune_graph_thread", threads, operations.prune, threads, chosen)

    async def _noted(
        self, action: str, objects: list[str], operation: Operation[..., Any], *args: Any
    ) -> None:
        if objects:
            ns = await self._ns()
            await self.storage.run(_noted, self.actor, action, objects, operation, args, ns=ns)


async def _noted(
    tx: Tx,
    actor: str | None,
    action: str,
    objects: Sequence[str],
    operation: Operation[..., Any],
    args: tuple[Any, ...],
) -> None:
    await operation(tx, *args)
    if actor is not None:
        await add_entry(tx, actor, action, objects)


def _size(changes: EncodedChanges) -> int:
    values = [piece.value for put in changes.puts for piece in put.pieces if piece.value]
    return sum(len(body) for _, body in values) + sum(len(write.body) for write in changes.writes)
