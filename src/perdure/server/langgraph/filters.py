"""Filters of custom auth on the metadata of objects. Pure.

A filter is what a handler of `langgraph_sdk.Auth` returns: `{"owner": "ann"}`, `{"owner": {"$eq": "ann"}}`,
`{"members": {"$contains": "ann"}}` or `{"members": {"$contains": ["ann", "bob"]}}`. All conditions must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.kernel.errors import Forbidden
from perdure.kernel.match import CONTAINS, EQUAL, satisfies

OPERATORS = (EQUAL, CONTAINS)


def matches(filter: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether metadata match a filter; a missing key matches nothing."""
    return all(key in metadata and _holds(condition, metadata[key]) for key, condition in filter.items())


def _holds(condition: Any, value: Any) -> bool:
    tests = condition if isinstance(condition, Mapping) else {EQUAL: condition}
    unknown = [name for name in tests if name not in OPERATORS]
    if unknown:
        raise Forbidden(
            f"the filter has an unknown operator {unknown[0]!r}; it may have {' and '.join(OPERATORS)}"
        )
    return satisfies(value, tests)


def equalities(filter: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions that a value is equal: a search takes them, and new objects get them as metadata."""
    found: dict[str, Any] = {}
    for key, condition in filter.items():
        if not isinstance(condition, Mapping):
            found[key] = condition
        elif EQUAL in condition:
            found[key] = condition[EQUAL]
    return found


def memberships(filter: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions that a search does not take."""
    return {
        key: condition
        for key, condition in filter.items()
        if isinstance(condition, Mapping) and any(operator != EQUAL for operator in condition)
    }


def with_owner(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a new object, which then matches the filter of its creator."""
    return {**(metadata or {}), **equalities(filter)}


def narrow(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> dict[str, Any] | None:
    """The metadata to search for under a filter; None if the search and the filter contradict each other."""
    wanted, required = dict(metadata or {}), equalities(filter)
    if any(key in wanted and wanted[key] != value for key, value in required.items()):
        return None
    return {**wanted, **required}
