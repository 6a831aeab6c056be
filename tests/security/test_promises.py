"""The page of security promises names a test for each of them, and the tests exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "security.md"
ROW = re.compile(r"^\| (?P<promise>.+?) \|(?P<tests>.*)\|$", re.MULTILINE)
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HEADING = "promise"


def promises() -> dict[str, list[tuple[str, str]]]:
    """The tests of each promise, as a file and the name of a function."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {promise: NODE.findall(tests) for promise, tests in rows if promise != HEADING}


@cache
def functions_of(path: str) -> frozenset[str]:
    """The tests that pytest finds in a file."""
    file = ROOT / path
    if not file.exists():
        return frozenset()
    found = ast.parse(file.read_text(encoding="utf-8")).body
    functions = (each for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name for each in functions if each.name.startswith("test_"))


def test_each_promise_has_a_test() -> None:
    assert len(promises()) > 30
    assert [promise for promise, tests in promises().items() if not tests] == []


def test_each_test_of_a_promise_exists() -> None:
    named = [node for tests in promises().values() for node in tests]
    assert [f"{path}::{name}" for path, name in named if name not in functions_of(path)] == []


def test_each_row_names_nothing_but_tests() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    rest = {promise: NODE.sub("", tests).strip() for promise, tests in rows if promise != HEADING}
    assert {promise: text for promise, text in rest.items() if text} == {}


def test_the_page_is_in_the_contents() -> None:
    assert "](security.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "](docs/security.md)" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
