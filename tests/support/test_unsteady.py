"""A test that fails once and passes by itself is named and does not fail the run; a second failure does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.unsteady import HEADING, MOST

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.support import unsteady

pytest_addoption = unsteady.add_options
pytest_configure = unsteady.register
"""
TESTS = """
from pathlib import Path

import pytest

SEEN = Path(__file__).with_name("seen")


def fail_once(name):
    first = not (SEEN / name).exists()
    SEEN.mkdir(exist_ok=True)
    (SEEN / name).touch()
    assert not first, f"the first time of {name}"


def test_steady():
    pass


def test_once():
    fail_once("call")


@pytest.fixture
def ended():
    yield
    fail_once("teardown")


@pytest.mark.parametrize("word", ["a b", "[x]"])
def test_whose_end_fails_once(ended, word):
    pass
"""
ALWAYS = """

def test_always():
    assert 1 == 2, "as ever"
"""
MANY = """

@pytest.mark.parametrize("number", range(11))
def test_many(number):
    fail_once(str(number))
"""


def run(folder: Path, tests: str, *options: str) -> tuple[int, list[str]]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines()


def test_what_passes_alone_is_named_and_the_run_succeeds(tmp_path: Path) -> None:
    code, lines = run(tmp_path, TESTS, "-n", "2", "--rerun-alone")
    output = "\n".join(lines)
    assert code == 0, output
    assert "4 passed" in lines[-1]
    assert "failed" not in lines[-1]
    assert "error" not in lines[-1]
    unsteady = output.partition(HEADING)[2]
    assert "test_some.py::test_once: AssertionError: the first time of call" in unsteady
    assert "test_some.py::test_whose_end_fails_once[" in unsteady
    file = tmp_path / ".pytest_cache" / "unsteady.txt"
    assert str(file) in unsteady
    assert "def fail_once" in file.read_text()
    assert run(tmp_path, TESTS, "--rerun-alone")[0] == 0
    assert not file.exists(), "it is of the last run"


def test_what_fails_again_fails_the_run_with_its_output(tmp_path: Path) -> None:
    code, lines = run(tmp_path, TESTS + ALWAYS, "--rerun-alone")
    output = "\n".join(lines)
    assert code == 1, output
    assert "1 failed, 4 passed" in lines[-1]
    assert "as ever" in output.partition("failed again when run alone")[2].partition(HEADING)[0]
    assert "test_always" not in output.partition(HEADING)[2].partition("mend them")[0]


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    code, lines = run(tmp_path, TESTS + MANY, "--rerun-alone")
    output = "\n".join(lines)
    assert code == 1, output
    assert "too many to run them again" in output
    assert HEADING not in output
    failed = int(lines[-1].split(" failed")[0].split()[-1])
    assert failed > MOST


def test_without_the_option_nothing_is_run_again(tmp_path: Path) -> None:
    code, lines = run(tmp_path, TESTS)
    assert code == 1
    assert HEADING not in "\n".join(lines)
