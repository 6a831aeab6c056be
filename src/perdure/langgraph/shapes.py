"""The nodes and edges of a graph, its JSON Schemas, and its subgraphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, create_model

from perdure.kernel.errors import InvalidInput

logger = logging.getLogger(__name__)

INTERNAL = ("checkpoint_id", "checkpoint_ns", "thread_id")
"""The keys of a config that only the checkpointer reads."""


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
        "input_schema": _schema("input", graph.get_input_jsonschema),
        "output_schema": _schema("output", graph.get_output_jsonschema),
        "state_schema": _schema("state", lambda: _state_schema(graph)),
        "config_schema": _schema("config", lambda: _config_schema(graph)),
        "context_schema": _schema("context", lambda: graph.get_context_jsonschema()),
    }


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


def _state_schema(graph: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in graph.stream_channels_list:
        declared = graph.channels[name].UpdateType
        fields[name] = (declared if _is_known(declared) else Any, None)
    schema: dict[str, Any] = create_model(graph.get_name("State"), **fields).model_json_schema()
    return schema


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
