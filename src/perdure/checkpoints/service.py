"""Service for the graph checkpoints of one namespace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from perdure.checkpoints import model, operations, queries
from perdure.checkpoints.records import (
    CheckpointQuery,
    GraphChanges,
    GraphDelta,
    GraphDeltaQuery,
    GraphTuple,
    PruneStrategy,
)
from perdure.checkpoints.rows import CheckpointWithValues, EncodedChanges, encode_changes, row_to_graph_tuple
from perdure.kernel.storage.port import Operation, Tx
from perdure.service.audit import audit
from perdure.service.base import Service


class StoredCheckpoints(Service):
    """Checkpoints of LangGraph graphs in one namespace. Removals and copies are audited."""

    # --- storing and reading ---------------------------------------------------------------------------

    async def put(self, changes: GraphChanges) -> None:
        """Store checkpoints and writes; they are durable when this returns.

        If the base version of a list no longer exists, raise Conflict: send the whole list.
        """
        rows = sum(1 + len(put.pieces) for put in changes.puts) + len(changes.writes)
        encoded = encode_changes(changes)
        await self._merger.call("put", self._put_batch, encoded, rows=rows, size=_size(encoded))

    async def _put_batch(self, batch: Sequence[EncodedChanges]) -> Sequence[None]:
        await self.write(operations.put, batch)
        return [None] * len(batch)

    async def find(self, query: CheckpointQuery) -> list[GraphTuple]:
        """Get the checkpoints that match a query, the newest first."""
        return [row_to_graph_tuple(row) for row in await find_unpacked(self, query, self._unpack)]

    async def delta(self, query: GraphDeltaQuery) -> list[GraphDelta]:
        """Get the changes to channels that the ancestors of a checkpoint stored."""
        await self._unpack(query.thread_id)
        return await self.read(queries.delta, query)

    async def _unpack(self, thread_id: str) -> None:
        if await self.read(operations.is_packed, [thread_id]):
            await self.write(operations.unpack, [thread_id])

    # --- removing and copying ---------------------------------------------------------------------------

    async def delete_threads(self, thread_ids: Sequence[str]) -> None:
        """Delete all checkpoints of these threads."""
        threads = list(thread_ids)
        await self._audited("delete_graph_thread", threads, operations.delete_threads, threads)

    async def delete_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs created; later ones stay readable."""
        runs = list(run_ids)
        await self._audited("delete_graph_run", runs, operations.delete_runs, runs)

    async def copy_thread(self, source: str, target: str) -> None:
        """Copy all checkpoints of a thread to another thread. Conflict if that thread has any."""
        await self._audited("copy_graph_thread", [target], operations.copy_thread, source, target)

    async def prune(self, thread_ids: Sequence[str], strategy: PruneStrategy = "keep_latest") -> None:
        """Delete all checkpoints of these threads, or all except the newest of each checkpoint namespace."""
        threads, chosen = list(thread_ids), model.check_strategy(strategy)
        await self._audited("prune_graph_thread", threads, operations.prune, threads, chosen)

    async def _audited(
        self, action: str, objects: list[str], operation: Operation[..., Any], *args: Any
    ) -> None:
        if objects:
            await self.write(_audited, action, objects, operation, args)


async def find_unpacked(
    service: Service, query: CheckpointQuery, unpack: Callable[[str], Awaitable[None]]
) -> list[CheckpointWithValues]:
    """Get the checkpoints that match a query. Unpack first if packed checkpoints may match."""
    if query.thread_id is None:
        return await service.read(queries.find, query)
    if query.checkpoint_ns or (query.checkpoint_id is None and _is_newest(query)):
        return await service.read(queries.find, query)
    if query.checkpoint_id is not None and (checkpoints := await service.read(queries.find, query)):
        return checkpoints
    await unpack(query.thread_id)
    return await service.read(queries.find, query)


def _is_newest(query: CheckpointQuery) -> bool:
    """Return whether a query asks for the newest checkpoint, which always has its own row."""
    return query.limit == 1 and query.before is None and not query.filter and query.checkpoint_ns is not None


async def _audited(
    tx: Tx, action: str, objects: Sequence[str], operation: Operation[..., Any], args: tuple[Any, ...]
) -> None:
    await operation(tx, *args)
    await audit(tx, action, objects)


def _size(changes: EncodedChanges) -> int:
    values = [piece.value for put in changes.puts for piece in put.pieces if piece.value]
    return sum(len(body) for _, body in values) + sum(len(write.body) for write in changes.writes)
