"""`perdure init`: a project that runs, from the command to the first answer."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import Server, run_here, settings

from perdure.cli.hosting.init import GRAPH, NATIVE


def test_a_project_of_functions_answers(tmp_path: Path) -> None:
    written = run_here(tmp_path, "init", "mine")
    assert (written.returncode, written.stderr) == (0, "")
    folder = tmp_path / "mine"
    assert {path.name for path in folder.iterdir()} == set(NATIVE)
    *_, cd, start, ask = written.stdout.splitlines()
    assert (cd.strip(), start.strip()) == ("cd mine", "perdure dev")
    with Server(folder, "dev", "--grpc-port", "0") as server:
        answered = server.run(*shlex.split(ask, comments=True)[1:])
    assert json.loads(answered.stdout) == {"greeting": "Hello, Ada!", "met": ["Ada"]}


def test_a_project_with_a_graph_answers(tmp_path: Path) -> None:
    said = json.loads(run_here(tmp_path, "init", "--langgraph", "--json").stdout)
    assert said == {
        "folder": str(tmp_path),
        "files": sorted(GRAPH),
        "commands": ["perdure dev", "python ask.py Hello            # in another terminal"],
    }
    with Server(tmp_path, "dev", "--grpc-port", "0") as server:
        asked = subprocess.run(
            [sys.executable, "ask.py", "Hello", "there"],
            cwd=tmp_path,
            env=settings(tmp_path, {"PERDURE_URL": server.url}),
            capture_output=True,
            text=True,
            check=True,
        )
    assert asked.stdout == "You said: Hello there\n"


@pytest.mark.parametrize("name", [".env", "agent.py"])
def test_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    ended = run_here(tmp_path, "init", "--langgraph")
    assert ended.returncode == 1
    assert f"{name} in {tmp_path} would be overwritten, so nothing was written" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run_here(tmp_path, "init", "file/inner")
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "cannot write to" in ended.stderr
