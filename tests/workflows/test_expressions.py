"""Conditions: which ones hold, and which ones are refused when a file is loaded."""

from __future__ import annotations

import pytest

from perdure.errors import InvalidInput
from perdure.workflows.expressions import parse, truth

SCOPE = {
    "output": "All READY now",
    "status": "ok",
    "count": 3,
    "ratio": 0.5,
    "text_number": "5",
    "yes": "yes",
    "no": False,
    "empty": "",
    "nothing": None,
    "labels": ["bug", "p1", 7],
    "scratch": {"fix-markers": {"class": "flaky"}, "list": [{"x": 1}], "done": True},
}

HOLDS = """
    output.contains('READY')
    output.contains("READY")
    count.contains(3)
    labels.contains('bug')
    labels.contains('7')
    status == 'ok'
    status != 'bad'
    scratch.fix-markers.class == 'flaky'
    scratch.list.0.x == 1
    scratch.done == true
    scratch.done
    yes == true
    no == false
    empty == false
    empty == ''
    count == 3
    count == '3'
    text_number == 5
    count > 2
    count >= 3 and count <= 3
    ratio < 1
    text_number > 4.5
    -1 < 0
    not no
    !no && status == 'ok'
    no or status == 'ok'
    no || (status == 'ok' and not empty)
    not (no and missing)
    nothing == null
    'it\\'s' == "it's"
"""
HOLDS_NOT = """
    output.contains('ready')
    missing == 'x'
    missing != 'x'
    missing.deep.contains('x')
    missing
    missing < 1
    status < 'z'
    no
    empty
    nothing
    status
    scratch.__class__ == 'x'
    output.upper == 'x'
    labels.9 == 'x'
    labels.contains('b')
    scratch.contains('done')
    count == 4
    true == false
"""
WRONG = {
    "": "empty",
    "   ": "empty",
    "a ==": "too early",
    "== 1": "not expected",
    "a b": "not expected",
    "(a": "')' is expected",
    "a)": "not expected",
    "a.contains('x'": "')' is expected",
    "a.upper()": "there is only contains",
    "__import__('os')": "there is only contains",
    "a == 'x": "not understood",
    "a = 1": "not understood",
    "a; b": "not understood",
    "lambda: 1": "not understood",
    "1 + 1": "not understood",
    "[1]": "not understood",
    "(" * 60 + "a" + ")" * 60: "nested deeper",
    "a" * 5000: "at most",
}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def test_what_holds() -> None:
    assert [text for text in lines(HOLDS) if not parse(text).holds(SCOPE)] == []


def test_what_does_not_hold() -> None:
    assert [text for text in lines(HOLDS_NOT) if parse(text).holds(SCOPE)] == []


def test_a_mistake_is_found_when_the_condition_is_parsed() -> None:
    for text, reason in WRONG.items():
        with pytest.raises(InvalidInput, match=reason.replace(")", r"\)")):
            parse(text)


def test_a_mistake_names_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"'= 1' is not understood at character 3 of the condition"):
        parse("a = 1")


def test_truth_of_values() -> None:
    true: list[object] = [True, 1, -1, 0.1, "true", "TRUE", "1", "yes", [0], {"a": 1}]
    assert all(map(truth, true))
    false: list[object] = [False, 0, 0.0, "", "no", "0", "anything", None, [], {}]
    assert not any(map(truth, false))
