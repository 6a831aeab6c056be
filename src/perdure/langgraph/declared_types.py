"""Types that a graph declares. Only they, and the project's own types, are revived from checkpoints."""

from __future__ import annotations

import dataclasses
import logging
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from perdure.langgraph.revival import Name, note_types, strict_serializer

logger = logging.getLogger(__name__)


def build_serializer(graph: Any, own: Iterable[Name] = ()) -> JsonPlusSerializer:
    """Build a serializer for plain data, and for types of LangGraph, of the project and of the graph.

    Values of a type that cannot be inspected come back as plain data, so that no run fails because of it.
    """
    types: set[type] = set()
    for part in (graph, *_inner(graph)):
        for declared in _declared(part):
            _collect_readable(declared, types)
    note_types(types)
    return strict_serializer({*own, *((declared.__module__, declared.__name__) for declared in types)})


def _inner(graph: Any) -> list[Any]:
    try:
        return [inner for _, inner in graph.get_subgraphs(recurse=True)]
    except Exception as error:  # noqa: BLE001 - nodes are code of users
        logger.warning("the types of subgraphs are unknown: %s: %s", type(error).__name__, error)
        return []


def _declared(graph: Any) -> Iterator[Any]:
    # A `RemoteGraph` has no channels here.
    for channel in getattr(graph, "channels", {}).values():
        # Managed values, such as `RemainingSteps`, are computed in each step and never stored.
        if isinstance(channel, BaseChannel):
            yield from _list_types(channel)
    # A `Send` carries a value of the type that the node takes.
    yield from getattr(getattr(graph, "builder", None), "schemas", ())


def _list_types(channel: BaseChannel[Any, Any, Any]) -> tuple[Any, ...]:
    try:
        return channel.ValueType, channel.UpdateType
    except Exception as error:  # noqa: BLE001 - channels may be classes of users
        logger.warning("the type of channel %s is unknown: %s", channel.key, error)
        return ()


def _collect_readable(declared: Any, types: set[type]) -> None:
    try:
        _collect(declared, types)
    except Exception as error:  # noqa: BLE001 - annotations are code of users
        logger.warning("the type %r cannot be read: %s: %s", declared, type(error).__name__, error)


def _collect(declared: Any, types: set[type]) -> None:
    """Collect the classes that a type consists of and that are serialized by name."""
    for part in typing.get_args(declared):
        _collect(part, types)
    if not isinstance(declared, type) or declared in types or declared.__module__ == "builtins":
        return
    if issubclass(declared, Enum | BaseModel | tuple) or dataclasses.is_dataclass(declared):
        types.add(declared)
        for part in _hints(declared):
            _collect(part, types)
    elif typing.is_typeddict(declared):
        for part in _hints(declared):
            _collect(part, types)


def _hints(declared: type) -> Iterable[Any]:
    try:
        return typing.get_type_hints(declared).values()
    except (NameError, TypeError) as error:
        logger.debug("the types of %s cannot be read: %s", declared.__name__, error)
        return ()
