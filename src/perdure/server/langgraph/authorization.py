"""Authorization of the LangGraph routes by the operator's own auth: each route has a rule made from these.

A rule names a resource and an action of `langgraph_sdk.Auth`, asks its handler, and applies the filter that
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
"""How many objects are read at once where a search cannot apply the filter itself."""


class Authorization:
    """A request, its user, and the handlers of custom auth that decide on it."""

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
        """The filter for the objects that the user may see; Forbidden if the action is denied.

        The handler may change `value`.
        """
        return await self._auth.authorize(self.user, resource, action, value)

    async def authorize_create(self, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """The same for a new object: the metadata in `value` then match the filter."""
        filter = await self.authorize(resource, action, value)
        value["metadata"] = with_owner(value.get("metadata"), filter)
        return filter

    # --- threads ----------------------------------------------------------------------------------------

    async def authorize_thread(self, action: str, thread_id: str, **value: Any) -> None:
        """Check that the user may do this to a thread."""
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
        # A temporary thread is deleted when its run has ended, and the run can still be joined for a while.
        with contextlib.suppress(NotFound, TimeoutError):
            run = (await self.call.threads.join_run(run_id, 0)).run
            return run.thread_id == thread_id and matches(filter, run.metadata)
        return False

    # --- assistants -------------------------------------------------------------------------------------

    async def authorize_assistant(self, action: str, assistant_id: str, **value: Any) -> dict[str, Any]:
        """Check that the user may do this to an assistant; gives the value as the handler left it."""
        value = {"assistant_id": UUID(assistant_id), **value}
        filter = await self.authorize("assistants", action, value)
        if filter and not matches(filter, (await self.call.assistants.get(assistant_id)).metadata):
            raise NotFound(f"Assistant {assistant_id} not found")
        return value

    async def authorize_execution(self, name: str) -> None:
        """Check that the user may run an assistant; everybody may run that of a graph itself."""
        found = (await self.call.assistants.resolve([name])).get(name)
        if found is None or found.system:
            return
        filter = await self.authorize("assistants", "read", {"assistant_id": UUID(found.assistant_id)})
        if not matches(filter, found.metadata):
            raise NotFound(f"Assistant {name} not found")


# --- rules ------------------------------------------------------------------------------------------------

Rule = Callable[[Authorization, Handler], Awaitable[Any]]
Check = Callable[[Authorization], Awaitable[None]]


def before(check: Check) -> Rule:
    """A rule that raises an error, or lets the handler answer. It may change the body of the request."""

    async def rule(request: Authorization, handler: Handler) -> Any:
        await check(request)
        return await handler(request.call)

    return rule


def on_thread(action: str) -> Rule:
    """Do something to the thread of the path, or to one of its runs."""

    async def check(request: Authorization) -> None:
        path = request.call.path
        named = {"run_id": UUID(path["run_id"])} if "run_id" in path else {}
        await request.authorize_thread(action, path["thread_id"], **named)

    return before(check)


def on_assistant(action: str) -> Rule:
    """Do something to the assistant of the path."""

    async def check(request: Authorization) -> None:
        await request.authorize_assistant(action, request.call.path["assistant_id"])

    return before(check)


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> dict[str, Any]: ...


async def check_not_taken(get: Callable[[str], Awaitable[_HasMetadata]], id: str, filter: Filter) -> None:
    """Refuse an id of an object that the user may not see, and tell no more than that it exists."""
    try:
        found = await get(id)
    except NotFound:
        return
    if not matches(filter, found.metadata):
        raise Conflict(f"{id} exists already")


# --- rules of searches ------------------------------------------------------------------------------------


def searching(resource: str) -> Rule:
    """Find only what the user may see."""

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
        found = await _scan(request.call, handler, filter)
        items = [selected(each, names) for each in found[offset : offset + limit]]
        return page(items, len(found), limit, offset)

    return rule


def counting(resource: str, search_body: type[Any], search: Handler) -> Rule:
    """Count only what the user may see."""

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
    """The fields of a body as a handler of custom auth gets them."""
    return {name: None if value is UNSET else value for name, value in to_builtins(body).items()}


async def _scan(call: Call, search: Handler, filter: Filter) -> list[dict[str, Any]]:
    """All results of a search that the user may see."""
    found: list[dict[str, Any]] = []
    call.body.limit, call.body.offset = SCAN, 0
    while True:
        results = decode_json(bytes((await search(call)).body))
        found += [each for each in results if matches(filter, each["metadata"])]
        call.body.offset += SCAN
        if len(results) < SCAN:
            return found


# --- the user of a run ------------------------------------------------------------------------------------


def with_caller(call: Call, request: RunRequest) -> RunRequest:
    """A run request whose configuration has what the server adds: the user, the request's id, and headers."""
    config, user, rules = request.config, get_user(call), call.app.http.configurable_headers
    own = {} if rules is None else rules.chosen(call.request.headers)
    own["langgraph_request_id"] = call.request_id
    config = {**config, CONFIGURABLE: {**(config.get(CONFIGURABLE) or {}), **own}}
    return structs.replace(request, config=config if user is None else config_with(user, config))


def config_with(user: User, config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration that names the user."""
    return {**config, CONFIGURABLE: {**(config.get(CONFIGURABLE) or {}), **user.configurable()}}


def get_idempotency_key(call: Call) -> str | None:
    """The idempotency key of a request, which users do not share."""
    key, user = call.idempotency_key, get_user(call)
    return key if key is None or user is None else f"{user.identity}/{key}"
