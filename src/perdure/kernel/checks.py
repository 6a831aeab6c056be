"""Checks of what callers give: texts, ids, names, choices, pages. Each gives the value back or raises.

The annotated types say the same to the native API, which checks them on the way in and shows them in OpenAPI.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard, TypeVar

from msgspec import Meta

from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.kernel.validation import one_of

MAX_TEXT = 1024
"""The length of a text, in UTF-8 bytes, where no other limit is given."""
MAX_ID = 255
MAX_PAGE = 1000
"""The largest page of the native API."""
DEFAULT_PAGE = 100
MAX_ROWS = 2**53
"""The largest limit or offset of a query; it stands for everything."""
MAX_FILTER_KEYS = 20
"""How many keys a filter by metadata or values may have."""
MAX_FILTER_PARTS = 1000
"""How many values a filter may have in all, nested ones included."""
MAX_FILTER_CHOICES = 100
"""How many ids or statuses a filter may list."""
MAX_KEY = 255
"""The length of a key of metadata, in UTF-8 bytes."""

Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Limit = Annotated[int, Meta(ge=0, le=MAX_PAGE)]
Offset = Annotated[int, Meta(ge=0, le=MAX_ROWS)]
SortOrder = Literal["asc", "desc"]

C = TypeVar("C", bound=str)


# --- texts ------------------------------------------------------------------------------------------------


def check_text(value: object, what: str, *, max_length: int = MAX_TEXT) -> str:
    """A string that a text column can hold."""
    if type(value) is str and len(value) <= max_length and value.isascii() and "\0" not in value:
        return value
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidInput(f"{what} must not contain NUL characters")
    if _utf8_length(value, what) > max_length:
        raise InvalidInput(f"{what} must be at most {max_length} bytes long")
    return value


def _utf8_length(value: str, what: str) -> int:
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} must not contain lone surrogates") from None


def optional_text(value: object, what: str, *, max_length: int = MAX_TEXT) -> str | None:
    return None if value is None else check_text(value, what, max_length=max_length)


def check_texts(values: object, what: str) -> list[str]:
    """A list of strings; a single string is not one."""
    return [check_text(value, what) for value in _listed(values, what)]


def check_name(value: object, what: str, *, max_length: int = MAX_ID) -> str:
    """A string with more in it than spaces."""
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
    """The ids that a filter lists, or None for any."""
    return None if values is None else [check_id(value, what) for value in _filter_list(values, what)]


# --- choices ----------------------------------------------------------------------------------------------


def check_choice(value: object, choices: Sequence[C], what: str) -> C:
    """One of the choices, such as the members of a Literal."""
    for choice in choices:
        if value == choice:
            return choice
    raise InvalidInput(f"{what} must be one of {one_of(choices)}, not {value!r}")


def optional_choice(value: object, choices: Sequence[C], what: str) -> C | None:
    return None if value is None else check_choice(value, choices, what)


def check_choices(values: object, choices: Sequence[C], what: str) -> list[C]:
    """A list of choices for a filter; a single string is not one."""
    return [check_choice(value, choices, what) for value in _filter_list(values, what)]


def _listed(values: object, what: str) -> Iterable[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise BadQuery(f"{what} must be a list, not {type(values).__name__}")
    return values


def _filter_list(values: object, what: str) -> list[object]:
    listed = list(_listed(values, what))
    if len(listed) > MAX_FILTER_CHOICES:
        raise InvalidInput(f"{what} has {len(listed)} values; a filter takes at most {MAX_FILTER_CHOICES}")
    return listed


# --- numbers ----------------------------------------------------------------------------------------------


def check_number(value: object, what: str, least: int = 0, most: int = MAX_ROWS) -> int:
    """A whole number from `least` to `most`."""
    if not _is_whole(value, least, most):
        bounds = f"from {least} on" if most == MAX_ROWS else f"from {least} to {most}"
        raise InvalidInput(f"{what} is {value!r}; it must be a whole number {bounds}")
    return value


def _is_whole(value: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_page(limit: object, offset: object = 0, cursor: object = None) -> None:
    """A page of the native API: `limit` is 0 to 1,000, `offset` 0 or more, without a cursor."""
    check_number(limit, "limit", most=MAX_PAGE)
    if check_number(offset, "offset") and cursor is not None:
        raise InvalidInput("a page begins at a cursor or at an offset, not at both")


def check_query_page(limit: object, offset: object = 0) -> None:
    """A page of the Agent-lightning contract, where a limit of -1 is everything."""
    if not _is_whole(limit, -1, MAX_ROWS):
        raise BadQuery(f"limit is {limit!r}; it must be -1 (everything) or a whole number from 0 on")
    if not _is_whole(offset, 0, MAX_ROWS):
        raise BadQuery(f"offset is {offset!r}; it must be a whole number from 0 on")


def check_flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is {value!r}; it must be true or false")
    return value


def check_timeout(value: object) -> float | None:
    """A number of seconds, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidInput(f"timeout must be a number of seconds, not {value!r}")
    return value


def check_object(value: object, what: str) -> dict[str, Any]:
    """A JSON object: a mapping with strings as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{what} must be an object with strings as keys")
    return dict(value)


# --- filters ----------------------------------------------------------------------------------------------


def check_filter(value: object, what: str) -> dict[str, Any]:
    """The keys and values that objects are searched by; None is an empty filter."""
    conditions = check_object({} if value is None else value, what)
    if len(conditions) > MAX_FILTER_KEYS:
        raise InvalidInput(f"{what} has {len(conditions)} keys; a filter takes at most {MAX_FILTER_KEYS}")
    for key in conditions:
        check_text(key, f"a key of {what}", max_length=MAX_KEY)
    _check_parts(conditions, what)
    return conditions


def _check_parts(conditions: Mapping[str, Any], what: str) -> None:
    """Refuse a filter with too many values: each of them may be compared with each of an object's."""
    parts, level = 0, list(conditions.values())
    while level:
        parts += len(level)
        if parts > MAX_FILTER_PARTS:
            raise InvalidInput(f"{what} has too many values; a filter takes at most {MAX_FILTER_PARTS}")
        level = [below for part in level for below in _parts_of(part)]


def _parts_of(part: Any) -> Iterable[Any]:
    if isinstance(part, Mapping):
        return part.values()
    return part if isinstance(part, list | tuple) else ()
