"""A conversation in the terminal, by lines of a script, and its history."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import COMMAND, Server, settings

AGENTS = """
from perdure import Agents

agents = Agents()


@agents.agent("echo")
async def echo(ctx, input):
    for word in ("You", "said:", input["prompt"]):
        await ctx.emit(word + " ")
    return f"You said: {input['prompt']} "


@agents.agent("book")
async def book(ctx, input):
    answer = await ctx.interrupt("Which day?")
    await ctx.emit(f"Booked for {answer}.")
    return {"booked": answer}


@agents.agent("notes")
async def notes(ctx, input):
    await ctx.message("user", input["prompt"])
    await ctx.message("assistant", "Noted.")
    return "Noted."


@agents.agent("fail")
async def fail(ctx, input):
    raise ValueError("no such city")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "agents.py").write_text(AGENTS)
    with Server(folder, "serve", "--agents", "./agents.py:agents") as server:
        yield server


def chat(server: Server, said: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Chat by lines of stdin."""
    return subprocess.run(
        [*COMMAND, "chat", *arguments],
        input=said,
        cwd=server.folder,
        env=settings(Path(server.folder), {"PERDURE_URL": server.url}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_each_line_is_a_message_and_commands_are_obeyed(server: Server) -> None:
    ended = chat(server, "hello\n\nagain\n/history 1000\n/reset\n/history\n/nothing\n/exit\nnever\n", "echo")
    assert ended.returncode == 0
    lines = [line.strip() for line in ended.stdout.splitlines()]
    assert [line for line in lines if line.startswith("You said")] == ["You said: hello", "You said: again"]
    assert "you> hello" in lines
    assert "A new session began." in lines
    assert lines[-1] == "No messages yet."
    assert "there is no command /nothing" in ended.stderr


def test_scripts_get_a_line_of_json_for_each_turn(server: Server) -> None:
    ended = chat(server, "one\ntwo\n", "echo", "--thread", "json", "--json")
    turns = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [turn["status"] for turn in turns] == ["success", "success"]
    assert len({turn["session_id"] for turn in turns}) == 1
    assert len({turn["turn_id"] for turn in turns}) == 2


def test_a_question_is_answered_by_the_next_line(server: Server) -> None:
    ended = chat(server, "go\nMonday\n", "book")
    assert "book asks: Which day?" in ended.stdout
    assert "Booked for Monday." in ended.stdout


def test_a_turn_that_fails_is_told_and_is_the_exit_code(server: Server) -> None:
    ended = chat(server, "", "fail", "-m", "hello")
    assert (ended.returncode, ended.stderr) == (1, "perdure: error: no such city\n")


def test_an_unknown_assistant_is_told_before_anything_is_asked(server: Server) -> None:
    for arguments in (("-m", "hello"), ()):
        unknown = chat(server, "", "nobody", *arguments)
        assert (unknown.returncode, unknown.stderr) == (4, "perdure: not_found: Assistant nobody not found\n")


def test_overrides_switch_workflows_and_are_cleared(server: Server) -> None:
    assert "No overrides" in server.run("override", "list").stdout
    assert server.run("override", "set", "workflow", "build", "--off").stdout == "Workflow build is off.\n"
    (listed,) = server.json("override", "list")["items"]
    assert (listed["kind"], listed["name"], listed["enabled"]) == ("workflow", "build", False)
    assert "off" in server.run("override", "list").stdout
    assert server.run("override", "set", "workflow", "build", "--on").stdout == "Workflow build is on.\n"
    assert server.run("override", "clear", "workflow", "build").returncode == 0
    assert server.run("override", "clear", "workflow", "build").returncode == 4
    for wrong in (("workflow", "b"), ("workflow", "b", "--on", "--off"), ("job", "b", "--on")):
        assert server.run("override", "set", *wrong).returncode == 2


def test_an_agent_that_writes_the_question_itself_has_it_once_in_its_session(server: Server) -> None:
    ended = chat(server, "", "notes", "-m", "Buy milk", "--thread", "shopping")
    assert ended.stdout == "Noted.\n", ended
    told = server.run("session", "show", "last").stdout
    assert told.count("Buy milk") == 1, told
