"""What the metadata of an object must hold for a caller to see it. Pure.

A filter is what a handler of `langgraph_sdk.Auth` answers: `{"owner": "ann"}`, `{"owner": {"$eq": "ann"}}`,
`{"members": {"$contains": "ann"}}` or `{"members": {"$contains": ["ann", "bob"]}}`. All of it must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.kernel.errors import Forbidden
from perdure.kernel.match import CONTAINS, EQUAL, satisfies

OPERATORS = (EQUAL, CONTAINS)


def matches(needed: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether metadata fit a filter; a key that is missing fits nothing."""
    return all(key in metadata and _fits(test, metadata[key]) for key, test in needed.items())


def _fits(test: Any, value: Any) -> bool:
    tests = test if isinstance(test, Mapping) else {EQUAL: test}
    unknown = [name for name in tests if name not in OPERATORS]
    if unknown:
        raise Forbidden(
            f"the filter has an unknown operator {unknown[0]!r}; it may have {' and '.join(OPERATORS)}"
        )
    return satisfies(value, tests)


def equalities(needed: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a filter that asks for the same value: what a search can be given, or a new object."""
    found: dict[str, Any] = {}
    for key, test in needed.items():
        if not isinstance(test, Mapping):
            found[key] = test
        elif EQUAL in test:
            found[key] = test[EQUAL]
    return found


def memberships(needed: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a filter that a search cannot be given."""
    return {
        key: test
        for key, test in needed.items()
        if isinstance(test, Mapping) and any(operator != EQUAL for operator in test)
    }


def stamped(metadata: Mapping[str, Any] | None, needed: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a new object, by which its maker finds it again, and nobody else."""
    return {**(metadata or {}), **equalities(needed)}


def narrowed(metadata: Mapping[str, Any] | None, needed: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a search asks for, and the filter with it; None if both cannot hold."""
    asked, must = dict(metadata or {}), equalities(needed)
    if any(key in asked and asked[key] != value for key, value in must.items()):
        return None
    return {**asked, **must}
