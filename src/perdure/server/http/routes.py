"""Routes: path, body, scope, response type and errors. The rest is derived from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from perdure.assistants.service import Assistants
from perdure.items.service import Items
from perdure.kernel.errors import MethodNotAllowed, PerdureError, UnknownRoute
from perdure.rollouts.contract import LightningStore
from perdure.runtime.app import StoreApp
from perdure.runtime.services import Services
from perdure.schedules.service import Schedules
from perdure.service.callers import Caller, Scope
from perdure.threads.service import Threads

STOPPING = "stopping"
"""Key of the server's stop event in the state that requests share with the server."""
STOPS = "the server stops; ask again"
"""Error for a request that still waits when the server stops."""


class Stopping(asyncio.Event):
    """Set when the server stops. `future` is then done too, so requests can wait for it without a task."""

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        super().set()
        if not self.future.done():
            self.future.set_result(None)


class ServerProtocol(Protocol):
    """A protocol of the server; it formats errors."""

    name: str

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """Build the response for an error, in the format of this protocol."""
        ...


@runtime_checkable
class Admitting(Protocol):
    """A protocol with its own authentication."""

    async def admit(self, request: Request, app: StoreApp) -> Caller | None:
        """Return the caller. Return None to use perdure's keys and tokens."""
        ...


Readmit = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Call:
    """A request, as handlers receive it."""

    request: Request
    app: StoreApp
    caller: Caller
    path: Mapping[str, str]
    request_id: str
    readmit: Readmit | None = None
    """Checks during a long response whether the caller is still admitted; None skips the check."""
    routes: tuple[Route, ...] = ()
    """All routes of this server, for its documentation."""
    query: Any = None
    body: Any = None

    @property
    def store(self) -> LightningStore:
        """The store of the caller's namespace, acting as the caller."""
        return self.app.store_for(self.caller)

    @property
    def threads(self) -> Threads:
        """Threads and runs of the caller's namespace, acting as the caller."""
        return self.services.threads

    @property
    def assistants(self) -> Assistants:
        """The assistants of the caller's namespace, acting as the caller."""
        return self.services.assistants

    @property
    def schedules(self) -> Schedules:
        """The schedules of the caller's namespace, acting as the caller."""
        return self.services.schedules

    @property
    def items(self) -> Items:
        """The items of the caller's namespace, acting as the caller."""
        return self.services.items

    @property
    def services(self) -> Services:
        """The services of the database, acting as the caller."""
        return self.app.services.acting_as(self.caller)

    @property
    def prefix(self) -> str:
        """The path that this server is mounted below, as browsers request it; empty at the root."""
        root: str = self.request.scope.get("root_path", "")
        return root + self.app.http.mount_prefix

    @property
    def stopping(self) -> Stopping:
        """Set when the server starts to stop; endless responses then end."""
        event: Stopping | None = self.request.scope.get("state", {}).get(STOPPING)
        return event or Stopping()

    @property
    def idempotency_key(self) -> str | None:
        return self.request.headers.get("idempotency-key")


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An entry of the table."""

    method: str
    path: str
    handler: Handler
    protocol: ServerProtocol
    scope: Scope | None
    """The scope that a caller needs. None makes exactly this path public."""
    body: Any = None
    """Type of the JSON body; `bytes` is the raw body, None reads no body."""
    body_optional: bool = False
    body_form: str = "application/json"
    query: type[msgspec.Struct] | None = None
    answer: Any = None
    """Type of the response, for the OpenAPI document; a handler may also return a Response."""
    answer_form: str = "application/json"
    status: int = 200
    errors: tuple[type[PerdureError], ...] = ()
    summary: str = ""
    tag: str = ""
    raw: bool = False
    """Whether the handler reads the request by itself."""
    max_body: int | None = None
    """Maximum bytes of the body, if it differs from the settings."""
    ends_with_caller: bool = False
    """Whether the handler is cancelled when its caller disconnects; with the scope `read` it always is."""
    opens_in_tab: bool = False
    """Whether a link on any page may open it in a tab: it answers HTML and changes nothing."""
    takes_rest: bool = False
    """Whether the last parameter matches the rest of the path, including slashes; it may be empty."""


class RouteMatch(NamedTuple):
    """The route of a request and its path parameters."""

    route: Route
    path: dict[str, str]


@dataclass(slots=True)
class _Node:
    """A node in the tree of paths; a literal segment precedes a parameter, which precedes a rest."""

    steps: dict[str, _Node] = field(default_factory=dict)
    any_step: _Node | None = None
    rest: _Node | None = None
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self.routes = routes
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node, names = self._root, []
        steps = route.path.split("/")[1:]
        for place, step in enumerate(steps, 1):
            if route.takes_rest and place == len(steps):
                names.append(step[1:-1])
                node.rest = node.rest or _Node()
                node = node.rest
            elif step.startswith("{"):
                names.append(step[1:-1])
                node.any_step = node.any_step or _Node()
                node = node.any_step
            else:
                node = node.steps.setdefault(step, _Node())
        if route.method in node.routes:
            raise ValueError(f"{route.method} {route.path} is twice in the table")
        node.routes[route.method] = (route, tuple(names))

    def find(self, method: str, steps: list[str]) -> RouteMatch:
        """Return the route for the segments of a path, or raise an error."""
        allowed: set[str] = set()
        for node, values in _places(self._root, steps, ()):
            entry = node.routes.get(method) or (node.routes.get("GET") if method == "HEAD" else None)
            if entry is not None:
                return RouteMatch(entry[0], dict(zip(entry[1], values, strict=True)))
            allowed.update(node.routes)
        if allowed:
            methods = tuple(sorted(allowed))
            raise MethodNotAllowed(f"this path takes {', '.join(methods)}, not {method}", methods)
        raise UnknownRoute()

    def find_protocol(self, path: str) -> ServerProtocol:
        """Return the protocol that answers for a path without a route: the one with the most similar path."""
        best = max(self.routes, key=lambda route: _common(route.path, path))
        return best.protocol


def _places(node: _Node, steps: list[str], values: tuple[str, ...]) -> list[tuple[_Node, tuple[str, ...]]]:
    if not steps:
        return [(node, values)] if node.routes else []
    step, rest = steps[0], steps[1:]
    places = _places(node.steps[step], rest, values) if step in node.steps else []
    if node.any_step is not None and step:
        places += _places(node.any_step, rest, (*values, step))
    return places if node.rest is None else [*places, (node.rest, (*values, "/".join(steps)))]


def _common(left: str, right: str) -> int:
    """Count the leading segments that two paths share."""
    count = 0
    for one, other in zip(left.split("/")[1:], right.split("/")[1:], strict=False):
        if one != other:
            break
        count += 1
    return count
