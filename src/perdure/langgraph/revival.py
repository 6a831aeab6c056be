"""Which types are given back from stored states: data of the project's own code, and nothing else.

A stored name imports nothing: it is looked up among the classes that the imported modules of the project and
of its declared packages define. Everything else stays plain data.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Iterable
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from langchain_core.runnables import Runnable
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from perdure.agents.project import PROJECT
from perdure.checkpoints.view import FRAMES
from perdure.langgraph import frames
from perdure.langgraph.wire import expect_named_tuples

Name = tuple[str, str]
"""The module and the name of a class."""

MOST_REPORTED = 1000
"""So many types are named in the log, each once."""

STORABLE = (
    "It may hold plain data, dates, bytes, sets, messages, documents, arrays of numbers, DataFrames of pandas"
    " in dictionaries and lists, and dataclasses, pydantic models, enums and named tuples of plain data;"
    " convert everything else in the node, or keep it out of the state"
)

logger = logging.getLogger(__name__)


class StrictSerializer(JsonPlusSerializer):
    """LangGraph's serializer, restricted to LangGraph's types and those that are allowed."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        # LangGraph would revive what the JSON of its early releases names.
        form, body = data
        if form == FRAMES:
            return frames.load(body, self._unpack_ext_hook)
        return msgspec.json.decode(body) if form == "json" else super().loads_typed(data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        try:
            try:
                return super().dumps_typed(obj)
            except TypeError:
                return frames.dump(obj)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"a state cannot be stored: {error}. {STORABLE}") from error


def strict_serializer(allowed: Iterable[type | tuple[str, ...]] = ()) -> StrictSerializer:
    """A serializer that gives back LangGraph's types and those that are allowed."""
    return StrictSerializer(pickle_fallback=False, allowed_msgpack_modules=tuple(allowed) or None)


# --- types of the project ---------------------------------------------------------------------------------


class _Known(NamedTuple):
    """The types that were found, and what they depend on."""

    version: tuple[int, int]
    types: frozenset[Name]


_lock = threading.Lock()
_known = _Known((0, -1), frozenset())


def own_types() -> frozenset[Name]:
    """The data classes of the project's code that is imported by now; the same object until that changes."""
    global _known
    with _lock:
        version = (len(sys.modules), PROJECT.version)
        if _known.version != version:
            found = frozenset(_found())
            _known = _Known(version, _known.types if found == _known.types else found)
        return _known.types


_looked_at: WeakKeyDictionary[ModuleType, tuple[int, list[Name]]] = WeakKeyDictionary()
"""The types of each module, and how many names it had: it may not be imported to its end."""


def _found() -> Iterable[Name]:
    for name, module in PROJECT.modules():
        names = vars(module)
        size, types = _looked_at.get(module, (-1, []))
        if size != len(names):
            found = {each: value for each, value in list(names.items()) if _defines(name, each, value)}
            note_types(found.values())
            types = [(name, each) for each in found]
            _looked_at[module] = (len(names), types)
        yield from types


def _defines(module: str, name: str, value: Any) -> bool:
    try:
        return is_data(value) and (value.__module__, value.__name__) == (module, name)
    except Exception as error:  # noqa: BLE001 - classes may be made by code of users
        logger.debug("%s.%s cannot be looked at: %s", module, name, error)
        return False


def note_types(types: Iterable[type]) -> None:
    """Prepare for showing values of types that are given back."""
    if any(issubclass(each, tuple) for each in types):
        expect_named_tuples()


def is_data(value: Any) -> bool:
    """Whether it is a class of data: a pydantic model, a dataclass, an enum or a named tuple."""
    if not isinstance(value, type) or issubclass(value, Runnable):
        return False
    named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    return named_tuple or issubclass(value, Enum | BaseModel) or dataclasses.is_dataclass(value)


# --- what stays plain data --------------------------------------------------------------------------------

_reported: set[Name] = set()


def _report(event: SerdeEvent) -> None:
    """Say once of each type that its values come back as plain data."""
    name = (event["module"], event["name"])
    if event["kind"] != "msgpack_blocked" or name in _reported or len(_reported) >= MOST_REPORTED:
        return
    _reported.add(name)
    logger.warning(
        "values of %s.%s come back as plain data: it is no pydantic model, dataclass, enum or named tuple of"
        " the project, or of a package that the project declares, that was imported with the graph",
        *name,
    )


register_serde_event_listener(_report)
