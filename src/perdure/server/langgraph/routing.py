"""Declaration of the LangGraph routes: path, handler, and authorization rule by custom auth, in one place.

A rule names a resource and an action of `langgraph_sdk.Auth`, calls its handler, and applies the filter that
the handler returns. A rule runs in place of the route's handler, and calls it if the request is allowed.
Without custom auth no rule runs.

A filter is the result of a `langgraph_sdk.Auth` handler: `{"owner": "ann"}`, `{"owner": {"$eq": "ann"}}`,
`{"members": {"$contains": "ann"}}` or `{"members": {"$contains": ["ann", "bob"]}}`. All conditions must hold.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, structs, to_builtins

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import Conflict, Forbidden, NotFound, NotSupported, PerdureError
from perdure.kernel.json_values import CONTAINS, EQUAL, satisfies
from perdure.langgraph.custom_auth import Filter, GraphAuth, User
from perdure.langgraph.loopback import LOOPBACK
from perdure.server.http.routes import Call, Handler, Route
from perdure.server.langgraph.protocol import (
    PAGE,
    PROTOCOL,
    answer,
    check_uuid,
    get_user,
    is_uuid,
    page,
    selected,
)
from perdure.service.callers import Scope
from perdure.threads.records import RunRequest

# --- filters ----------------------------------------------------------------------------------------------


OPERATORS = (EQUAL, CONTAINS)


def matches(filter: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata match a filter; a missing key matches nothing."""
    return all(key in metadata and _holds(condition, metadata[key]) for key, condition in filter.items())


def _holds(condition: Any, value: Any) -> bool:
    tests = condition if isinstance(condition, Mapping) else {EQUAL: condition}
    unknown = [name for name in tests if name not in OPERATORS]
    if unknown:
        raise Forbidden(
            f"the filter has an unknown operator {unknown[0]!r}; it may have {' and '.join(OPERATORS)}"
        )
    return satisfies(value, tests)


def equalities(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the equality conditions: conditions of a search, and metadata of new objects."""
    conditions: dict[str, Any] = {}
    for key, condition in filter.items():
        if not isinstance(condition, Mapping):
            conditions[key] = condition
        elif EQUAL in condition:
            conditions[key] = condition[EQUAL]
    return conditions


def memberships(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that a search does not apply."""
    return {
        key: condition
        for key, condition in filter.items()
        if isinstance(condition, Mapping) and any(operator != EQUAL for operator in condition)
    }


def with_owner(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> dict[str, Any]:
    """Build the metadata of a new object, so that the object matches the filter of its creator."""
    return {**(metadata or {}), **equalities(filter)}


def narrow(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> dict[str, Any] | None:
    """Merge search metadata with a filter. Return None if they contradict each other."""
    wanted, required = dict(metadata or {}), equalities(filter)
    if any(key in wanted and wanted[key] != value for key, value in required.items()):
        return None
    return {**wanted, **required}


# --- authorization ----------------------------------------------------------------------------------------


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
        """Authorize a new object. Add the values required by the filter to the metadata in `value`."""
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
    """Build a rule from a check. The check raises an error or returns, and may change the request's body."""

    async def rule(request: Authorization, handler: Handler) -> Any:
        await check(request)
        return await handler(request.call)

    return rule


def on_thread(action: str) -> Rule:
    """Build a rule for an action on the path's thread, or on a run of this thread."""

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
    """Build a rule that restricts a search to objects that the user may see."""

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
    """Build a rule that restricts a count to objects that the user may see."""

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
    """Return the fields of a body in the form for custom auth handlers."""
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


# --- routes -----------------------------------------------------------------------------------------------


IDS = ("assistant_id", "thread_id", "run_id", "cron_id")
_PARAMETER = re.compile(r"\{(\w+)\}")

H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class LangGraphRoute(Route):
    """A route with the rule that custom auth applies to it."""

    rule: Rule
    group: str
    """Name of its group in `http.disable_…` of a `langgraph.json`."""


class LangGraphResource:
    """The routes of one resource, in order of declaration."""

    def __init__(self, name: str, group: str | None = None) -> None:
        self.routes: list[LangGraphRoute] = []
        self._group = group or name
        self._tag = f"langgraph {name}"

    def route(
        self,
        method: str,
        path: str,
        *,
        rule: Rule,
        scope: Scope,
        summary: str,
        errors: tuple[type[PerdureError], ...] = (),
        takes_name: bool = False,
        **rest: Any,
    ) -> Callable[[H], H]:
        """Declare a route for the decorated handler; the handler stays unchanged.

        With `takes_name` the assistant in the path may also be the name of a graph.
        """

        def declare(handler: H) -> H:
            self.routes.append(
                LangGraphRoute(
                    method=method,
                    path=path,
                    handler=_checked(handler, rule, path, takes_name),
                    rule=rule,
                    group=self._group,
                    protocol=PROTOCOL,
                    scope=scope,
                    summary=summary,
                    tag=self._tag,
                    errors=(*errors, NotSupported),
                    **rest,
                )
            )
            return handler

        return declare


def _checked(handler: Handler, rule: Rule, path: str, takes_name: bool) -> Handler:
    """Wrap a handler in a check of the path's ids and, with custom auth, in its rule."""
    names = [name for name in _PARAMETER.findall(path) if name in IDS]

    @wraps(handler)
    async def checked(call: Call) -> Any:
        if takes_name:
            await _resolve(call)
        if names:
            call.path = {**call.path, **{name: check_uuid(call.path[name], name) for name in names}}
        auth = None if LOOPBACK in call.request.scope else call.app.auth
        return await (handler(call) if auth is None else rule(Authorization(call, auth), handler))

    return checked


async def _resolve(call: Call) -> None:
    """Replace a graph's name in the path by the id of its own assistant."""
    name = call.path["assistant_id"]
    assistant = None if is_uuid(name) else (await call.assistants.resolve([name])).get(name)
    if assistant is not None:
        call.path = {**call.path, "assistant_id": assistant.assistant_id}
