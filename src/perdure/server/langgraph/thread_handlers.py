"""Threads: made, changed, searched, copied and pruned."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from perdure.kernel.errors import Conflict, PerdureError
from perdure.kernel.jsonpath import Path
from perdure.server.http.routes import Call
from perdure.server.langgraph import extract, thread_wire
from perdure.server.langgraph.rooms import views_of
from perdure.server.langgraph.shapes import ThreadShape
from perdure.server.langgraph.wire import (
    PAGE,
    answer,
    check_uuid,
    nothing,
    page,
    selected,
    thread_of,
    ttl_of,
    wants_nothing,
)
from perdure.server.native.rooms import threads_of
from perdure.threads.records import Lifetime, Thread

IN_STATES = ("values", "interrupts")


async def create_thread(call: Call) -> Response:
    body: thread_wire.ThreadCreate = call.body
    threads = threads_of(call)
    given = None if body.thread_id is None else check_uuid(body.thread_id, "thread_id")
    try:
        thread = await threads.create_thread(given, metadata=body.metadata, lifetime=_lifetime(body.ttl))
    except Conflict:
        if given is None or body.if_exists != "do_nothing":
            raise
        thread = await threads.get_thread(given)
    else:
        thread = await _with_steps(call, thread, body)
    return answer(thread_of(thread))


async def _with_steps(call: Call, thread: Thread, body: thread_wire.ThreadCreate) -> Thread:
    """A new thread with the states that were asked for; where they cannot be made there is no thread."""
    if not body.supersteps:
        return thread
    steps = [msgspec.to_builtins(step) for step in body.supersteps]
    graph_id = (body.metadata or {}).get("graph_id")
    named = graph_id if isinstance(graph_id, str) else None
    try:
        await views_of(call).supersteps(thread.thread_id, steps, named)
    except PerdureError:
        await threads_of(call).delete_thread(thread.thread_id)
        raise
    return await threads_of(call).get_thread(thread.thread_id)


def _lifetime(given: thread_wire.Lifetime | float | None) -> Lifetime | None:
    if given is None:
        return None
    if not isinstance(given, thread_wire.Lifetime):
        return Lifetime(minutes=given)
    return Lifetime(minutes=given.ttl, strategy=given.strategy or "delete")


async def get_thread(call: Call) -> Response:
    threads, thread_id = threads_of(call), call.path["thread_id"]
    shown = thread_of(await threads.get_thread(thread_id))
    if "ttl" in [name.strip() for name in call.query.include.split(",")]:
        shown["ttl"] = ttl_of(await threads.get_lifetime(thread_id))
    return answer(shown)


async def update_thread(call: Call) -> Response:
    body: thread_wire.ThreadPatch = call.body
    thread = await threads_of(call).update_thread(
        call.path["thread_id"], metadata=body.metadata or {}, lifetime=_lifetime(body.ttl)
    )
    return nothing() if wants_nothing(call) else answer(thread_of(thread))


async def delete_thread(call: Call) -> Response:
    await threads_of(call).delete_thread(call.path["thread_id"])
    return nothing()


async def copy_thread(call: Call) -> Response:
    return answer(thread_of(await threads_of(call).copy_thread(call.path["thread_id"])))


async def prune_threads(call: Call) -> Response:
    body: thread_wire.ThreadPrune = call.body
    ids = [check_uuid(thread_id, "thread_ids") for thread_id in body.thread_ids]
    count = await threads_of(call).prune_threads(ids, body.strategy or "delete")
    return answer({"pruned_count": count})


# --- searching --------------------------------------------------------------------------------------------


async def search_threads(call: Call) -> Response:
    body: thread_wire.ThreadSearch = call.body
    limit, offset = body.limit or PAGE, body.offset or 0
    paths = extract.parse(body.extract or {})
    found = await threads_of(call).search_threads(
        status=body.status,
        metadata=body.metadata,
        ids=None if body.ids is None else [check_uuid(each, "ids") for each in body.ids],
        having=body.values,
        values=_reads_states(body.select, paths),
        sort_by=body.sort_by or "created_at",
        sort_order=body.sort_order or "desc",
        limit=limit,
        offset=offset,
    )
    items = [_shown(thread_of(each), body.select, paths) for each in found.items]
    return page(items, found.total, limit, offset)


def _reads_states(select: list[Any] | None, paths: dict[str, Path]) -> bool:
    """Whether anything that was asked for stands in the threads' states."""
    if not select or any(name in IN_STATES for name in select):
        return True
    return any(path[0][1] in IN_STATES for path in paths.values())


def _shown(thread: ThreadShape, select: list[Any] | None, paths: dict[str, Path]) -> dict[str, Any]:
    shown = selected(thread, select)
    if paths:
        shown["extracted"] = {name: extract.at(thread, path) for name, path in paths.items()}
    return shown


async def count_threads(call: Call) -> Response:
    body: thread_wire.ThreadCount = call.body
    count = await threads_of(call).count_threads(
        status=body.status, metadata=body.metadata, having=body.values
    )
    return answer(count)
