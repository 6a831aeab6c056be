"""Checks of callers' input: texts, ids, names, choices, pages. Each returns the value or raises.

A value that does not match its msgspec type gets a message with the field and the allowed values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeGuard, TypeVar

import msgspec
from msgspec import Meta, inspect

from perdure.kernel.errors import BadQuery, InvalidInput

# --- values of another type -------------------------------------------------------------------------------


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


# --- input ------------------------------------------------------------------------------------------------


MAX_TEXT = 1024
"""Default maximum length of a text, in UTF-8 bytes."""
MAX_ID = 255
MAX_PAGE = 1000
"""The largest page of the native API."""
DEFAULT_PAGE = 100
MAX_ROWS = 2**53
"""Largest limit or offset of a query; as a limit it means everything."""
MAX_FILTER_KEYS = 20
"""Maximum number of keys in a filter by metadata or values."""
MAX_FILTER_PARTS = 1000
"""Maximum number of values in a filter, nested values included."""
MAX_FILTER_CHOICES = 100
"""Maximum number of ids or statuses in a filter."""
MAX_KEY = 255
"""Maximum length of a metadata key, in UTF-8 bytes."""

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Limit = Annotated[int, Meta(ge=0, le=MAX_PAGE)]
Offset = Annotated[int, Meta(ge=0, le=MAX_ROWS)]
SortOrder = Literal["asc", "desc"]

C = TypeVar("C", bound=str)


# --- texts ------------------------------------------------------------------------------------------------


def check_text(value: object, what: str, *, max_length: int = MAX_TEXT) -> str:
    """Check a string that a text column can store."""
    if type(value) is str and len(value) <= max_length and value.isascii() and "\0" not in value:
        return value
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidInput(f"{what} must not contain NUL characters")
    if _count_utf8_bytes(value, what) > max_length:
        raise InvalidInput(f"{what} must be at most {max_length} bytes long")
    return value


def _count_utf8_bytes(value: str, what: str) -> int:
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} must not contain lone surrogates") from None


def optional_text(value: object, what: str, *, max_length: int = MAX_TEXT) -> str | None:
    return None if value is None else check_text(value, what, max_length=max_length)


def check_texts(values: object, what: str) -> list[str]:
    """Check a list of strings; a single string is refused."""
    return [check_text(value, what) for value in _check_list(values, what)]


def check_name(value: object, what: str, *, max_length: int = MAX_ID) -> str:
    """Check a string that is not blank."""
    name = check_text(value, what, max_length=max_length)
    if not name.strip():
        raise InvalidInput(f"{what} must not be empty")
    return name


def check_id(value: object, what: str) -> str:
    return check_text(value, what, max_length=MAX_ID)


def optional_id(value: object, what: str) -> str | None:
    return None if value is None else check_id(value, what)


def check_ids(values: Sequence[object], what: str) -> list[str]:
    return [check_id(value, what) for value in values]


def optional_ids(values: Sequence[object] | None, what: str) -> list[str] | None:
    return None if values is None else check_ids(values, what)


def optional_id_filter(values: object, what: str) -> list[str] | None:
    """Check the ids of a filter; None matches any id."""
    return None if values is None else [check_id(value, what) for value in _check_filter_list(values, what)]


# --- choices ----------------------------------------------------------------------------------------------


def check_choice(value: object, choices: Sequence[C], what: str) -> C:
    """Check that a value is one of the choices, such as the members of a Literal."""
    for choice in choices:
        if value == choice:
            return choice
    raise InvalidInput(f"{what} must be one of {one_of(choices)}, not {value!r}")


def optional_choice(value: object, choices: Sequence[C], what: str) -> C | None:
    return None if value is None else check_choice(value, choices, what)


def check_choices(values: object, choices: Sequence[C], what: str) -> list[C]:
    """Check a list of choices for a filter; a single string is refused."""
    return [check_choice(value, choices, what) for value in _check_filter_list(values, what)]


def _check_list(values: object, what: str) -> Iterable[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise BadQuery(f"{what} must be a list, not {type(values).__name__}")
    return values


def _check_filter_list(values: object, what: str) -> list[object]:
    listed = list(_check_list(values, what))
    if len(listed) > MAX_FILTER_CHOICES:
        raise InvalidInput(f"{what} has {len(listed)} values; a filter takes at most {MAX_FILTER_CHOICES}")
    return listed


# --- numbers ----------------------------------------------------------------------------------------------


def check_number(value: object, what: str, least: int = 0, most: int = MAX_ROWS) -> int:
    """Check a whole number from `least` to `most`."""
    if not _is_whole(value, least, most):
        bounds = f"from {least} on" if most == MAX_ROWS else f"from {least} to {most}"
        raise InvalidInput(f"{what} is {value!r}; it must be a whole number {bounds}")
    return value


def _is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_page(limit: object, offset: object = 0, cursor: object = None) -> None:
    """Check a page of the native API: `limit` from 0 to 1,000, and `offset` from 0 only without a cursor."""
    check_number(limit, "limit", most=MAX_PAGE)
    if check_number(offset, "offset") and cursor is not None:
        raise InvalidInput("a page begins at a cursor or at an offset, not at both")


def check_query_page(limit: object, offset: object = 0) -> None:
    """Check a page of the Agent-lightning contract, where a limit of -1 means everything."""
    if not _is_whole(limit, -1, MAX_ROWS):
        raise BadQuery(f"limit is {limit!r}; it must be -1 (everything) or a whole number from 0 on")
    if not _is_whole(offset, 0, MAX_ROWS):
        raise BadQuery(f"offset is {offset!r}; it must be a whole number from 0 on")


def check_flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is {value!r}; it must be true or false")
    return value


def check_timeout(value: object) -> float | None:
    """Check a number of seconds; None means no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidInput(f"timeout must be a number of seconds, not {value!r}")
    return value


def check_object(value: object, what: str) -> dict[str, Any]:
    """Check a JSON object: a mapping with string keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{what} must be an object with strings as keys")
    return dict(value)


# --- filters ----------------------------------------------------------------------------------------------


def check_filter(value: object, what: str) -> dict[str, Any]:
    """Check the keys and values of a filter; None is an empty filter."""
    conditions = check_object({} if value is None else value, what)
    if len(conditions) > MAX_FILTER_KEYS:
        raise InvalidInput(f"{what} has {len(conditions)} keys; a filter takes at most {MAX_FILTER_KEYS}")
    for key in conditions:
        check_text(key, f"a key of {what}", max_length=MAX_KEY)
    _check_parts(conditions, what)
    return conditions


def _check_parts(conditions: Mapping[str, Any], what: str) -> None:
    """Refuse a filter with too many values, because each may be compared with every value of an object."""
    parts, level = 0, list(conditions.values())
    while level:
        parts += len(level)
        if parts > MAX_FILTER_PARTS:
            raise InvalidInput(f"{what} has too many values; a filter takes at most {MAX_FILTER_PARTS}")
        level = [below for part in level for below in _get_parts(part)]


def _get_parts(part: Any) -> Iterable[Any]:
    if isinstance(part, Mapping):
        return part.values()
    return part if isinstance(part, list | tuple) else ()
