"""`./dev conformance` itself: its output and exit code. The checks need the peer's environment."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import __main__ as conformance

GOOD = {"engine": "sqlite", "check": "it works", "seconds": 0.5, "error": None}
BAD = {"engine": "postgres", "check": "it fails", "seconds": 0.5, "error": "Traceback\nAssertionError"}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [GOOD]

    def check(engines: Sequence[str], python: Path) -> Iterator[dict[str, Any]]:
        yield from (each for each in found if each["engine"] in engines)

    monkeypatch.setattr(conformance, "ensure_environment", lambda: Path("python"))
    monkeypatch.setattr(conformance, "check", check)
    return found


def test_it_ends_well_if_every_check_passed(
    results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance.main([]) == 0
    assert "1 of 1 checks passed" in capsys.readouterr().out


def test_a_failure_is_shown_and_ends_with_code_1(
    results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    results.append(BAD)
    assert conformance.main([]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert "    AssertionError" in output
    assert conformance.main(["--engine", "sqlite"]) == 0


def test_no_check_at_all_is_a_failure(results: list[dict[str, Any]]) -> None:
    results.clear()
    assert conformance.main([]) == 1


def test_the_results_come_as_json(results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    results.append(BAD)
    assert conformance.main(["--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    told = [{**each, "client": title} for title in answer["clients"] for each in (GOOD, BAD)]
    assert (answer["ok"], answer["checks"]) == (False, told)
