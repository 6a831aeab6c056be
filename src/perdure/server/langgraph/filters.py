"""Filters of custom auth on the metadata of objects. Pure.

A filter is the result of a `langgraph_sdk.Auth` handler: `{"owner": "ann"}`, `{"owner": {"$eq": "ann"}}`,
`{"members": {"$contains": "ann"}}` or `{"members": {"$contains": ["ann", "bob"]}}`. All conditions must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.kernel.errors import Forbidden
from perdure.kernel.json_values import CONTAINS, EQUAL, satisfies

OPERATORS = (EQUAL, CONTAINS)


def matches(filter: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata match a filter; a missing key matches nothing."""
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
    """Return the equality conditions: a search applies them, and new objects get them as metadata."""
    conditions: dict[str, Any] = {}
    for key, condition in filter.items():
        if not isinstance(condition, Mapping):
            conditions[key] = condition
        elif EQUAL in condition:
            conditions[key] = condition[EQUAL]
    return conditions


def memberships(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions that a search does not apply."""
    return {
        key: condition
        for key, condition in filter.items()
        if isinstance(condition, Mapping) and any(operator != EQUAL for operator in condition)
    }


def with_owner(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> dict[str, Any]:
    """Build the metadata of a new object, which then match the filter of its creator."""
    return {**(metadata or {}), **equalities(filter)}


def narrow(metadata: Mapping[str, Any] | None, filter: Mapping[str, Any]) -> dict[str, Any] | None:
    """Merge search metadata with a filter. Return None if they contradict each other."""
    wanted, required = dict(metadata or {}), equalities(filter)
    if any(key in wanted and wanted[key] != value for key, value in required.items()):
        return None
    return {**wanted, **required}
