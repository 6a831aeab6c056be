"""JSON values in memory: paths into them, and their matching.

Paths are `title`, `authors[0].name`, `messages[-1]`, `chapters[*].text` and `{title,tags}`. Values match by
equal keys, by containment, and by operators such as `$gt`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

# --- paths ------------------------------------------------------------------------------------------------


_STEP = re.compile(r"\[(?P<index>[^\]]*)\]|\{(?P<fields>[^}]*)\}|(?P<name>[^.\[\]{}]+)")

Path = tuple[tuple[str, str], ...]
"""Steps of a path, each with its kind: the `index` of a list, a `name`, or `fields` of an object."""


@lru_cache(maxsize=1024)
def parse(path: str) -> Path:
    """Parse a path; a selection of fields ends it."""
    steps = [(str(step.lastgroup), step[str(step.lastgroup)]) for step in _STEP.finditer(path)]
    kinds = [kind for kind, _ in steps]
    return tuple(steps[: kinds.index("fields") + 1] if "fields" in kinds else steps)


def find(value: Any, path: Path) -> list[Any]:
    """Return the values at a path, in order; empty if nothing is there."""
    values = [value]
    for kind, wanted in path:
        values = [below for parent in values for below in _get_children(parent, kind, wanted)]
    return values


def _get_children(value: Any, kind: str, wanted: str) -> Iterator[Any]:
    if kind == "fields":
        for name in wanted.split(","):
            yield from _field(value, name.strip())
    elif kind == "index" and isinstance(value, list):
        yield from value if wanted == "*" else _item(value, wanted)
    elif kind == "name" and wanted == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif kind == "name" and isinstance(value, dict) and wanted in value:
        yield value[wanted]


def _field(value: Any, path: str) -> Iterator[Any]:
    """Return a field of a selection, which may be nested: `author.name`."""
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return
        value = value[name]
    yield value


def _item(value: list[Any], index: str) -> Iterator[Any]:
    if index.removeprefix("-").isdecimal() and -len(value) <= int(index) < len(value):
        yield value[int(index)]


# --- matching ---------------------------------------------------------------------------------------------


def has(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Return whether an object has all the wanted keys with equal values."""
    return all(key in value and value[key] == other for key, other in (wanted or {}).items())


def contains(whole: Any, part: Any) -> bool:
    """Return whether a JSON value contains another, as `@>` of PostgreSQL does.

    Objects are compared by their keys, lists by their items in any order, other values for equality.
    """
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            key in whole and contains(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(item, one) for item in whole) for one in part)
    return (type(whole) is type(part) and bool(whole == part)) or _is_same_number(whole, part)


def matches(value: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Return whether an object matches a filter; a missing field counts as null.

    A condition is a value, an object of conditions, a list of conditions, or operators with their operands.
    """
    return all(_fits(value.get(name), condition) for name, condition in conditions.items())


def _fits(value: Any, condition: Any) -> bool:
    if isinstance(condition, dict):
        if has_operators(condition):
            return satisfies(value, condition)
        return isinstance(value, dict) and matches(value, condition)
    if isinstance(condition, list):
        if not isinstance(value, list) or len(value) != len(condition):
            return False
        return all(map(_fits, value, condition))
    return bool(value == condition)


def has_operators(condition: Mapping[str, Any]) -> bool:
    return any(name.startswith("$") for name in condition)


def satisfies(value: Any, tests: Mapping[str, Any]) -> bool:
    """Return whether a value passes every operator, such as `{"$gte": 1, "$lt": 5}`. Operators must exist."""
    return all(_OPERATORS[name](value, operand) for name, operand in tests.items())


def _compare(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Build a comparison: numbers and numeric strings compare as numbers, other strings by sort order."""

    def test(value: Any, operand: Any) -> bool:
        left, right = _parse_number(value), _parse_number(operand)
        if left is not None and right is not None:
            return compare(left, right)
        return isinstance(value, str) and isinstance(operand, str) and compare(value, operand)

    return test


def _parse_number(value: Any) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _is_same_number(one: Any, other: Any) -> bool:
    numbers = (int, float)
    plain = not isinstance(one, bool) and not isinstance(other, bool)
    return plain and isinstance(one, numbers) and isinstance(other, numbers) and one == other


def _has_items(value: Any, operand: Any) -> bool:
    """Return whether a list contains an item, or all items of a list (`$contains`)."""
    wanted = operand if isinstance(operand, list) else [operand]
    return isinstance(value, list) and all(item in value for item in wanted)


EQUAL: Final = "$eq"
CONTAINS: Final = "$contains"

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    EQUAL: lambda value, operand: bool(value == operand),
    "$ne": lambda value, operand: bool(value != operand),
    "$gt": _compare(lambda left, right: bool(left > right)),
    "$gte": _compare(lambda left, right: bool(left >= right)),
    "$lt": _compare(lambda left, right: bool(left < right)),
    "$lte": _compare(lambda left, right: bool(left <= right)),
}
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {**COMPARISONS, CONTAINS: _has_items}
