"""Reads of checkpoints that may be packed with a later one. They unpack first."""

from __future__ import annotations

from functools import partial

from perdure.checkpoints import queries
from perdure.checkpoints.records import CheckpointQuery, GraphDelta, GraphDeltaQuery, GraphTuple
from perdure.checkpoints.rows import row_to_graph_tuple
from perdure.checkpoints.service import find_unpacked
from perdure.service.base import Service
from perdure.threads.operations.packed import is_packed, unpack_states


async def unpack(service: Service, thread_id: str) -> None:
    """Give all states of a thread their own rows, so that they can be read."""
    if await service.read(is_packed, [thread_id]):
        await service.write(unpack_states, [thread_id])


async def unpack_for(service: Service, thread_id: str | None, checkpoint_id: str | None) -> None:
    """Unpack the states of a thread if the caller names a checkpoint."""
    if thread_id is not None and checkpoint_id is not None:
        await unpack(service, thread_id)


async def find_graphs(service: Service, query: CheckpointQuery) -> list[GraphTuple]:
    """Return the checkpoints of a thread that match a query, the newest first."""
    rows = await find_unpacked(service, query, partial(unpack, service))
    return [row_to_graph_tuple(row) for row in rows]


async def find_deltas(service: Service, query: GraphDeltaQuery) -> list[GraphDelta]:
    """Return the stored changes of a checkpoint's channels, from the checkpoint's ancestors."""
    await unpack(service, query.thread_id)
    return await service.read(queries.delta, query)
