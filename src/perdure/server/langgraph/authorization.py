"""Authorization of the LangGraph routes by custom auth. The rules of the routes are built here.

A rule names a resource and an action of `langgraph_sdk.Auth`, calls its handler, and applies the filter that
the handler returns. It runs in place of the route's handler, and calls that if the request is allowed.
Without custom auth no rule runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

import msgspec
from msgspec import UNSET, structs, to_builtins

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import Conflict, Forbidden, NotFound
from perdure.langgraph.custom_auth import Filter, GraphAuth, User
from perdure.server.http.routes import Call, Handler
from perdure.server.langgraph.filters import matches, memberships, narrow, with_owner
from perdure.server.langgraph.protocol import get_user
from perdure.server.langgraph.wire import PAGE, answer, page, selected
from perdure.threads.records import RunRequest

CONFIGURABLE = "configurable"
SCAN = 100
"""Number of objects per read in a search that cannot apply the filter itself."""


class Authorization:
    """A request, its user, and the custom auth that decides on it."""

    def __init__(self, call: Call, auth: GraphAuth) -> None:
        self.call = call
        self._auth = auth

    @property
    def user(self) -> User:
        user = get_user(self.call)
        if user is None:
            raise Forbidden("this request is not authenticated")
        return user

    async def authorize(self, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """Return the filter for the objects that the user may see. Raise Forbidden if the action is denied.

        The handler may change `value`.
        """
        return await self._auth.authorize(self.user, resource, action, value)

    async def authorize_create(self, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """Authorize a new object. Add to its metadata in `value` what the filter requires."""
        filter = await self.authorize(resource, action, value)
        value["metadata"] = with_owner(value.get("metadata"), filter)
        return filter

    # --- threads ----------------------------------------------------------------------------------------

    async def authorize_thread(self, action: str, thread_id: str, **value: Any) -> None:
        """Check that the user may perform this action on a thread."""
        filter = await self.authorize("threads", action, {"thread_id": UUID(thread_id), **value})
        await self.check_thread(thread_id, filter)

    async def check_thread(self, thread_id: str, filter: Filter) -> None:
        """Raise NotFound for a thread that the user may not see."""
        if filter and not await self._can_read_thread(thread_id, filter):
            raise NotFound(f"Thread {thread_id} not found")

    async def _can_read_thread(self, thread_id: str, filter: Filter) -> bool:
        run_id = self.call.path.get("run_id")
        with contextlib.suppress(NotFound):
            return matches(filter, (await self.call.threads.get_thread(thread_id)).metadata)
        if run_id is None:
            return False
        # A temporary thread is deleted at the end of its run, but the run can still be joined for a while.
        with contextlib.suppress(NotFound, TimeoutError):
            run = (await self.call.threads.join_run(run_id, 0)).run
            return run.thread_id == thread_id and matches(filter, run.metadata)
        return False

    # --- assistants -------------------------------------------------------------------------------------

    async def authorize_assistant(self, action: str, assistant_id: str, **value: Any) -> dict[str, Any]:
        """Check that the user may perform this action on an assistant. Return the handler's value."""
        value = {"assistant_id": UUID(assistant_id), **value}
        filter = await self.authorize("assistants", action, value)
        if filter and not matches(filter, (await self.call.assistants.get(assistant_id)).metadata):
            raise NotFound(f"Assistant {assistant_id} not found")
        return value

    async def authorize_execution(self, name: str) -> None:
        """Check that the user may run an assistant. Every user may run a graph's own assistant."""
        assistant = (await self.call.assistants.resolve([name])).get(name)
        if assistant is None or assistant.system:
            return
        filter = await self.authorize("assistants", "read", {"assistant_id": UUID(assistant.assistant_id)})
        if not matches(filter, assistant.metadata):
            raise NotFound(f"Assistant {name} not found")


# --- rules ------------------------------------------------------------------------------------------------

Rule = Callable[[Authorization, Handler], Awaitable[Any]]
Check = Callable[[Authorization], Awaitable[None]]


def before(check: Check) -> Rule:
    """Build a rule from a check, which raises an error or returns. It may change the request's body."""

    async def rule(request: Authorization, handler: Handler) -> Any:
        await check(request)
        return await handler(request.call)

    return rule


def on_thread(action: str) -> Rule:
    """Build a rule for an action on the path's thread, or on one of its runs."""

    async def check(request: Authorization) -> None:
        path = request.call.path
        named = {"run_id": UUID(path["run_id"])} if "run_id" in path else {}
        await request.authorize_thread(action, path["thread_id"], **named)

    return before(check)


def on_assistant(action: str) -> Rule:
    """Build a rule for an action on the path's assistant."""

    async def check(request: Authorization) -> None:
        await request.authorize_assistant(action, request.call.path["assistant_id"])

    return before(check)


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> dict[str, Any]: ...


async def check_not_taken(get: Callable[[str], Awaitable[_HasMetadata]], id: str, filter: Filter) -> None:
    """Refuse an existing id if the user may not see its object; reveal only that it exists."""
    try:
        existing = await get(id)
    except NotFound:
        return
    if not matches(filter, existing.metadata):
        raise Conflict(f"{id} exists already")


# --- rules of searches ------------------------------------------------------------------------------------


def searching(resource: str) -> Rule:
    """Build a rule that restricts a search to what the user may see."""

    async def rule(request: Authorization, handler: Handler) -> Any:
        body, filter = request.call.body, await _authorize_search(request, resource)
        limit, offset = body.limit or PAGE, body.offset or 0
        wanted = narrow(body.metadata, filter)
        if wanted is None:
            return page([], 0, limit, offset)
        body.metadata = wanted
        if not memberships(filter):
            return await handler(request.call)
        names, body.select = body.select, None
        results = await _scan(request.call, handler, filter)
        items = [selected(result, names) for result in results[offset : offset + limit]]
        return page(items, len(results), limit, offset)

    return rule


def counting(resource: str, search_body: type[Any], search: Handler) -> Rule:
    """Build a rule that restricts a count to what the user may see."""

    async def rule(request: Authorization, handler: Handler) -> Any:
        body, filter = request.call.body, await _authorize_search(request, resource)
        wanted = narrow(body.metadata, filter)
        if wanted is None:
            return answer(0)
        body.metadata = wanted
        if not memberships(filter):
            return await handler(request.call)
        request.call.body = msgspec.convert(to_builtins(body), search_body)
        return answer(len(await _scan(request.call, search, filter)))

    return rule


async def _authorize_search(request: Authorization, resource: str) -> Filter:
    body = request.call.body
    value = {"limit": PAGE, "offset": 0, **get_fields(body), "metadata": dict(body.metadata or {})}
    filter = await request.authorize(resource, "search", value)
    body.metadata = value.get("metadata")
    return filter


def get_fields(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a body, as handlers of custom auth get them."""
    return {name: None if value is UNSET else value for name, value in to_builtins(body).items()}


async def _scan(call: Call, search: Handler, filter: Filter) -> list[dict[str, Any]]:
    """Return all results of a search that the user may see."""
    visible: list[dict[str, Any]] = []
    call.body.limit, call.body.offset = SCAN, 0
    while True:
        results = decode_json(bytes((await search(call)).body))
        visible += [result for result in results if matches(filter, result["metadata"])]
        call.body.offset += SCAN
        if len(results) < SCAN:
            return visible


# --- the user of a run ------------------------------------------------------------------------------------


def with_caller(call: Call, request: RunRequest) -> RunRequest:
    """Add the user, the request's id and allowed headers to the configuration of a run request."""
    config, user, rules = request.config, get_user(call), call.app.http.configurable_headers
    own = {} if rules is None else rules.chosen(call.request.headers)
    own["langgraph_request_id"] = call.request_id
    config = {**config, CONFIGURABLE: {**(config.get(CONFIGURABLE) or {}), **own}}
    return structs.replace(request, config=config if user is None else config_with(user, config))


def config_with(user: User, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add the user to a configuration."""
    return {**config, CONFIGURABLE: {**(config.get(CONFIGURABLE) or {}), **user.configurable()}}


def get_idempotency_key(call: Call) -> str | None:
    """Return the idempotency key of a request, prefixed so that users do not share keys."""
    key, user = call.idempotency_key, get_user(call)
    return key if key is None or user is None else f"{user.identity}/{key}"
