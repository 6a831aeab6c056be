"""The fixtures that programs use in their own tests, in a run of pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = """
import pytest
from perdure import Agents

pytest_plugins = ["perdure.testing.plugin"]
agents = Agents()


@agents.agent
async def greet(ctx, input):
    return {"greeting": f"hello {input}"}


@pytest.fixture
def perdure_agents():
    return agents
"""
TESTS = """
import json
from urllib.request import urlopen


def test_a_run(perdure):
    assert perdure.run("greet", "Ada").values == {"greeting": "hello Ada"}


def test_each_test_has_its_own_database(perdure):
    with urlopen(f"{perdure.url}/api/v1/runs") as answer:
        assert json.load(answer)["items"] == []
"""


def test_a_program_tests_its_agents_with_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_program.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout
