"""Searches of the LangGraph protocol that find only what their caller may see, and the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, to_builtins

from perdure.kernel.codec import decode_json
from perdure.server.http.routes import Call, Handler
from perdure.server.langgraph.auth_filters import matches, memberships, narrowed
from perdure.server.langgraph.auth_pass import Authorization
from perdure.server.langgraph.auth_rules import SCANNED, Rule
from perdure.server.langgraph.wire import PAGE, answer, page, selected

# --- searching --------------------------------------------------------------------------------------------


def searching(resource: str) -> Rule:
    """Find only what the caller may see."""

    async def rule(visit: Authorization, handler: Handler) -> Any:
        body, needed = visit.call.body, await _may_search(visit, resource)
        limit, offset = body.limit or PAGE, body.offset or 0
        wanted = narrowed(body.metadata, needed)
        if wanted is None:
            return page([], 0, limit, offset)
        body.metadata = wanted
        if not memberships(needed):
            return await handler(visit.call)
        names, body.select = body.select, None
        found = await _scanned(visit.call, handler, needed)
        items = [selected(each, names) for each in found[offset : offset + limit]]
        return page(items, len(found), limit, offset)

    return rule


def counting(resource: str, body_of_search: type[Any], search: Handler) -> Rule:
    """Count only what the caller may see."""

    async def rule(visit: Authorization, handler: Handler) -> Any:
        body, needed = visit.call.body, await _may_search(visit, resource)
        wanted = narrowed(body.metadata, needed)
        if wanted is None:
            return answer(0)
        body.metadata = wanted
        if not memberships(needed):
            return await handler(visit.call)
        visit.call.body = msgspec.convert(to_builtins(body), body_of_search)
        return answer(len(await _scanned(visit.call, search, needed)))

    return rule


async def _may_search(visit: Authorization, resource: str) -> Mapping[str, Any]:
    body = visit.call.body
    value: dict[str, Any] = {"limit": PAGE, "offset": 0, **to_builtins(body)}
    value = {name: None if each is UNSET else each for name, each in value.items()}
    value["metadata"] = dict(body.metadata or {})
    needed = await visit.may(resource, "search", value)
    body.metadata = value.get("metadata")
    return needed


async def _scanned(call: Call, search: Handler, needed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All objects that a search finds and the caller may see; each is looked at."""
    kept: list[dict[str, Any]] = []
    call.body.limit, call.body.offset = SCANNED, 0
    while True:
        found = decode_json(bytes((await search(call)).body))
        kept += [each for each in found if matches(needed, each["metadata"])]
        call.body.offset += SCANNED
        if len(found) < SCANNED:
            return kept


# --- the store --------------------------------------------------------------------------------------------


def on_store(action: str, name: str = "namespace") -> Rule:
    """Do something in a namespace, which the handler may put elsewhere."""

    async def rule(visit: Authorization, handler: Handler) -> Any:
        body = visit.call.body
        value = {each: None if it is UNSET else it for each, it in to_builtins(body).items()}
        value["namespace"] = tuple(value.pop(name, None) or ())
        # What is in the store has no metadata that a filter could look at.
        await visit.may("store", action, value)
        setattr(body, name, [str(label) for label in value.get("namespace") or ()])
        return await handler(visit.call)

    return rule


async def get_item(visit: Authorization, handler: Handler) -> Any:
    query = visit.call.query
    labels = tuple(query.namespace.split(".")) if query.namespace else ()
    value = {"namespace": labels, "key": query.key}
    await visit.may("store", "get", value)
    query.namespace, query.key = ".".join(map(str, value["namespace"])), str(value["key"])
    return await handler(visit.call)
