"""Declaration of the LangGraph routes: path, authorization rule and handler in one place."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from perdure.kernel.errors import NotSupported, PerdureError
from perdure.langgraph.loopback import LOOPBACK
from perdure.server.http.routes import Call, Handler, Route
from perdure.server.langgraph.authorization import Authorization, Rule
from perdure.server.langgraph.protocol import PROTOCOL
from perdure.server.langgraph.wire import check_uuid, is_uuid
from perdure.service.callers import Scope

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
        """Declare a route for the decorated handler, which is not changed.

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
