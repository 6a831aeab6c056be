"""Filters of custom auth: matches, and their effect on new objects and on searches."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.kernel.errors import Forbidden
from perdure.server.langgraph.routing import equalities, matches, memberships, narrow, with_owner


@pytest.mark.parametrize(
    ("needed", "metadata", "fits"),
    [
        ({}, {}, True),
        ({"owner": "ann"}, {"owner": "ann", "x": 1}, True),
        ({"owner": "ann"}, {"owner": "bob"}, False),
        ({"owner": "ann"}, {}, False),
        ({"owner": None}, {}, False),
        ({"owner": {"$eq": "ann"}}, {"owner": "ann"}, True),
        ({"owner": {"$eq": "ann"}}, {"owner": {"$eq": "ann"}}, False),
        ({"members": {"$contains": "ann"}}, {"members": ["bob", "ann"]}, True),
        ({"members": {"$contains": "ann"}}, {"members": "annabel"}, False),
        ({"members": {"$contains": ["ann", "bob"]}}, {"members": ["bob", "ann", "cat"]}, True),
        ({"members": {"$contains": ["ann", "dan"]}}, {"members": ["bob", "ann"]}, False),
        ({"owner": "ann", "members": {"$contains": "bob"}}, {"owner": "ann", "members": ["bob"]}, True),
        ({"owner": "ann", "members": {"$contains": "bob"}}, {"owner": "ann", "members": []}, False),
    ],
)
def test_what_fits(needed: dict[str, Any], metadata: dict[str, Any], fits: bool) -> None:
    assert matches(needed, metadata) is fits


def test_an_operator_that_is_not_known_lets_nothing_through() -> None:
    with pytest.raises(Forbidden):
        matches({"age": {"$gt": 5}}, {"age": 6})


def test_the_parts_of_a_filter() -> None:
    needed = {"owner": "ann", "team": {"$eq": "blue"}, "members": {"$contains": "ann"}}
    assert equalities(needed) == {"owner": "ann", "team": "blue"}
    assert memberships(needed) == {"members": {"$contains": "ann"}}


def test_a_new_object_is_its_makers_whatever_they_say() -> None:
    assert with_owner({"owner": "bob", "x": 1}, {"owner": "ann"}) == {"owner": "ann", "x": 1}
    assert with_owner(None, {"members": {"$contains": "ann"}}) == {}


def test_a_search_asks_for_both_or_for_nothing() -> None:
    assert narrow({"x": 1}, {"owner": "ann"}) == {"x": 1, "owner": "ann"}
    assert narrow({"owner": "ann"}, {"owner": {"$eq": "ann"}}) == {"owner": "ann"}
    assert narrow({"owner": "bob"}, {"owner": "ann"}) is None
    assert narrow(None, {}) == {}
