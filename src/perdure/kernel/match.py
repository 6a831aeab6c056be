"""Match JSON values in memory: by equal keys, by containment, and by filters with operators such as `$gt`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final


def has(found: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether an object has all the wanted keys with equal values."""
    return all(key in found and found[key] == value for key, value in (wanted or {}).items())


def contains(whole: Any, part: Any) -> bool:
    """Whether a JSON value contains another, as `@>` of PostgreSQL does.

    Objects are compared by their keys, lists by their items in any order, everything else for equality.
    """
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(
            key in whole and contains(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(each, one) for each in whole) for one in part)
    return (type(whole) is type(part) and bool(whole == part)) or _same_number(whole, part)


def matches(value: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Whether an object fits a filter; a missing field counts as null.

    A condition is a value, an object of conditions, a list of conditions, or operators with their operands.
    """
    return all(_fits(value.get(name), condition) for name, condition in conditions.items())


def _fits(found: Any, condition: Any) -> bool:
    if isinstance(condition, dict):
        if has_operators(condition):
            return satisfies(found, condition)
        return isinstance(found, dict) and matches(found, condition)
    if isinstance(condition, list):
        if not isinstance(found, list) or len(found) != len(condition):
            return False
        return all(map(_fits, found, condition))
    return bool(found == condition)


def has_operators(condition: Mapping[str, Any]) -> bool:
    return any(name.startswith("$") for name in condition)


def satisfies(found: Any, tests: Mapping[str, Any]) -> bool:
    """Whether a value passes every operator, such as `{"$gte": 1, "$lt": 5}`. They must be known."""
    return all(_OPERATORS[name](found, operand) for name, operand in tests.items())


def _compare(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Compare two numbers, or strings that are numbers, as numbers, and other strings as they sort."""

    def test(found: Any, operand: Any) -> bool:
        left, right = _number(found), _number(operand)
        if left is not None and right is not None:
            return compare(left, right)
        return isinstance(found, str) and isinstance(operand, str) and compare(found, operand)

    return test


def _number(value: Any) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _same_number(one: Any, other: Any) -> bool:
    numbers = (int, float)
    plain = not isinstance(one, bool) and not isinstance(other, bool)
    return plain and isinstance(one, numbers) and isinstance(other, numbers) and one == other


def _has_items(found: Any, operand: Any) -> bool:
    """`$contains`: whether a list has an item, or all items of a list."""
    wanted = operand if isinstance(operand, list) else [operand]
    return isinstance(found, list) and all(each in found for each in wanted)


EQUAL: Final = "$eq"
CONTAINS: Final = "$contains"

COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    EQUAL: lambda found, operand: bool(found == operand),
    "$ne": lambda found, operand: bool(found != operand),
    "$gt": _compare(lambda left, right: bool(left > right)),
    "$gte": _compare(lambda left, right: bool(left >= right)),
    "$lt": _compare(lambda left, right: bool(left < right)),
    "$lte": _compare(lambda left, right: bool(left <= right)),
}
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {**COMPARISONS, CONTAINS: _has_items}
