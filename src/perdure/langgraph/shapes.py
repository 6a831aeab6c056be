"""Nodes and edges, JSON Schemas and subgraphs of a graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, TypeAdapter, create_model

from perdure.kernel.errors import InvalidInput

logger = logging.getLogger(__name__)

T = TypeVar("T")

INTERNAL = ("checkpoint_id", "checkpoint_ns", "thread_id")
"""Keys of a config that only the checkpointer reads."""
KEPT = 256
"""Number of types whose schemas are cached: the schema of a list of messages takes 0.1 s."""


async def nodes_and_edges(graph: Any, xray: bool | int) -> dict[str, Any]:
    """Return the nodes and edges of a graph; `xray` adds subgraphs, to a number of levels or all."""
    try:
        drawn = (await graph.aget_graph(xray=xray)).to_json()
    except NotImplementedError as error:
        raise InvalidInput(f"the graph cannot be drawn: {error}") from error
    for node in drawn.get("nodes", ()):
        if isinstance(data := node.get("data"), dict):
            data.pop("id", None)
    return dict(drawn)


def schemas(graph: Any) -> dict[str, Any]:
    """Return the JSON Schemas of a graph; None for types without a schema."""
    return {
        "input_schema": input_schema(graph),
        "output_schema": _schema("output", lambda: _declared_schema(graph, "output")),
        "state_schema": _schema("state", lambda: _state_schema(graph)),
        "config_schema": _schema("config", lambda: _config_schema(graph)),
        "context_schema": _schema("context", lambda: graph.get_context_jsonschema()),
    }


def input_schema(graph: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a graph's input."""
    return _schema("input", lambda: _declared_schema(graph, "input"))


async def subgraphs(graph: Any, namespace: str | None, recurse: bool) -> dict[str, Any]:
    return {
        name: schemas(inner)
        async for name, inner in graph.aget_subgraphs(namespace=namespace, recurse=recurse)
    }


def _schema(what: str, making: Callable[[], Any]) -> dict[str, Any] | None:
    try:
        schema = making()
    except Exception as error:  # noqa: BLE001 - a schema is optional
        logger.debug("no schema of the graph's %s: %s", what, error)
        return None
    return None if schema is None else dict(schema)


def _cached(make: Callable[..., T]) -> Callable[..., T]:
    """Cache results by types. Types with unhashable annotations are not cached."""
    cached = lru_cache(maxsize=KEPT)(make)

    def get(*declared: Any) -> T:
        try:
            hash(declared)
        except TypeError:
            return make(*declared)
        return cached(*declared)

    return get


def _declared_schema(graph: Any, which: str) -> Any:
    """Return the schema of the graph's input or output. The declared type suffices for plain graphs."""
    declared = getattr(getattr(graph, "builder", None), which + "_schema", None)
    if type(graph) is CompiledStateGraph and (_is_typed_dict(declared) or _is_model(declared)):
        return _type_schema(declared)
    return getattr(graph, "get_" + which + "_jsonschema")()


def _is_typed_dict(declared: Any) -> bool:
    """Return whether a type is a TypedDict, of `typing` or of `typing_extensions`."""
    return isinstance(declared, type) and issubclass(declared, dict) and hasattr(declared, "__total__")


def _is_model(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel)


@_cached
def _type_schema(declared: Any) -> dict[str, Any]:
    schema = declared.model_json_schema() if _is_model(declared) else TypeAdapter(declared).json_schema()
    return dict(schema)


def _state_schema(graph: Any) -> dict[str, Any]:
    fields: list[tuple[str, Any]] = []
    for name in graph.stream_channels_list:
        declared = graph.channels[name].UpdateType
        fields.append((name, declared if _is_known(declared) else Any))
    return _fields_schema(graph.get_name("State"), *fields)


@_cached
def _fields_schema(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    types: dict[str, Any] = {field: (declared, None) for field, declared in fields}
    schema: dict[str, Any] = create_model(name, **types).model_json_schema()
    return schema


@_cached
def _is_known(declared: Any) -> bool:
    """Return whether a type has a JSON Schema."""
    try:
        TypeAdapter(declared).json_schema()
    except Exception as error:  # noqa: BLE001 - types of users may have no schema
        logger.debug("%r has no schema: %s", declared, error)
        return False
    return True


def _config_schema(graph: Any) -> dict[str, Any]:
    """Return the schema of `configurable`, without the keys that only the checkpointer reads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        whole = graph.config_schema()
    configurable = whole.model_fields.get("configurable")
    if configurable is None:
        return {}
    schema = TypeAdapter(configurable.annotation).json_schema()
    named = schema.get("properties", {})
    for key in [key for key in named if key in INTERNAL or key.startswith("__")]:
        del named[key]
    return schema
