"""Workspaces stay where they belong, and commands get nothing that is not theirs (promises 9, 10 and 11)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.agents.context import AgentError
from perdure.agents.processes import environment
from perdure.kernel.config import secret_variables
from perdure.worker.built_in import HttpRules, built_in_agents
from perdure.worker.phase import Workspaces

HOSTILE = ("", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0b", "%2e%2e", "a b", "ü", "x" * 129)


@pytest.mark.parametrize("run_id", HOSTILE)
def test_an_id_that_leads_elsewhere_is_refused(run_id: str, tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path / "workspaces")
    for way in (workspaces.open, workspaces.path):
        with pytest.raises(AgentError, match="cannot be the name of a directory"):
            way(run_id)
    assert not (tmp_path / "workspaces").exists()


def test_a_workspace_is_the_owners_alone_and_found_again(tmp_path: Path) -> None:
    root = tmp_path / "state" / "workspaces"
    first = Workspaces(root).open("run-1")
    assert first == Workspaces(root).open("run-1") == str(root / "run-1")
    for each in (root, root / "run-1"):
        assert oct(each.stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize("target", ["outside", "workspaces/other", "missing"])
def test_a_link_in_the_place_of_a_workspace_is_refused(target: str, tmp_path: Path) -> None:
    root = tmp_path / "workspaces"
    (root / "other").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "run-1").symlink_to(tmp_path / target)
    with pytest.raises(AgentError, match="workspace"):
        Workspaces(root).open("run-1")
    assert list((tmp_path / "outside").iterdir()) == []


def test_commands_do_not_get_the_secrets_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in secret_variables():
        monkeypatch.setenv(name, "secret")
    given = environment({"PERDURE_OUT_PLAN": "x"})
    assert not secret_variables() & given.keys()
    assert given["PERDURE_OUT_PLAN"] == "x"
    assert given["PATH"] == os.environ["PATH"]


def test_built_in_agents_have_names_that_nobody_can_take() -> None:
    agents = built_in_agents({}, HttpRules())
    assert sorted(agents) == [
        "perdure.callable",
        "perdure.check",
        "perdure.command",
        "perdure.http",
        "perdure.script",
    ]
