"""Commands and isolated agents that attack their own server: what they get in each mode of SECURITY.md."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import COMMAND, settings

from .attacked import KEY, AttackedProject
from .other_user import UID, as_other_user, give_away, is_root, shared_python, without_namespaces

NOTHING: dict[str, Any] = {
    "processes": 0,
    "environ": [],
    "cmdline": [],
    "own_environment": [],
    "local_secrets": 0,
    "reads": [],
    "reads_home": False,
    "reads_project": True,
    "reads_shadow": False,
    "writes_here": True,
    "writes_core_pattern": False,
}
"""What an attacker gets in the sandbox: the project without its private files, and the workspace."""
SANDBOXED = {"sandbox": "bubblewrap"}


@pytest.fixture
def project() -> Iterator[AttackedProject]:
    """A project in a folder that other users can enter, as they cannot enter those of pytest."""
    with tempfile.TemporaryDirectory(prefix="perdure-attacked-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        yield AttackedProject(place)


def got_in(project: AttackedProject, result: dict[str, Any]) -> dict[str, Any]:
    """What is compared with NOTHING; the error of an attacker that was not executed, if it was not."""
    assert not project.is_changed
    return {name: result.get(name, result) for name in NOTHING}


# --- without a sandbox -------------------------------------------------------------------------------------


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
        assert "perdure.db" in got[name]["reads"]
    assert got["gate"]["status"] == "waiting"


def test_with_the_local_secret_each_is_the_administrator(project: AttackedProject) -> None:
    """What `local_secret = on` costs, and what the other tests would see if nothing protected the server."""
    more = {"PERDURE_API_KEY": KEY, "PERDURE_LOCAL_SECRET": "on"}
    with project.configure().serve(more=more):
        got = project.attacked()
    answers = [*got["command"]["approved"], *got["agent"]["approved"]]
    assert [answer for answer in answers if isinstance(answer, dict)]
    assert got["gate"]["status"] != "waiting"


# --- in the sandbox ----------------------------------------------------------------------------------------


def test_in_the_sandbox_neither_gets_anything_of_the_server(project: AttackedProject) -> None:
    project.configure(agent='sandbox = "bubblewrap"', phase="sandbox: bubblewrap,")
    with project.serve(more={"PERDURE_API_KEY_FILE": str(project.folder / "keys" / "api.key")}):
        got = project.attacked()
    for name in ("command", "agent"):
        assert got_in(project, got[name]) == NOTHING
        assert got[name]["reaches_server"] is False
        assert not isinstance(got[name]["approved"][0], dict)
        assert (got[name]["uid"] != 0) or not is_root()
    assert got["gate"]["status"] == "waiting"


def test_with_a_network_they_reach_the_server_and_need_its_key(project: AttackedProject) -> None:
    project.configure(
        settings='command_sandbox = "bubblewrap"', agent="network = true", phase="network: true,"
    )
    with project.serve(more={"PERDURE_API_KEY_FILE": str(project.folder / "keys" / "api.key")}):
        got = project.attacked()
    for name in ("command", "agent"):
        assert got_in(project, got[name]) == NOTHING
        assert got[name]["reaches_server"] is True
        assert got[name]["approved"] == [401]
    assert got["gate"]["status"] == "waiting"


def test_a_server_that_is_not_root_has_the_same_sandbox(project: AttackedProject) -> None:
    project.configure(settings='command_sandbox = "bubblewrap"')
    if is_root():
        give_away(project.folder.parent)
    more = {"PERDURE_API_KEY_FILE": str(project.folder / "keys" / "api.key")}
    with project.serve(more=more, popen=as_other_user):
        got = project.attacked()
    for name in ("command", "agent"):
        assert got_in(project, got[name]) == NOTHING
        assert got[name]["uid"] == (UID if is_root() else got["command"]["uid"])


def test_a_phase_that_requires_a_sandbox_gets_it_from_the_settings(project: AttackedProject) -> None:
    requires = "requires_sandbox: bubblewrap,"
    project.configure(settings='command_sandbox = "bubblewrap"', phase=requires, agent_phase=requires)
    with project.serve(more={"PERDURE_API_KEY_FILE": str(project.folder / "keys" / "api.key")}):
        got = project.attacked()
    assert got_in(project, got["command"]) == got_in(project, got["agent"]) == NOTHING


def test_an_agent_inside_its_worker_does_not_execute_a_phase_with_a_sandbox(project: AttackedProject) -> None:
    project.configure(agent_phase="sandbox: bubblewrap,")
    file = project.folder / "perdure.toml"
    file.write_text(file.read_text().replace("isolated = true", "isolated = false"))
    with project.serve(more={"PERDURE_API_KEY": KEY}):
        got = project.attacked()
    assert got["agent"]["status"] == "failed"
    assert "agent 'spy' runs inside its worker: make it isolated, or a command" in got["agent"]["error"]


# --- refusals ----------------------------------------------------------------------------------------------


def agents_of(project: AttackedProject, command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    environment = settings(project.folder, project.environment(more))
    return subprocess.run(
        command, cwd=project.folder, env=environment, capture_output=True, text=True, check=False
    )


def test_where_the_kernel_forbids_it_the_agent_is_refused_with_a_sentence(project: AttackedProject) -> None:
    project.configure(agent='sandbox = "bubblewrap"')
    listed = agents_of(project, without_namespaces([*COMMAND, "agents", "--json"]))
    assert listed.returncode == 1
    (failure,) = json.loads(listed.stdout)["failures"]
    assert failure["agent"] == "spy"
    assert "the sandbox bubblewrap does not work here: bwrap: " in failure["message"]
    assert "containers and some systems forbid the namespaces" in failure["message"]
    allowed = agents_of(project, [*COMMAND, "agents", "--json"])
    assert (allowed.returncode, json.loads(allowed.stdout)["failures"]) == (0, [])


def test_where_it_is_not_installed_a_start_that_needs_it_is_refused(project: AttackedProject) -> None:
    project.configure(settings='command_sandbox = "bubblewrap"')
    refused = agents_of(project, [*COMMAND, "serve", "--port", "0"], PATH="/nowhere")
    assert refused.returncode == 1
    assert "there is no program bwrap; install the package bubblewrap" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_where_the_kernel_forbids_it_a_phase_that_asks_for_it_fails(project: AttackedProject) -> None:
    project.configure(phase="sandbox: bubblewrap,")

    def popen(command: list[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(without_namespaces(command), **options)

    with project.serve(more={"PERDURE_API_KEY": KEY}, popen=popen):
        got = project.attacked()
    assert got["command"]["status"] == "failed"
    assert "the sandbox bubblewrap does not work here" in got["command"]["error"]
    assert got["agent"]["reads_project"]


def test_an_agent_inside_its_worker_cannot_have_a_sandbox_or_a_user(project: AttackedProject) -> None:
    for setting in ('sandbox = "bubblewrap"', "uid = 1000"):
        project.configure(agent=setting)
        file = project.folder / "perdure.toml"
        file.write_text(file.read_text().replace("isolated = true", "isolated = false"))
        listed = agents_of(project, [*COMMAND, "agents", "--json"])
        (failure,) = json.loads(listed.stdout)["failures"]
        assert "add isolated = true, or use a command" in failure["message"]


# --- another user ------------------------------------------------------------------------------------------


def test_another_user_reads_nothing_that_is_roots_alone(project: AttackedProject) -> None:
    """On a server that is not root, the start is refused, which the next test shows."""
    assert is_root(), "run this test as root"
    project.configure(settings=f"command_uid = {UID}", python=shared_python())
    private = [project.folder / name for name in ("perdure.toml", ".env", "deep/.env", "keys/api.key")]
    for place in (*private, project.home):
        place.chmod(place.stat().st_mode & 0o700)
    with project.serve(more={"PERDURE_API_KEY": KEY}):
        got = project.attacked()
        written = project.folder / "state" / "workspaces"
        files = [(place.stat().st_uid, place.name) for place in written.rglob("written-by-*")]
    command = got["command"]
    assert command["uid"] == UID
    assert command["processes"] > 1
    assert command["environ"] == command["cmdline"] == command["own_environment"] == []
    assert command["local_secrets"] == 0
    assert command["approved"] == [401]
    assert command["reads_contents"] == []
    allowed = ("reads_home", "reads_shadow", "writes_project", "writes_core_pattern", "writes_here")
    assert [name for name in allowed if command[name]] == ["writes_here"]
    assert files == [(UID, "written-by-the-attacker")]
    assert got["gate"]["status"] == "waiting"


@pytest.mark.parametrize(
    ("uid", "sentence"),
    [
        ("0", "has the rights of root"),
        ("no-such-user", "is not a user of this machine"),
        (str(1 << 40), "not a user"),
    ],
)
def test_a_user_that_is_none_or_root_is_refused(uid: str, sentence: str, project: AttackedProject) -> None:
    project.configure(settings=f'command_uid = "{uid}"')
    refused = agents_of(project, [*COMMAND, "serve", "--port", "0"])
    assert refused.returncode == 1
    assert (sentence if is_root() else "needs a server that runs as root") in refused.stderr


def test_a_user_needs_a_server_that_runs_as_root(project: AttackedProject) -> None:
    project.configure(settings="command_uid = 1000")
    if is_root():
        give_away(project.folder.parent)
    environment = settings(project.folder, project.environment({}))
    process = as_other_user(
        [*COMMAND, "serve", "--port", "0"],
        cwd=project.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "uid 1000 needs a server that runs as root" in errors
