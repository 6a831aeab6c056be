"""Threads of the LangGraph protocol; their states are in `states`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.responses import Response

from perdure.assistants.records import IfExists
from perdure.kernel import json_values
from perdure.kernel.errors import AgentUnavailable, BadRequest, Conflict, InvalidInput, NotFound, PerdureError
from perdure.kernel.json_values import Path
from perdure.server.http.routes import Call
from perdure.server.langgraph.protocol import (
    PAGE,
    FailureShape,
    InterruptShape,
    Limit,
    Metadata,
    Offset,
    RequestBody,
    Select,
    SortOrder,
    answer,
    check_uuid,
    check_uuid_or_none,
    get_graphs,
    is_uuid,
    iso,
    iso_or_none,
    no_content,
    page,
    selected,
    show_failure,
    uuid_or_none,
)
from perdure.server.langgraph.routing import (
    Authorization,
    LangGraphResource,
    before,
    check_not_taken,
    counting,
    on_thread,
    searching,
)
from perdure.threads.operations.search import ThreadFilter as Search
from perdure.threads.records import Interrupt, Lifetime, PruneStrategy, Thread, ThreadStatus

threads = LangGraphResource("threads")

THREAD = "/threads/{thread_id}"
MAX_THREADS = 1000
MAX_STEPS = 1000
STATE_FIELDS = ("values", "interrupts")
"""Fields of a thread that come from its last state."""

ThreadField = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "context",
    "status",
    "values",
    "interrupts",
    "error",
]
ThreadSort = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]


class TtlShape(TypedDict):
    """Time and action of a thread's expiry."""

    strategy: PruneStrategy
    ttl_minutes: float
    expires_at: str | None


class ThreadShape(TypedDict):
    """A thread, with the values and interrupts of its last state."""

    thread_id: str
    status: ThreadStatus
    metadata: dict[str, Any]
    config: dict[str, Any]
    values: Any
    interrupts: dict[str, list[InterruptShape]]
    error: FailureShape | None
    created_at: str
    updated_at: str
    state_updated_at: str
    ttl: NotRequired[TtlShape | None]


def show_thread(thread: Thread) -> ThreadShape:
    return {
        "thread_id": thread.thread_id,
        "status": thread.status,
        "metadata": thread.metadata,
        "config": thread.config,
        "values": thread.values,
        "interrupts": group_interrupts(thread.interrupts),
        "error": show_failure(thread.error),
        "created_at": iso(thread.created_at),
        "updated_at": iso(thread.updated_at),
        "state_updated_at": iso(thread.state_updated_at),
    }


def group_interrupts(interrupts: Iterable[Interrupt]) -> dict[str, list[InterruptShape]]:
    """Group interrupts by the task that waits for an answer."""
    by_task: dict[str, list[InterruptShape]] = {}
    for interrupt in interrupts:
        task_id = interrupt.task_id if isinstance(interrupt.task_id, str) else interrupt.id
        by_task.setdefault(task_id, []).append({"id": interrupt.id, "value": interrupt.value})
    return by_task


def show_ttl(lifetime: Lifetime | None) -> TtlShape | None:
    if lifetime is None:
        return None
    return {
        "strategy": lifetime.strategy,
        "ttl_minutes": lifetime.minutes,
        "expires_at": iso_or_none(lifetime.expires_at),
    }


# --- create -----------------------------------------------------------------------------------------------


class Ttl(RequestBody, kw_only=True):
    """Minutes until a thread expires, and the action at that time."""

    ttl: Annotated[float, Meta(gt=0, le=100 * 366 * 1440)]
    strategy: PruneStrategy | None = None


class Update(RequestBody, kw_only=True):
    """Values or a command to write as a node."""

    as_node: str
    values: dict[str, Any] | list[Any] | None = None
    command: dict[str, Any] | None = None


class Superstep(RequestBody, kw_only=True):
    """Updates of one step."""

    updates: Annotated[list[Update], Meta(max_length=MAX_STEPS)]


class ThreadCreate(RequestBody, kw_only=True):
    """A new thread."""

    thread_id: str | None = None
    metadata: Metadata | None = None
    if_exists: IfExists | None = None
    ttl: Ttl | Annotated[float, Meta(gt=0)] | None = None
    supersteps: Annotated[list[Superstep], Meta(max_length=MAX_STEPS)] | None = None


@before
async def _authorize_create(request: Authorization) -> None:
    body: ThreadCreate = request.call.body
    thread_id = check_uuid_or_none(body.thread_id, "thread_id")
    value: dict[str, Any] = {
        "thread_id": uuid_or_none(thread_id),
        "metadata": dict(body.metadata or {}),
        "if_exists": body.if_exists or "raise",
    }
    filter = await request.authorize_create("threads", "create", value)
    if thread_id is not None and filter:
        await check_not_taken(request.call.threads.get_thread, thread_id, filter)
    body.metadata = value["metadata"]


@threads.route(
    "POST",
    "/threads",
    rule=_authorize_create,
    scope="write",
    summary="Create a thread",
    body=ThreadCreate,
    answer=ThreadShape,
    errors=(NotFound, Conflict, AgentUnavailable),
)
async def create_thread(call: Call) -> Response:
    body: ThreadCreate = call.body
    thread_id = check_uuid_or_none(body.thread_id, "thread_id")
    try:
        thread = await call.threads.create_thread(
            thread_id, metadata=body.metadata, lifetime=_lifetime(body.ttl)
        )
    except Conflict:
        if thread_id is None or body.if_exists != "do_nothing":
            raise
        thread = await call.threads.get_thread(thread_id)
    else:
        thread = await _apply_supersteps(call, thread, body)
    return answer(show_thread(thread))


async def _apply_supersteps(call: Call, thread: Thread, body: ThreadCreate) -> Thread:
    """Apply the requested states to a new thread. If that fails, delete the thread."""
    if not body.supersteps:
        return thread
    steps = [msgspec.to_builtins(step) for step in body.supersteps]
    graph_id = (body.metadata or {}).get("graph_id")
    try:
        await get_graphs(call).supersteps(
            thread.thread_id, steps, graph_id if isinstance(graph_id, str) else None
        )
    except PerdureError:
        await call.threads.delete_thread(thread.thread_id)
        raise
    return await call.threads.get_thread(thread.thread_id)


def _lifetime(ttl: Ttl | float | None) -> Lifetime | None:
    if ttl is None:
        return None
    if not isinstance(ttl, Ttl):
        return Lifetime(minutes=ttl)
    return Lifetime(minutes=ttl.ttl, strategy=ttl.strategy or "delete")


# --- search -----------------------------------------------------------------------------------------------


class ThreadCount(RequestBody, kw_only=True):
    """Filter of counted threads."""

    metadata: Metadata | None = None
    values: dict[str, Any] | None = None
    status: ThreadStatus | None = None


class ThreadSearchBody(ThreadCount, kw_only=True):
    """Search of threads: filter, fields and order."""

    ids: list[str] | None = None
    limit: Limit | None = None
    offset: Offset | None = None
    sort_by: ThreadSort | None = None
    sort_order: SortOrder | None = None
    select: Select[ThreadField] | None = None
    extract: dict[str, str] | None = None


@threads.route(
    "POST",
    "/threads/search",
    rule=searching("threads"),
    scope="read",
    summary="Search threads, the newest first",
    body=ThreadSearchBody,
    answer=list[dict[str, Any]],
)
async def search_threads(call: Call) -> Response:
    body: ThreadSearchBody = call.body
    paths = parse_paths(body.extract or {})
    wanted = Search(
        status=body.status,
        metadata=body.metadata or {},
        ids=None if body.ids is None else _checked_ids(body.ids),
        having=body.values,
        values=_needs_states(body.select, paths),
        sort_by=body.sort_by or "created_at",
        sort_order=body.sort_order or "desc",
        limit=body.limit or PAGE,
        offset=body.offset or 0,
    )
    result = await call.threads.find_threads(wanted)
    items = [_shown(show_thread(thread), body.select, paths) for thread in result.items]
    return page(items, result.counted, result.limit, result.offset)


def _checked_ids(ids: Sequence[str]) -> list[str]:
    for id in ids:
        if not is_uuid(id):
            raise BadRequest(f"ids must be UUIDs, not {id[:64]!r}")
    return [check_uuid(id, "ids") for id in ids]


def _needs_states(select: list[ThreadField] | None, paths: Mapping[str, Path]) -> bool:
    """Return whether a requested field comes from the threads' states."""
    if not select or any(name in STATE_FIELDS for name in select):
        return True
    return any(path[0][1] in STATE_FIELDS for path in paths.values())


def _shown(
    thread: ThreadShape, select: list[ThreadField] | None, paths: Mapping[str, Path]
) -> dict[str, Any]:
    shown = selected(thread, select)
    if paths:
        shown["extracted"] = {
            name: next(iter(json_values.find(thread, path)), None) for name, path in paths.items()
        }
    return shown


@threads.route(
    "POST",
    "/threads/count",
    rule=counting("threads", ThreadSearchBody, search_threads),
    scope="read",
    summary="Count threads",
    body=ThreadCount,
    answer=int,
)
async def count_threads(call: Call) -> Response:
    body: ThreadCount = call.body
    count = await call.threads.count_threads(status=body.status, metadata=body.metadata, having=body.values)
    return answer(count)


# --- values to extract from threads -----------------------------------------------------------------------

ROOTS = ("config", "interrupts", "metadata", "values")
MAX_PATHS = 10
MAX_PATH = 1000
_PATH = re.compile(r"\w[\w-]*(\.[\w-]+|\[-?\d{1,9}\])*")


def parse_paths(paths: Mapping[str, str]) -> dict[str, Path]:
    """Parse paths such as `values.messages[-1].content`. Raise InvalidInput for an impossible path."""
    if len(paths) > MAX_PATHS:
        raise InvalidInput(f"extract: {len(paths)} paths; at most {MAX_PATHS} are allowed")
    return {name: _parse_path(path) for name, path in paths.items()}


def _parse_path(path: str) -> Path:
    if len(path) > MAX_PATH or not _PATH.fullmatch(path):
        raise InvalidInput(f"extract: {path[:64]!r} is not a path; write values.key, or values.list[-1].key")
    steps = json_values.parse(path)
    if steps[0][1] not in ROOTS:
        raise InvalidInput(f"extract: the path {path[:64]!r} must begin with one of {', '.join(ROOTS)}")
    return steps


# --- one thread -------------------------------------------------------------------------------------------


class ThreadQuery(msgspec.Struct, kw_only=True):
    """Further fields to include, separated by commas: `ttl`."""

    include: str = ""


@threads.route(
    "GET",
    THREAD,
    rule=on_thread("read"),
    scope="read",
    summary="Get a thread",
    query=ThreadQuery,
    answer=ThreadShape,
    errors=(NotFound,),
)
async def get_thread(call: Call) -> Response:
    thread_id = call.path["thread_id"]
    shown = show_thread(await call.threads.get_thread(thread_id))
    if "ttl" in [name.strip() for name in call.query.include.split(",")]:
        shown["ttl"] = show_ttl(await call.threads.get_lifetime(thread_id))
    return answer(shown)


class ThreadPatch(RequestBody, kw_only=True):
    """Metadata to merge into a thread's metadata, and a new time to live."""

    metadata: Metadata | None = None
    ttl: Ttl | Annotated[float, Meta(gt=0)] | None = None


@before
async def _authorize_update(request: Authorization) -> None:
    body, thread_id = request.call.body, request.call.path["thread_id"]
    value = {"thread_id": UUID(thread_id), "metadata": dict(body.metadata or {})}
    await request.check_thread(thread_id, await request.authorize("threads", "update", value))
    body.metadata = value["metadata"]


@threads.route(
    "PATCH",
    THREAD,
    rule=_authorize_update,
    scope="write",
    summary="Merge into a thread's metadata; with Prefer: return=minimal the response has no body",
    body=ThreadPatch,
    answer=ThreadShape,
    errors=(NotFound,),
)
async def update_thread(call: Call) -> Response:
    body: ThreadPatch = call.body
    thread = await call.threads.update_thread(
        call.path["thread_id"], metadata=body.metadata or {}, lifetime=_lifetime(body.ttl)
    )
    prefer = call.request.headers.get("prefer", "").replace(" ", "").lower()
    return no_content() if "return=minimal" in prefer else answer(show_thread(thread))


@threads.route(
    "DELETE",
    THREAD,
    rule=on_thread("delete"),
    scope="write",
    summary="Delete a thread with its runs and states",
    status=204,
    errors=(NotFound,),
)
async def delete_thread(call: Call) -> Response:
    await call.threads.delete_thread(call.path["thread_id"])
    return no_content()


@before
async def _authorize_copy(request: Authorization) -> None:
    await request.authorize_thread("read", request.call.path["thread_id"])
    await request.authorize("threads", "create", {"metadata": {}})


@threads.route(
    "POST",
    THREAD + "/copy",
    rule=_authorize_copy,
    scope="write",
    summary="Copy a thread with its states",
    answer=ThreadShape,
    errors=(NotFound,),
)
async def copy_thread(call: Call) -> Response:
    return answer(show_thread(await call.threads.copy_thread(call.path["thread_id"])))


class ThreadPrune(RequestBody, kw_only=True):
    """The threads to delete, or to reduce to the latest state of each thread."""

    thread_ids: Annotated[list[str], Meta(max_length=MAX_THREADS)]
    strategy: PruneStrategy | None = None


def _thread_ids(body: ThreadPrune) -> list[str]:
    return [check_uuid(thread_id, "thread_ids") for thread_id in body.thread_ids]


@before
async def _authorize_prune(request: Authorization) -> None:
    thread_ids = _thread_ids(request.call.body)
    filter = await request.authorize("threads", "delete", {"thread_ids": list(map(UUID, thread_ids))})
    for thread_id in thread_ids:
        await request.check_thread(thread_id, filter)


@threads.route(
    "POST",
    "/threads/prune",
    rule=_authorize_prune,
    scope="write",
    summary="Delete threads, or all of their states except the latest",
    body=ThreadPrune,
    answer=dict[str, int],
)
async def prune_threads(call: Call) -> Response:
    body: ThreadPrune = call.body
    count = await call.threads.prune_threads(_thread_ids(body), body.strategy or "delete")
    return answer({"pruned_count": count})
