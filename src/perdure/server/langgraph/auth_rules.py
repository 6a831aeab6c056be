"""What the operator's own auth is asked about threads, runs, assistants and crons, before it is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

from msgspec import to_builtins

from perdure.kernel.errors import Conflict, Forbidden, NotFound
from perdure.server.http.routes import Handler
from perdure.server.langgraph.auth_filters import equalities, matches
from perdure.server.langgraph.auth_pass import Authorization
from perdure.server.langgraph.run_handlers import joined
from perdure.server.langgraph.wire import check_uuid
from perdure.server.native.rooms import assistants_of, threads_of

Rule = Callable[[Authorization, Handler], Awaitable[Any]]
SCANNED = 100
"""How many objects are read at once where not all of them may be seen."""


# --- threads ----------------------------------------------------------------------------------------------


def on_thread(action: str) -> Rule:
    """Do something to the thread of the path, or to one of its runs."""

    async def rule(visit: Authorization, handler: Handler) -> Any:
        run_id = visit.call.path.get("run_id")
        named = {} if run_id is None else {"run_id": UUID(run_id)}
        await visit.thread(action, visit.call.path["thread_id"], **named)
        return await handler(visit.call)

    return rule


async def create_thread(visit: Authorization, handler: Handler) -> Any:
    body = visit.call.body
    thread_id = None if body.thread_id is None else check_uuid(body.thread_id, "thread_id")
    value = {
        "thread_id": None if thread_id is None else UUID(thread_id),
        "metadata": dict(body.metadata or {}),
        "if_exists": body.if_exists or "raise",
    }
    needed = await visit.may_make("threads", "create", value)
    if thread_id is not None and needed:
        await _not_of_others(visit.sees_thread, threads_of(visit.call).get_thread, thread_id, needed)
    body.metadata = value["metadata"]
    return await handler(visit.call)


async def _not_of_others(
    sees: Callable[[str, Any], Awaitable[None]], get: Callable[[str], Awaitable[Any]], id: str, needed: Any
) -> None:
    """An id that somebody else has taken is taken, and tells nothing more."""
    try:
        await get(id)
    except NotFound:
        return
    try:
        await sees(id, needed)
    except NotFound:
        raise Conflict(f"{id} exists already") from None


async def update_thread(visit: Authorization, handler: Handler) -> Any:
    body, thread_id = visit.call.body, visit.call.path["thread_id"]
    value = {"thread_id": UUID(thread_id), "metadata": dict(body.metadata or {})}
    await visit.sees_thread(thread_id, await visit.may("threads", "update", value))
    body.metadata = value["metadata"]
    return await handler(visit.call)


async def copy_thread(visit: Authorization, handler: Handler) -> Any:
    await visit.thread("read", visit.call.path["thread_id"])
    await visit.may("threads", "create", {"metadata": {}})
    return await handler(visit.call)


async def prune_threads(visit: Authorization, handler: Handler) -> Any:
    ids = [check_uuid(each, "thread_ids") for each in visit.call.body.thread_ids]
    needed = await visit.may("threads", "delete", {"thread_ids": [UUID(each) for each in ids]})
    for thread_id in ids if needed else ():
        await visit.sees_thread(thread_id, needed)
    return await handler(visit.call)


# --- runs -------------------------------------------------------------------------------------------------


async def create_run(visit: Authorization, handler: Handler) -> Any:
    await _may_run(visit, visit.call.body, visit.call.path.get("thread_id"))
    return await handler(visit.call)


async def create_batch(visit: Authorization, handler: Handler) -> Any:
    for body in visit.call.body:
        named = None if body.thread_id is None else check_uuid(body.thread_id, "thread_id")
        await _may_run(visit, body, named)
    return await handler(visit.call)


async def _may_run(visit: Authorization, body: Any, thread_id: str | None) -> None:
    value = {
        "thread_id": None if thread_id is None else UUID(thread_id),
        "assistant_id": body.assistant_id,
        "run_id": None,
        "status": "pending",
        "metadata": dict(body.metadata or {}),
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "if_not_exists": body.if_not_exists or "reject",
        "after_seconds": body.after_seconds or 0,
        "kwargs": {"input": body.input, "config": body.config or {}, "context": body.context},
    }
    needed = await visit.may_make("threads", "create_run", value)
    if thread_id is not None and needed and not await _is_new(visit, body, thread_id):
        await visit.sees_thread(thread_id, needed)
    await visit.runs_assistant(body.assistant_id)
    body.metadata = value["metadata"]


async def _is_new(visit: Authorization, body: Any, thread_id: str) -> bool:
    """Whether the run makes its thread."""
    if body.if_not_exists != "create":
        return False
    try:
        await threads_of(visit.call).get_thread(thread_id)
    except NotFound:
        return True
    return False


async def join_run(visit: Authorization, handler: Handler) -> Any:
    """Follow a run whose thread the path does not name."""
    run = await joined(visit.call)
    await visit.thread("read", run.thread_id, run_id=UUID(run.run_id))
    return await handler(visit.call)


async def cancel_runs(visit: Authorization, handler: Handler) -> Any:
    body = visit.call.body
    thread_id = None if body.thread_id is None else check_uuid(body.thread_id, "thread_id")
    value = {
        "thread_id": None if thread_id is None else UUID(thread_id),
        "action": visit.call.query.action,
        "metadata": {"run_ids": body.run_ids, "status": body.status},
    }
    needed = await visit.may("threads", "update", value)
    if needed and thread_id is None:
        raise Forbidden("runs of which only some may be seen are cancelled by thread_id and run_ids")
    if thread_id is not None:
        await visit.sees_thread(thread_id, needed)
    return await handler(visit.call)


# --- assistants -------------------------------------------------------------------------------------------


def on_assistant(action: str) -> Rule:
    async def rule(visit: Authorization, handler: Handler) -> Any:
        await visit.assistant(action, visit.call.path["assistant_id"])
        return await handler(visit.call)

    return rule


async def create_assistant(visit: Authorization, handler: Handler) -> Any:
    body = visit.call.body
    named = None if body.assistant_id is None else check_uuid(body.assistant_id, "assistant_id")
    value = {
        "assistant_id": None if named is None else UUID(named),
        "graph_id": body.graph_id,
        "config": body.config or {},
        "context": body.context or {},
        "metadata": dict(body.metadata or {}),
        "if_exists": body.if_exists or "raise",
        "name": body.name,
    }
    needed = await visit.may_make("assistants", "create", value)
    if named is not None and needed:
        await _not_of_others(_assistant_seen(visit), assistants_of(visit.call).get, named, needed)
    body.metadata = value["metadata"]
    return await handler(visit.call)


def _assistant_seen(visit: Authorization) -> Callable[[str, Any], Awaitable[None]]:
    async def sees(assistant_id: str, needed: Any) -> None:
        if not matches(needed, (await assistants_of(visit.call).get(assistant_id)).metadata):
            raise NotFound(f"Assistant {assistant_id} not found")

    return sees


async def update_assistant(visit: Authorization, handler: Handler) -> Any:
    body = visit.call.body
    value = await visit.assistant(
        "update",
        visit.call.path["assistant_id"],
        graph_id=body.graph_id,
        config=body.config or {},
        context=body.context or {},
        metadata=dict(body.metadata or {}),
        name=body.name,
    )
    body.metadata = value["metadata"]
    return await handler(visit.call)


async def delete_assistant(visit: Authorization, handler: Handler) -> Any:
    """Remove an assistant, with those of its threads that the caller may remove."""
    assistant_id = visit.call.path["assistant_id"]
    await visit.assistant("delete", assistant_id)
    if visit.call.query.delete_threads:
        needed = await visit.may("threads", "delete", {"metadata": {"assistant_id": assistant_id}})
        if needed:
            await _delete_threads(visit, {"assistant_id": assistant_id, **equalities(needed)}, needed)
            visit.call.query.delete_threads = False
    return await handler(visit.call)


async def _delete_threads(visit: Authorization, wanted: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    threads, passed = threads_of(visit.call), 0
    while found := (
        await threads.search_threads(metadata=wanted, values=False, limit=SCANNED, offset=passed)
    ).items:
        mine = [each for each in found if matches(needed, each.metadata)]
        passed += len(found) - len(mine)
        for each in mine:
            await threads.delete_thread(each.thread_id)


# --- crons ------------------------------------------------------------------------------------------------


def on_cron(action: str) -> Rule:
    async def rule(visit: Authorization, handler: Handler) -> Any:
        await visit.cron(action, visit.call.path["cron_id"])
        return await handler(visit.call)

    return rule


async def create_cron(visit: Authorization, handler: Handler) -> Any:
    body, thread_id = visit.call.body, visit.call.path.get("thread_id")
    value = {
        "payload": to_builtins(body),
        "schedule": body.schedule,
        "cron_id": None,
        "thread_id": None if thread_id is None else UUID(thread_id),
        "user_id": visit.user.identity,
        "end_time": body.end_time,
        "metadata": dict(body.metadata or {}),
    }
    await visit.may_make("crons", "create", value)
    await visit.runs_assistant(body.assistant_id)
    if thread_id is not None:
        await visit.thread("read", thread_id)
    body.metadata = value["metadata"]
    return await handler(visit.call)


async def update_cron(visit: Authorization, handler: Handler) -> Any:
    body = visit.call.body
    given: dict[str, Any] = {} if body.metadata is None else {"metadata": dict(body.metadata)}
    payload = {name: each for name, each in to_builtins(body).items() if each is not None}
    value = await visit.cron(
        "update", visit.call.path["cron_id"], payload=payload, schedule=body.schedule, **given
    )
    if value.get("metadata"):
        body.metadata = value["metadata"]
    return await handler(visit.call)
