"""The OpenAPI document, derived from the route table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from perdure.kernel.errors import (
    BadBody,
    Forbidden,
    InvalidInput,
    PerdureError,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    UnsupportedMedia,
)
from perdure.kernel.record import OpenRecord
from perdure.kernel.version import VERSION
from perdure.server.http.bodies import MEDIA_TYPE
from perdure.server.http.routes import Route

TITLE = "perdure"
ABOUT = "The durable state and execution layer for AI agents."
_PARAMETER = re.compile(r"\{(\w+)\}")


class Problem(msgspec.Struct):
    """An error, as RFC 9457 describes it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str


def document(routes: Iterable[Route], *, open_to_all: bool = False) -> dict[str, Any]:
    """Build the document of a route table."""
    routes = [route for route in routes if not route.path.startswith("/{")]
    kinds = [Problem, *(kind for route in routes for kind in _list_kinds(route))]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}", schema_hook=_open_schema
    )
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, open_to_all)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _list_kinds(route: Route) -> list[Any]:
    kinds = [kind for kind in (route.body, route.answer) if kind not in (None, bytes)]
    return [*kinds, *([route.query] if route.query else [])]


def _operation(route: Route, by_kind: dict[str, Any], open_to_all: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "tags": [route.tag or route.protocol.name],
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": _responses(route, by_kind),
    }
    if route.scope is not None and not open_to_all:
        operation["security"] = [{"token": [route.scope]}]
    if route.body is not None:
        schema = {"type": "string", "format": "binary"} if route.body is bytes else by_kind[repr(route.body)]
        content = {route.body_form: {"schema": schema}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    return operation


def _name(route: Route) -> str:
    steps = [step.strip("{}") for step in route.path.strip("/").split("/")]
    return "_".join([route.method.lower(), *(re.sub(r"\W", "_", step) for step in steps)])


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([route.query])
    own = components[schema["$ref"].rpartition("/")[2]]
    required = own.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in own["properties"].items()
    ]


def _responses(route: Route, by_kind: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done."}
    if route.answer is not None:
        schema = (
            {"type": "string", "format": "binary"} if route.answer is bytes else by_kind[repr(route.answer)]
        )
        answer["content"] = {route.answer_form: {"schema": schema}}
    responses = {str(route.status): answer}
    refused = {"schema": {"$ref": "#/components/schemas/Problem"}} if route.protocol.name == "native" else {}
    for error in list_errors(route):
        form = {MEDIA_TYPE: refused} if refused else {"application/json": {}}
        about = (error.__doc__ or "").strip().partition("\n")[0]
        responses.setdefault(str(error.http_status), {"description": about, "content": form})
    return responses


def list_errors(route: Route) -> tuple[type[PerdureError], ...]:
    """Return the errors that a route may answer."""
    errors: tuple[type[PerdureError], ...] = route.errors
    if route.scope is not None:
        errors += (Unauthorized, Forbidden, TooManyRequests)
    if route.query is not None or "{" in route.path:
        errors += (InvalidInput,)
    if route.body is not None:
        errors += (BadBody, TooLarge, UnsupportedMedia)
    return errors


def _open_schema(kind: type) -> dict[str, Any]:
    """Describe the declared fields of a record that keeps unknown keys."""
    if not issubclass(kind, OpenRecord):
        raise NotImplementedError
    names: dict[str, Any] = {field.name: {} for field in kind._declared}
    return {"type": "object", "title": kind.__name__, "properties": names, "additionalProperties": True}
