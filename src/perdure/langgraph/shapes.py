"""The nodes and edges of a graph, its JSON Schemas, and its subgraphs."""

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
"""The keys of a config that only the checkpointer reads."""
KEPT = 256
"""How many types keep their schema: making that of a list of messages takes a tenth of a second."""


async def nodes_and_edges(graph: Any, xray: bool | int) -> dict[str, Any]:
    """The nodes and edges of a graph; with `xray` those of subgraphs too, so many levels deep."""
    try:
        drawn = (await graph.aget_graph(xray=xray)).to_json()
    except NotImplementedError as error:
        raise InvalidInput(f"the graph cannot be drawn: {error}") from error
    for node in drawn.get("nodes", ()):
        if isinstance(data := node.get("data"), dict):
            data.pop("id", None)
    return dict(drawn)


def schemas(graph: Any) -> dict[str, Any]:
    """The JSON Schemas of a graph; types of users may have none."""
    return {
        "input_schema": input_schema(graph),
        "output_schema": _schema("output", lambda: _declared_schema(graph, "output")),
        "state_schema": _schema("state", lambda: _state_schema(graph)),
        "config_schema": _schema("config", lambda: _config_schema(graph)),
        "context_schema": _schema("context", lambda: graph.get_context_jsonschema()),
    }


def input_schema(graph: Any) -> dict[str, Any] | None:
    """The JSON Schema of what a graph takes."""
    return _schema("input", lambda: _declared_schema(graph, "input"))


async def subgraphs(graph: Any, namespace: str | None, recurse: bool) -> dict[str, Any]:
    return {
        name: schemas(inner)
        async for name, inner in graph.aget_subgraphs(namespace=namespace, recurse=recurse)
    }


def _schema(what: str, making: Callable[[], Any]) -> dict[str, Any] | None:
    try:
        made = making()
    except Exception as error:  # noqa: BLE001 - a schema is optional
        logger.debug("no schema of the graph's %s: %s", what, error)
        return None
    return None if made is None else dict(made)


def _kept(make: Callable[..., T]) -> Callable[..., T]:
    """Keep what is made of types; the annotations of a few cannot be compared, and are made each time."""
    keeping = lru_cache(maxsize=KEPT)(make)

    def made(*declared: Any) -> T:
        try:
            hash(declared)
        except TypeError:
            return make(*declared)
        return keeping(*declared)

    return made


def _declared_schema(graph: Any, which: str) -> Any:
    """What the graph says of its input or output, which LangGraph makes of the declared type alone."""
    declared = getattr(getattr(graph, "builder", None), which + "_schema", None)
    if type(graph) is CompiledStateGraph and (_is_typed_dict(declared) or _is_model(declared)):
        return _type_schema(declared)
    return getattr(graph, "get_" + which + "_jsonschema")()


def _is_typed_dict(declared: Any) -> bool:
    """Whether it is a TypedDict, of `typing` or of `typing_extensions`."""
    return isinstance(declared, type) and issubclass(declared, dict) and hasattr(declared, "__total__")


def _is_model(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel)


@_kept
def _type_schema(declared: Any) -> dict[str, Any]:
    made = declared.model_json_schema() if _is_model(declared) else TypeAdapter(declared).json_schema()
    return dict(made)


def _state_schema(graph: Any) -> dict[str, Any]:
    fields: list[tuple[str, Any]] = []
    for name in graph.stream_channels_list:
        declared = graph.channels[name].UpdateType
        fields.append((name, declared if _is_known(declared) else Any))
    return _fields_schema(graph.get_name("State"), *fields)


@_kept
def _fields_schema(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    types: dict[str, Any] = {field: (declared, None) for field, declared in fields}
    schema: dict[str, Any] = create_model(name, **types).model_json_schema()
    return schema


@_kept
def _is_known(declared: Any) -> bool:
    """Whether a type has a JSON schema."""
    try:
        TypeAdapter(declared).json_schema()
    except Exception as error:  # noqa: BLE001 - types of users may have no schema
        logger.debug("%r has no schema: %s", declared, error)
        return False
    return True


def _config_schema(graph: Any) -> dict[str, Any]:
    """The schema of `configurable`, without the keys that only the checkpointer reads."""
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
