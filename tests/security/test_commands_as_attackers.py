"""Commands and isolated agents that attack their own server: what they get in each mode of SECURITY.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from .attacked import KEY, AttackedProject


@pytest.fixture
def project(tmp_path: Path) -> AttackedProject:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        # Other users must find their way to it.
        folder.chmod(folder.stat().st_mode | 0o011)
    return AttackedProject(tmp_path)


def test_with_an_api_key_neither_finds_a_secret_in_a_process_or_a_file_of_the_server(
    project: AttackedProject,
) -> None:
    """Hardening: a process of the same user could still write the database."""
    with project.configure().serve(more={"PERDURE_API_KEY": KEY}):
        got = project.attacked()
    for name in ("command", "agent"):
        assert got[name]["processes"] > 1, got
        assert got[name]["environ"] == got[name]["cmdline"] == got[name]["own_environment"] == []
        assert got[name]["local_secrets"] == 0
        assert got[name]["approved"] == [401]
    assert got["gate"]["status"] == "waiting"


def test_with_the_local_secret_each_is_the_administrator(project: AttackedProject) -> None:
    """What `local_secret = on` costs, and what the other tests would see if nothing protected the server."""
    more = {"PERDURE_API_KEY": KEY, "PERDURE_LOCAL_SECRET": "on"}
    with project.configure().serve(more=more):
        got = project.attacked()
    answers = [*got["command"]["approved"], *got["agent"]["approved"]]
    assert [answer for answer in answers if isinstance(answer, dict)]
    assert got["gate"]["status"] != "waiting"
