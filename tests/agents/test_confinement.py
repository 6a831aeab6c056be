"""The sandbox of commands: what is mounted, how it ends, and what keeps it from starting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.agents.commands import Command, isolated
from perdure.agents.confinement import (
    MAX_ENTRIES,
    Confinement,
    PrivatePaths,
    confine,
    find_user,
    list_private_paths,
)
from perdure.agents.context import AgentError
from perdure.agents.processes import NOT_STARTED, run_captured
from perdure.kernel.config import load_settings
from perdure.kernel.errors import InvalidInput

PATIENCE = 60.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "work").mkdir()
    (place / "work").chmod(0o777)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(place)
    return place


def sandboxed(folder: Path, **more: Any) -> Confinement:
    private = list_private_paths(load_settings({"database_url": f"sqlite:///{folder}/data/perdure.db"}))
    place = str(folder / "work")
    given = {"project": str(folder), "private": private, "writable": (place,), **more}
    return Confinement(sandbox=True, **given)


def started(project: Path, *argv: str, **more: Any) -> subprocess.Popen[str]:
    command = confine(argv, str(project / "work"), dict(os.environ), sandboxed(project, **more))
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command.argv, env=command.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def said_by(project: Path, *argv: str, **more: Any) -> str:
    with started(project, *argv, **more) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


def is_running(mark: str) -> bool:
    """Whether there is a process `sleep MARK`."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                return True
        except OSError:
            continue
    return False


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- what is seen -----------------------------------------------------------------------------------------


def test_what_is_private_stays_away_wherever_it_stands(project: Path) -> None:
    (project / "data").mkdir()
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    private = ["perdure.toml", ".env", ".env.local", "a/.env", "a/b/.env.test", "a/b/perdure.toml"]
    private += ["data/perdure.db", "data/perdure.db-wal"]
    for name in private:
        (project / name).write_text("# private")
    shown = ["agent.py", "a/.environment", "a/b/code.py", "data/other.csv", "perdure.toml.example"]
    for name in shown:
        (project / name).write_text("shown")
    (project / "link").symlink_to(project / ".env")
    (project / "outside").symlink_to(project.parent / "home")
    seen = said_by(project, "find", str(project), "-type", "f").split()
    assert sorted(seen) == sorted(str(project / name) for name in shown)
    assert said_by(project, "sh", "-c", f"cat {project}/link {project}/outside/* || true") == ""


def test_a_private_file_that_is_made_later_is_not_seen(project: Path) -> None:
    """Such as the write-ahead log of a database that is opened while a command runs."""
    (project / "data").mkdir()
    (project / "data" / "perdure.db").write_text("private")
    script = f"echo ready; read line; ls -a {project}/data; ls {project}"
    with started(project, "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for place in (
            project / "data" / "perdure.db-wal",
            project / "data" / "perdure.db.1",
            project / ".env",
        ):
            place.write_text("private")
        output, _ = process.communicate("\n")
    assert output.split() == [".", "..", "data", "work"]


def test_it_writes_its_workspace_and_its_own_temporary_files_alone(project: Path) -> None:
    script = "echo kept > file; echo own > /var/tmp/own; ls -A /var/tmp"

    assert said_by(project, "sh", "-c", script).split() == ["own"]
    assert (project / "work" / "file").read_text() == "kept\n"
    assert not Path("/var/tmp/own").exists()
    for place in (project / "new", Path("/usr/new"), Path("/etc/new")):
        said_by(project, "sh", "-c", f"touch {place} || true")
        assert not place.exists()


def test_it_has_no_capability_and_gets_no_new_rights(project: Path) -> None:
    lines = said_by(project, "cat", "/proc/self/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert {status[name] for name in ("CapEff", "CapPrm", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"


def test_the_project_must_not_be_the_home_of_the_user(project: Path) -> None:
    home = project.parent / "home"
    for place in (home, project.parent, Path("/")):
        with pytest.raises(InvalidInput, match="start perdure in a folder that contains only the project"):
            confine(["true"], None, {}, sandboxed(project, project=str(place)))


def test_too_many_names_beside_private_files_are_refused(project: Path) -> None:
    (project / "many").mkdir()
    for number in range(MAX_ENTRIES + 1):
        (project / "many" / str(number)).touch()
    (project / "many" / ".env").touch()
    with pytest.raises(InvalidInput, match="move the private files"):
        confine(["true"], None, {}, sandboxed(project))


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:///some/perdure.db", "some/perdure.db*"),
        ("sqlite:////some/per%20dure.db?x=1", "/some/per dure.db*"),
        ("some.db", "some.db*"),
        ("memory:", None),
        ("postgresql://localhost/x", None),
    ],
)
def test_the_database_is_private(url: str, file: str | None, project: Path) -> None:
    found = list_private_paths(load_settings({"database_url": url}))
    assert [path for path in found if path.endswith("*")] == ([] if file is None else [os.path.abspath(file)])
    assert PrivatePaths(found).may_show(str(project))


# --- how it ends ------------------------------------------------------------------------------------------


async def test_a_command_that_takes_too_long_is_asked_to_end_first(project: Path) -> None:
    mark = "98761.25"
    trap = "trap 'echo ended > ended; exit 3' TERM"
    script = f"{trap}; echo begun; setsid sleep {mark} & while :; do sleep 0.05; done"
    with pytest.raises(AgentError, match="took longer") as raised:
        await run_captured(
            ["sh", "-c", script],
            cwd=project / "work",
            env={},
            limit=1000,
            timeout=3,
            confinement=sandboxed(project),
        )
    assert raised.value.output == "begun\n"
    assert (project / "work" / "ended").read_text() == "ended\n"
    wait_until(lambda: not is_running(mark))


def test_it_ends_with_its_worker(project: Path) -> None:
    mark = "98762.25"
    code = (
        "import subprocess, sys, time\n"
        f"argv = {confine(['sleep', mark], str(project / 'work'), {}, sandboxed(project)).argv!r}\n"
        "subprocess.Popen(argv, start_new_session=True)\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        wait_until(lambda: is_running(mark))
        process.kill()
    wait_until(lambda: not is_running(mark))


async def test_what_the_command_says_and_how_it_exits_come_through(project: Path) -> None:
    ended = await run_captured(
        ["sh", "-c", "echo out; echo err >&2; exit 7"],
        cwd=project / "work",
        env={"GIVEN": "x"},
        limit=1000,
        confinement=sandboxed(project),
    )
    assert (ended.code, ended.stdout, ended.stderr) == (7, "out\n", "err\n")


# --- what is asked for ------------------------------------------------------------------------------------


def test_what_a_phase_asks_for_wins_over_an_agent_that_opts_out() -> None:
    default = Confinement(sandbox=True)
    nothing: dict[str, Any] = {"network": False, "user": None, "project": None}
    assert default.for_command(None, **nothing).sandbox
    assert not default.for_command("none", **nothing).sandbox
    required = msgspec.structs.replace(default, required=True)
    assert required.for_command("none", **nothing).sandbox
    assert Confinement().for_command("bubblewrap", **nothing).sandbox
    assert not Confinement().for_command(None, **nothing).sandbox


def test_a_sandbox_that_nobody_knows_is_refused(project: Path) -> None:
    with pytest.raises(InvalidInput, match="bubblewrap"):
        Command(["true"], sandbox="docker")  # type: ignore[arg-type]
    assert isolated("a:b", sandbox="bubblewrap", network=True).network


async def test_without_the_program_nothing_is_executed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput, match="install the package bubblewrap"):
        Command(["true"], sandbox="bubblewrap")
    with pytest.raises(AgentError, match="the sandbox bubblewrap does not work here") as raised:
        await run_captured(
            ["/bin/touch", "touched"], cwd=project / "work", env={}, limit=9, confinement=sandboxed(project)
        )
    assert raised.value.error == NOT_STARTED
    assert not (project / "work" / "touched").exists()


@pytest.mark.parametrize("given", ["0", "root", "no-such-user", "-1", "99999999999999"])
def test_a_user_that_is_root_or_none_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="uid"):
        find_user(given)
