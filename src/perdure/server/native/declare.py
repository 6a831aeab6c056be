"""Declaration of native routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.server.http.bodies import NATIVE
from perdure.server.http.routes import Handler, Route
from perdure.service.callers import Scope
from perdure.service.endpoints import PREFIX


def declaring(tag: str, prefix: str = PREFIX) -> Callable[..., Route]:
    """Return a function that declares routes with this tag and path prefix."""

    def declare(
        method: str, path: str, handler: Handler, scope: Scope | None, summary: str, **rest: Any
    ) -> Route:
        return Route(
            method=method,
            path=prefix + path,
            handler=handler,
            protocol=NATIVE,
            scope=scope,
            summary=summary,
            tag=tag,
            **rest,
        )

    return declare
