"""How the LangGraph protocol declares its routes: their ids are UUIDs, or the request is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from perdure.access.model import Scope
from perdure.server.http.routes import Call, Handler, Route
from perdure.server.langgraph.auth_table import guarded
from perdure.server.langgraph.protocol import DOOR
from perdure.server.langgraph.wire import check_uuid

IDS = ("assistant_id", "thread_id", "run_id", "cron_id")
_PARAMETER = re.compile(r"\{(\w+)\}")


def declaring(tag: str) -> Callable[..., Route]:
    """What declares the routes of one group."""

    def declare(
        method: str, path: str, handler: Handler, scope: Scope | None, summary: str, **rest: Any
    ) -> Route:
        names = [name for name in _PARAMETER.findall(path) if name in IDS]
        handler = guarded(method, path, handler)
        return Route(
            method=method,
            path=path,
            handler=_with_uuids(handler, names) if names else handler,
            protocol=DOOR,
            scope=scope,
            summary=summary,
            tag=f"langgraph {tag}",
            **rest,
        )

    return declare


def _with_uuids(handler: Handler, names: list[str]) -> Handler:
    """The handler, behind a check of the ids in its path."""

    @wraps(handler)
    async def checked(call: Call) -> Any:
        found = {name: check_uuid(call.path[name], name) for name in names}
        call.path = {**call.path, **found}
        return await handler(call)

    return checked
