"""Checks of callers' input: texts, ids, names, choices, pages. Each returns the value or raises.

The annotated types declare the same limits to the native API, which checks requests and writes OpenAPI.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard, TypeVar

from msgspec import Meta

from perdure.kernel.errors import BadQuery, InvalidInput
from perdure.kernel.validation import one_of

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
