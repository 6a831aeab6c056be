"""Messages for values that do not match their msgspec type: the field, and the allowed values."""

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
    """Split an error into its text and the path in it, such as ``Expected … - at `$.rollouts[0].mode` ``."""
    match = _PLACE.match(str(error))
    if match is None:
        return str(error), []
    steps: list[str | int] = []
    for step in _STEP.finditer(match["path"] or ""):
        index = step["index"]
        steps.append(step["name"] or (int(index) if index.isdecimal() else index))
    return match["text"], steps


def explain(error: msgspec.ValidationError, kind: Any, what: str) -> str:
    """Describe the error in `what`, which should be a `kind`, and the allowed values."""
    text, steps = parse_place(error)
    detail, hint = _describe(text, steps, kind)
    place = ".".join(map(str, steps))
    if detail.startswith("must be"):
        return f"{place or what} {detail}"
    return f"{f'{place}: ' if place else ''}{detail} in {what}{hint}"


def build_detail(text: str, steps: Sequence[str | int], kind: Any) -> str:
    """Return the text of an error with a suggested name or the choices."""
    return "".join(_describe(text, steps, kind))


def _describe(text: str, steps: Sequence[str | int], kind: Any) -> tuple[str, str]:
    """Return the error and the suggested name."""
    unknown, choice = _UNKNOWN.search(text), _CHOICE.search(text)
    if unknown:
        return f"unknown field {unknown[1]!r}", suggestion(unknown[1], _list_fields(_find_types(kind, steps)))
    choices = list(_choices(_find_types(kind, steps))) if choice else []
    return (f"must be one of {one_of(choices)}, not {choice[1]!r}" if choice and choices else text), ""


def suggestion(given: str, known: Iterable[str]) -> str:
    """Return a question after an unknown name, if a known name is similar."""
    close = get_close_matches(given, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def one_of(choices: Sequence[str]) -> str:
    """Format choices as `a, b or c`."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else "".join(choices)


def _find_types(kind: Any, steps: Sequence[str | int]) -> list[inspect.Type]:
    level = list(_list_members(inspect.type_info(kind)))
    for step in steps:
        children = [child for parent in level for child in _get_children(parent, step)]
        level = [member for child in children for member in _list_members(child)]
    return level


def _list_members(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the parts of a union; any other type is one part."""
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _list_members(member)
    elif isinstance(kind, inspect.Metadata):
        yield from _list_members(kind.type)
    else:
        yield kind


def _get_children(kind: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType | inspect.TypedDictType | inspect.DataclassType):
        yield from (field.type for field in kind.fields if field.encode_name == step)
    elif isinstance(kind, inspect.CollectionType):
        yield kind.item_type
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type


def _list_fields(types: Iterable[inspect.Type]) -> Iterator[str]:
    for kind in types:
        if isinstance(kind, inspect.StructType | inspect.TypedDictType | inspect.DataclassType):
            yield from (field.encode_name for field in kind.fields)


def _choices(types: Iterable[inspect.Type]) -> Iterator[str]:
    for kind in types:
        if isinstance(kind, inspect.LiteralType):
            yield from map(str, kind.values)
        elif isinstance(kind, inspect.EnumType):
            yield from (str(member.value) for member in kind.cls)
