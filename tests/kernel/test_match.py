"""Matching of JSON values in memory, and paths into them."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.kernel.json_values import contains, find, has, matches, parse, satisfies


@pytest.mark.parametrize(
    ("value", "wanted", "expected"),
    [
        ({"a": 1}, None, True),
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": None}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, False),
    ],
)
def test_equal_keys(value: dict[str, Any], wanted: dict[str, Any] | None, expected: bool) -> None:
    assert has(value, wanted) is expected


@pytest.mark.parametrize(
    ("whole", "part", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ([1, [2, 3]], [[3]], True),
        ([1, 2], [2, 1, 1], True),
        ({"a": True}, {"a": 1}, False),
        (1, 1.0, True),
        ("1", 1, False),
        ([], {}, False),
    ],
)
def test_containment(whole: Any, part: Any, expected: bool) -> None:
    assert contains(whole, part) is expected


@pytest.mark.parametrize(
    ("value", "conditions", "expected"),
    [
        ({}, {"a": None}, True),
        ({"a": 5}, {"a": {"$gt": 1, "$lte": 5}}, True),
        ({"a": "10"}, {"a": {"$gt": 9}}, True),
        ({"a": "b"}, {"a": {"$gte": "a"}}, True),
        ({"a": None}, {"a": {"$lt": 1}}, False),
        ({"a": 1}, {"a": {"$ne": 1}}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": {"$x": 1}}, {"a": {"$eq": {"$x": 1}}}, True),
    ],
)
def test_filters(value: dict[str, Any], conditions: dict[str, Any], expected: bool) -> None:
    assert matches(value, conditions) is expected


@pytest.mark.parametrize(
    ("value", "operand", "expected"),
    [(["a", "b"], "a", True), (["a", "b"], ["b", "a"], True), (["a"], ["a", "b"], False), ("ab", "a", False)],
)
def test_a_list_contains(value: Any, operand: Any, expected: bool) -> None:
    assert satisfies(value, {"$contains": operand}) is expected


BOOK: dict[str, Any] = {
    "title": "Emma",
    "authors": [{"name": "Jane"}, {"name": "Anna"}, {"pen": 1}],
    "more": {"year": 1815, "place": {"city": "Hampshire"}},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", [BOOK]),
        ("title", ["Emma"]),
        ("titles", []),
        ("title.name", []),
        ("authors[0].name", ["Jane"]),
        ("authors[-1]", [{"pen": 1}]),
        ("authors[3]", []),
        ("authors[x]", []),
        ("authors[*].name", ["Jane", "Anna"]),
        ("authors.*.name", ["Jane", "Anna"]),
        ("more.*", [1815, {"city": "Hampshire"}]),
        ("{title, more.place.city, none}", ["Emma", "Hampshire"]),
        ("more.{year}.ignored", [1815]),
    ],
)
def test_paths(path: str, expected: list[Any]) -> None:
    assert find(BOOK, parse(path)) == expected
