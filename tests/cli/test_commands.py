"""The commands that read, and the reaction of every command to a mistake."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import SqliteLightningStore, __version__
from perdure.diagnostics.machines import MACHINES

from .command import COMMAND, ROOT, after, commands, new_perdure, perdure, settings


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"perdure": "perdure.cli:main"}
    assert project["version"] == __version__


def test_version(tmp_path: Path) -> None:
    ended = new_perdure(tmp_path, "version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"perdure {__version__}, python 3.")
    facts = json.loads(perdure(tmp_path, "version", "--json").stdout)
    assert set(facts) == {"perdure", "python", "sqlite", "asyncpg"}
    assert facts["perdure"] == __version__


def test_machines(tmp_path: Path) -> None:
    ended = perdure(tmp_path, "machines")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "\n".join(f"%% {each.name}\n{each.chart()}" for each in MACHINES)
    charts = json.loads(perdure(tmp_path, "machines", "--json").stdout)
    assert charts == {each.name: each.chart() for each in MACHINES}


@pytest.mark.parametrize("arguments", [("--help",), ("demo", "--help")])
def test_help_is_no_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = perdure(tmp_path, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Usage: perdure" in ended.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("unknown",),
        ("demo", "surplus"),
        ("demo", "--unknown"),
        ("demo", "--rollouts", "0"),
        ("demo", "--rollouts", "10001"),
        ("demo", "--rollouts", "many"),
        ("demo", "--seed", "x"),
        ("demo", "--database"),
        ("version", "--yaml"),
    ],
    ids=" ".join,
)
def test_bad_arguments_are_code_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ended = perdure(tmp_path, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Error" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that is not only a group."""
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, each in below.items():
        yield from leaves(each, (*path, name))


COMMANDS = dict(leaves(commands()))


def test_every_command_takes_json() -> None:
    for path, command in COMMANDS.items():
        assert "--json" in {name for option in command.params for name in option.opts}, path
    assert len(COMMANDS) > 60


def test_every_group_has_the_same_verbs_and_their_short_forms() -> None:
    for long, short in (("list", "ls"), ("show", "get"), ("delete", "rm")):
        groups = {path[0] for path in COMMANDS if path[1:] == (long,)}
        assert groups
        assert groups == {path[0] for path in COMMANDS if path[1:] == (short,)}
        assert not any(COMMANDS[group, long].hidden for group in groups)
        assert all(COMMANDS[group, short].hidden for group in groups)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_option_has_help(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert re.match(r"[A-Z]\w+ .+\.$", command.help.partition("\n")[0]), command.help
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            assert option.help, option.name
            assert option.help.endswith((".", "…")), option.help


def error_of(ended: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Return the code and the message of a command that failed with one line and no traceback."""
    assert ended.returncode == 1
    found = re.fullmatch(r"perdure: (\w+): (.+)\n", ended.stderr)
    assert found is not None, ended.stderr
    return found[1], found[2]


@pytest.mark.parametrize(
    ("database", "code"),
    [
        ("mysql://localhost/agents", "invalid_input"),
        ("sqlite:///", "invalid_input"),
        ("sqlite:///missing/agents.db", "storage_unavailable"),
        ("sqlite:///folder", "not_a_database"),
        ("sqlite:///text.db", "not_a_database"),
        ("postgresql://user:secret@127.0.0.1:1/agents", "storage_unavailable"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_and_code_1(
    tmp_path: Path, database: str, code: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.db").write_text(
        "This is a text, and a long one, so that nobody takes it for empty. " * 20
    )
    ended = perdure(tmp_path, "demo", "--json", "--database", database)
    assert ended.returncode == 1
    assert json.loads(ended.stderr)["error"]["code"] == code
    assert ended.stdout == ""
    assert "secret" not in ended.stderr


async def test_an_owned_database_names_its_owner(tmp_path: Path) -> None:
    async with SqliteLightningStore(tmp_path / "agents.db"):
        ended = perdure(tmp_path, "demo", "--database", "sqlite:///agents.db")
    code, message = error_of(ended)
    assert code == "database_owned"
    assert str(os.getpid()) in message


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [*COMMAND, "machines"],
            env=settings(tmp_path),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    "arguments", [("machines",), ("demo", "--rollouts", "1", "--database", "memory:")], ids=" ".join
)
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with (tmp_path / "output").open("w") as output:
        ended = subprocess.run(
            after("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", *arguments),
            env=settings(tmp_path, {"PYTHONDONTWRITEBYTECODE": "1"}),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert re.fullmatch(r"perdure: system error: .+\n", ended.stderr), ended.stderr


def test_a_name_that_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    ended = perdure(tmp_path, "demo", "--database", "sqlite:///" + "x" * 300)
    assert ended.returncode == 1
    assert re.fullmatch(r"perdure: .+\n", ended.stderr)
