"""Checks of callers' input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perdure.kernel import checks
from perdure.kernel.errors import BadQuery, InvalidInput

CHOICES = ("idle", "busy", "unknown")


def bounds(value: object) -> object:
    return checks.check_number(value, "depth", 1, 9)


def choice(value: object) -> object:
    return checks.check_choice(value, CHOICES, "status")


def text(value: object) -> object:
    return checks.check_text(value, "key", max_length=4)


def identifier(value: object) -> object:
    return checks.check_id(value, "run_id")


def name(value: object) -> object:
    return checks.check_name(value, "name")


def flag(value: object) -> object:
    return checks.check_flag(value, "enabled")


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (text, ""),
        (text, "ää"),
        (identifier, "r" * 255),
        (name, " a"),
        (choice, "busy"),
        (bounds, 1),
        (bounds, 9),
        (flag, False),
        (checks.check_timeout, None),
        (checks.check_timeout, -1.5),
        (checks.check_timeout, math.inf),
    ],
)
def test_what_is_right_is_given_back(check: Callable[[object], object], value: object) -> None:
    assert check(value) == value


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (text, 1, "key must be a string, not int"),
        (text, "a\0", "key must not contain NUL characters"),
        (text, "äää", "key must be at most 4 bytes long"),
        (text, "\ud800", "key must not contain lone surrogates"),
        (identifier, "r" * 256, "run_id must be at most 255 bytes long"),
        (name, " ", "name must not be empty"),
        (choice, "bussy", "status must be one of idle, busy or unknown, not 'bussy'"),
        (choice, ["idle"], "status must be one of idle, busy or unknown, not ['idle']"),
        (choice, None, "status must be one of idle, busy or unknown, not None"),
        (bounds, 0, "depth is 0; it must be a whole number from 1 to 9"),
        (bounds, True, "depth is True; it must be a whole number from 1 to 9"),
        (bounds, 2.0, "depth is 2.0; it must be a whole number from 1 to 9"),
        (flag, 1, "enabled is 1; it must be true or false"),
        (checks.check_timeout, math.nan, "timeout must be a number of seconds, not nan"),
        (checks.check_timeout, True, "timeout must be a number of seconds, not True"),
    ],
)
def test_what_is_wrong_is_refused(check: Callable[[object], object], value: object, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(value)
    assert (refused.value.message, refused.value.code) == (message, "invalid_input")


def test_optional_values_may_be_none() -> None:
    assert checks.optional_text(None, "a") is None
    assert checks.optional_id(None, "a") is None
    assert checks.optional_ids(None, "a") is None
    assert checks.optional_choice(None, CHOICES, "a") is None
    assert checks.optional_ids(["a", "b"], "ids") == checks.check_ids(["a", "b"], "ids") == ["a", "b"]
    with pytest.raises(InvalidInput):
        checks.optional_choice("", CHOICES, "status")


@pytest.mark.parametrize("values", ["idle", None, 1])
def test_a_list_is_no_string(values: Any) -> None:
    for check in (checks.check_texts, lambda values, what: checks.check_choices(values, CHOICES, what)):
        with pytest.raises(BadQuery):
            check(values, "status")


def test_lists_are_checked_item_by_item() -> None:
    assert checks.check_texts(("a", "b"), "names") == ["a", "b"]
    assert checks.check_choices(["idle", "busy"], CHOICES, "status") == ["idle", "busy"]
    with pytest.raises(InvalidInput):
        checks.check_choices(["idle", "x"], CHOICES, "status")


def test_an_object_has_strings_as_keys() -> None:
    assert checks.check_object({"a": 1}, "metadata") == {"a": 1}
    bad: tuple[Any, ...] = ([], None, {1: 2}, "a")
    for value in bad:
        with pytest.raises(InvalidInput, match="metadata must be an object"):
            checks.check_object(value, "metadata")


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1000, 0), (100, 2**53)])
def test_a_page_of_the_native_api(limit: int, offset: int) -> None:
    checks.check_page(limit, offset)
    assert msgspec.convert(limit, checks.Limit) == limit
    assert msgspec.convert(offset, checks.Offset) == offset


@pytest.mark.parametrize(
    ("limit", "offset"), [(-1, 0), (1001, 0), (True, 0), (1.0, 0), (1, -1), (1, 2**53 + 1)]
)
def test_a_page_that_the_native_api_refuses(limit: Any, offset: Any) -> None:
    with pytest.raises(InvalidInput):
        checks.check_page(limit, offset)


def test_the_annotated_types_have_the_same_bounds() -> None:
    refused: list[tuple[object, Any]] = [
        (-1, checks.Limit),
        (1001, checks.Limit),
        (-1, checks.Offset),
        (2**53 + 1, checks.Offset),
        ("", checks.Id),
        ("r" * 256, checks.Id),
    ]
    for value, kind in refused:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)
