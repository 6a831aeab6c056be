"""Messages for values that do not match their msgspec type: which field, and what is allowed there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec import inspect

_PLACE = re.compile(r"^(?P<text>.*?)(?: - at `(?P<path>.*)`)?$", re.S)
_STEP = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>[^\]]*)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.+)`")
_CHOICE = re.compile(r"Invalid enum value '?(.*?)'?$")


def parse_place(error: msgspec.ValidationError) -> tuple[str, list[str | int]]:
    """The text of an error and the path that it names, such as ``Expected … - at `$.rollouts[0].mode` ``."""
    found = _PLACE.match(str(error))
    if found is None:
        return str(error), []
    steps: list[str | int] = []
    for step in _STEP.finditer(found["path"] or ""):
        index = step["index"]
        steps.append(step["name"] or (int(index) if index.isdecimal() else index))
    return found["text"], steps


def explain(error: msgspec.ValidationError, kind: Any, what: str) -> str:
    """What is wrong with `what`, which should have been a `kind`, and what would be right."""
    text, steps = parse_place(error)
    detail, hint = _described(text, steps, kind)
    place = ".".join(map(str, steps))
    if detail.startswith("must be"):
        return f"{place or what} {detail}"
    return f"{f'{place}: ' if place else ''}{detail} in {what}{hint}"


def build_detail(text: str, steps: Sequence[str | int], kind: Any) -> str:
    """The text of an error with what is allowed: the name that was probably meant, or the choices."""
    return "".join(_described(text, steps, kind))


def _described(text: str, steps: Sequence[str | int], kind: Any) -> tuple[str, str]:
    """What is wrong, and what was probably meant."""
    unknown, choice = _UNKNOWN.search(text), _CHOICE.search(text)
    if unknown:
        return f"unknown field {unknown[1]!r}", suggestion(unknown[1], _fields(_types_at(kind, steps)))
    choices = list(_choices(_types_at(kind, steps))) if choice else []
    return (f"must be one of {one_of(choices)}, not {choice[1]!r}" if choice and choices else text), ""


def suggestion(given: str, known: Iterable[str]) -> str:
    """A question after a name that is not known, if one that is known is like it."""
    close = get_close_matches(given, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def one_of(choices: Sequence[str]) -> str:
    """`a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else "".join(choices)


def _types_at(kind: Any, steps: Sequence[str | int]) -> list[inspect.Type]:
    level = list(_members(inspect.type_info(kind)))
    for step in steps:
        level = [member for each in level for below in _below(each, step) for member in _members(below)]
    return level


def _members(found: inspect.Type) -> Iterator[inspect.Type]:
    """A union in its parts; anything else is a part by itself."""
    if isinstance(found, inspect.UnionType):
        for each in found.types:
            yield from _members(each)
    elif isinstance(found, inspect.Metadata):
        yield from _members(found.type)
    else:
        yield found


def _below(found: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    if isinstance(found, inspect.StructType | inspect.TypedDictType | inspect.DataclassType):
        yield from (field.type for field in found.fields if field.encode_name == step)
    elif isinstance(found, inspect.CollectionType):
        yield found.item_type
    elif isinstance(found, inspect.DictType):
        yield found.value_type


def _fields(types: Iterable[inspect.Type]) -> Iterator[str]:
    for each in types:
        if isinstance(each, inspect.StructType | inspect.TypedDictType | inspect.DataclassType):
            yield from (field.encode_name for field in each.fields)


def _choices(types: Iterable[inspect.Type]) -> Iterator[str]:
    for each in types:
        if isinstance(each, inspect.LiteralType):
            yield from map(str, each.values)
        elif isinstance(each, inspect.EnumType):
            yield from (str(member.value) for member in each.cls)
