"""Native routes, derived from the methods of services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from starlette.responses import Response

from perdure.kernel.pages import Page, PaginatedResult, Part
from perdure.server.http.bodies import NATIVE, encode
from perdure.server.http.routes import Call, Handler, Route
from perdure.service.base import Service
from perdure.service.endpoints import KEY, PREFIX, Endpoint, ItemList, WireForm, collect_arguments, endpoints

S = TypeVar("S", bound=Service)

TOTAL = "X-Pagination-Total"


class ByHand:
    """A handwritten handler, and what its route has beyond the method's signature."""

    def __init__(self, handler: Handler | None = None, **rest: Any) -> None:
        self.handler = handler
        self.rest = rest


def derive_routes(
    service: type[S],
    find: Callable[[Call], S],
    own: Mapping[Callable[..., Any], Handler | ByHand] | None = None,
    *,
    tag: str | None = None,
) -> tuple[Route, ...]:
    """Derive the routes of a service. `find` returns the service for the caller of a request.

    `own` maps methods to handwritten handlers. The default `tag` is the first segment of each path.
    """
    handlers = dict(own or {})
    by_name = endpoints(service).values()
    if unknown := handlers.keys() - {endpoint.function for endpoint in by_name}:
        raise ValueError(f"{service.__name__} has no endpoint for {unknown}")
    return tuple(_route(endpoint, find, handlers.get(endpoint.function), tag) for endpoint in by_name)


def _route(
    endpoint: Endpoint, find: Callable[[Call], Any], own: Handler | ByHand | None, tag: str | None
) -> Route:
    rest = own.rest if isinstance(own, ByHand) else {}
    handler = own.handler if isinstance(own, ByHand) else own
    shape = endpoint.shape
    fields: dict[str, Any] = {
        "method": endpoint.address.method,
        "path": PREFIX + endpoint.address.path,
        "handler": handler or build_handler(endpoint, find),
        "protocol": NATIVE,
        "scope": endpoint.scope,
        "query": shape.query,
        "body": shape.body,
        "body_optional": shape.whole_body is None and not any(param.required for param in shape.parameters),
        "answer": shape.answer,
        "status": endpoint.status,
        "errors": endpoint.errors,
        "summary": endpoint.summary,
        "max_body": endpoint.max_body,
        "tag": tag or endpoint.address.path.split("/", 2)[1],
    }
    return Route(**fields | rest)


def get_endpoint(method: Callable[..., Any]) -> Endpoint:
    """Return the endpoint of a service method."""
    endpoint: Endpoint = method.endpoint  # type: ignore[attr-defined]
    return endpoint


def build_handler(endpoint: Endpoint, find: Callable[[Call], Any]) -> Handler:
    """Build a handler that calls the method with the arguments of the request."""
    if endpoint.by_hand:
        raise ValueError(f"{endpoint.function.__qualname__} needs a handler of its own")

    async def handle(call: Call) -> Any:
        return encode_answer(endpoint, await endpoint.function(find(call), **arguments_for(endpoint, call)))

    return handle


def arguments_for(endpoint: Endpoint, call: Call) -> dict[str, Any]:
    """Build the keyword arguments of a request."""
    shape = endpoint.shape
    body = call.body
    if body is None and shape.body is not None and shape.whole_body is None:
        body = shape.body()
    arguments = {**call.path, **collect_arguments(shape, call.query, body)}
    if shape.keyed:
        arguments[KEY] = call.idempotency_key
    return arguments


def encode_answer(endpoint: Endpoint, answer: Any) -> Any:
    """Encode the result of a method."""
    shape = endpoint.shape
    if shape.answer is None:
        return Response(status_code=endpoint.status)
    form = shape.answer_form
    if shape.paged:
        return paged(answer, form)
    if shape.listed:
        return ItemList(items=_in_form(answer, form))
    if shape.parted:
        return Part(items=_in_form(answer, form), next=answer.next)
    return answer if form is None else form.to_wire(answer)


def _in_form(items: Iterable[Any], form: WireForm | None) -> list[Any]:
    return list(items) if form is None else [form.to_wire(item) for item in items]


def paged(page: PaginatedResult[Any], form: WireForm | None = None) -> Response:
    """Encode a page; if it has a total, a header has it too."""
    items = _in_form(page.items, form)
    body = Page(items=items, limit=page.limit, offset=page.offset, total=page.total, next=page.next)
    return Response(
        encode(body),
        headers={} if page.total is None else {TOTAL: str(page.total)},
        media_type="application/json",
    )
