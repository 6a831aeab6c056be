"""Threads: what they are, what they hold, and what happens in them."""

from __future__ import annotations

from msgspec import structs
from starlette.responses import Response

from perdure.client import native_wire as wire
from perdure.client import run_wire
from perdure.server.http.routes import Call
from perdure.server.native.events import streaming
from perdure.server.native.handlers import paged
from perdure.server.native.rooms import metadata_of, threads_of
from perdure.threads.records import Checkpoint, Lifetime, Thread


async def list_threads(call: Call) -> Response:
    query: run_wire.ThreadQuery = call.query
    return paged(
        await threads_of(call).search_threads(
            status=query.status,
            metadata=metadata_of(query.metadata),
            ids=query.thread_id,
            values=query.values,
            sort_by=query.sort_by,
            sort_order=query.sort_order,
            limit=query.limit,
            offset=query.offset,
        )
    )


async def create_thread(call: Call) -> Thread:
    return await threads_of(call).create_thread(**structs.asdict(call.body))


async def get_thread(call: Call) -> Thread:
    return await threads_of(call).get_thread(call.path["thread_id"])


async def update_thread(call: Call) -> Thread:
    return await threads_of(call).update_thread(call.path["thread_id"], **structs.asdict(call.body))


async def delete_thread(call: Call) -> Response:
    await threads_of(call).delete_thread(call.path["thread_id"])
    return Response(status_code=204)


async def get_lifetime(call: Call) -> Lifetime | None:
    return await threads_of(call).get_lifetime(call.path["thread_id"])


async def prune_threads(call: Call) -> run_wire.Pruned:
    wanted: run_wire.Prune = call.body
    return run_wire.Pruned(count=await threads_of(call).prune_threads(wanted.thread_ids, wanted.strategy))


async def copy_thread(call: Call) -> Thread:
    return await threads_of(call).copy_thread(call.path["thread_id"])


async def get_state(call: Call) -> Checkpoint | None:
    return await threads_of(call).get_state(call.path["thread_id"], call.query.checkpoint_id)


async def update_state(call: Call) -> Checkpoint:
    return await threads_of(call).update_state(call.path["thread_id"], **structs.asdict(call.body))


async def history(call: Call) -> wire.Items[Checkpoint]:
    query: run_wire.HistoryQuery = call.query
    found = await threads_of(call).history(
        call.path["thread_id"],
        limit=query.limit,
        before=query.before,
        metadata=metadata_of(query.metadata),
    )
    return wire.Items(items=found)


async def list_runs(call: Call) -> Response:
    threads, query = threads_of(call), call.query
    thread = await threads.get_thread(call.path["thread_id"])
    return paged(
        await threads.list_runs(
            thread_id=thread.thread_id, status=query.status, limit=query.limit, offset=query.offset
        )
    )


async def stream(call: Call) -> Response:
    """The events of all runs, from now on unless the caller names another place."""
    threads, thread_id = threads_of(call), call.path["thread_id"]
    return await streaming(call, lambda after: threads.follow_thread(thread_id, after), default="now")
