"""Types that are revived from stored states: data classes of the project's own code, and types of its graphs.

A stored name imports nothing. It is looked up among the classes that the imported modules of the project and
of its declared packages define, and among the types that a graph declares. All other values stay plain data.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from langchain_core.runnables import Runnable
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from perdure.agents.project import PROJECT
from perdure.checkpoints.view import FRAMES
from perdure.langgraph import wire
from perdure.langgraph.wire import expect_named_tuples

Name = tuple[str, str]
"""Module and name of a class."""

MOST_REPORTED = 1000
"""Most types that the log names, once each."""

STORABLE = (
    "It may hold plain data, dates, bytes, sets, messages, documents, arrays of numbers, DataFrames of pandas"
    " in dictionaries and lists, and dataclasses, pydantic models, enums and named tuples of plain data;"
    " convert everything else in the node, or keep it out of the state"
)

logger = logging.getLogger(__name__)


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serializer, restricted to LangGraph's types and other allowed types."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        # LangGraph would revive objects named in the JSON of its early releases.
        form, body = data
        if form == FRAMES:
            return wire.load(body, self._unpack_ext_hook)
        return msgspec.json.decode(body) if form == "json" else super().loads_typed(data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        try:
            try:
                return super().dumps_typed(obj)
            except TypeError:
                return wire.dump(obj)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"a state cannot be stored: {error}. {STORABLE}") from error


def strict_serializer(allowed: Iterable[type | tuple[str, ...]] = ()) -> StrictSerializer:
    """Build a serializer that revives LangGraph's types and other allowed types."""
    return StrictSerializer(pickle_fallback=False, allowed_msgpack_modules=tuple(allowed) or None)


# --- types of the project ---------------------------------------------------------------------------------


class _OwnTypes(NamedTuple):
    """Types of the project, and the version of the imports that they come from."""

    version: tuple[int, int]
    types: frozenset[Name]


_lock = threading.Lock()
_cached = _OwnTypes((0, -1), frozenset())


def own_types() -> frozenset[Name]:
    """Return the data classes of the project's imported code; the same object until they change."""
    global _cached
    with _lock:
        version = (len(sys.modules), PROJECT.version)
        if _cached.version != version:
            types = frozenset(_find_types())
            _cached = _OwnTypes(version, _cached.types if types == _cached.types else types)
        return _cached.types


_inspected: WeakKeyDictionary[ModuleType, tuple[int, list[Name]]] = WeakKeyDictionary()
"""Types of each module, and its number of names, because a module may be imported only in part."""


def _find_types() -> Iterable[Name]:
    for name, module in PROJECT.modules():
        names = vars(module)
        size, types = _inspected.get(module, (-1, []))
        if size != len(names):
            classes = {key: value for key, value in list(names.items()) if _defines(name, key, value)}
            note_types(classes.values())
            types = [(name, key) for key in classes]
            _inspected[module] = (len(names), types)
        yield from types


def _defines(module: str, name: str, value: Any) -> bool:
    try:
        return is_data(value) and (value.__module__, value.__name__) == (module, name)
    except Exception as error:  # noqa: BLE001 - classes may be made by code of users
        logger.debug("%s.%s cannot be inspected: %s", module, name, error)
        return False


def note_types(types: Iterable[type]) -> None:
    """Prepare to show values of revived types."""
    if any(issubclass(revived, tuple) for revived in types):
        expect_named_tuples()


def is_data(value: Any) -> bool:
    """Return whether an object is a data class: a pydantic model, dataclass, enum or named tuple."""
    if not isinstance(value, type) or issubclass(value, Runnable):
        return False
    named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    return named_tuple or issubclass(value, Enum | BaseModel) or dataclasses.is_dataclass(value)


# --- what stays plain data --------------------------------------------------------------------------------

_reported: set[Name] = set()


def _report(event: SerdeEvent) -> None:
    """Log once per type that its values come back as plain data."""
    name = (event["module"], event["name"])
    if event["kind"] != "msgpack_blocked" or name in _reported or len(_reported) >= MOST_REPORTED:
        return
    _reported.add(name)
    logger.warning(
        "values of %s.%s come back as plain data: the class is not a pydantic model, dataclass, enum or named"
        " tuple of the project, or of a package that the project declares, that was imported with the graph",
        *name,
    )


register_serde_event_listener(_report)


# --- types that a graph declares --------------------------------------------------------------------------


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
