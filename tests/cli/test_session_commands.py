"""Sessions from the command line: over a server, and directly on a database."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.session_agents import LONG, talker

from perdure import Agents, Perdure

from .command import Server, run_here

TRANSCRIPTS = Path(__file__).parents[1] / "sessions" / "transcripts"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), "serve") as server:
        yield server


def printed(ended: subprocess.CompletedProcess[str]) -> str:
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def test_transcripts_of_every_kind_are_imported_listed_shown_and_searched(server: Server) -> None:
    files = sorted(map(str, TRANSCRIPTS.glob("*.jsonl")))
    imported = server.json("session", "import", *files)["items"]
    assert [row["session_id"] for row in imported] == [
        "5f1c",
        "9a9a",
        "0199-aa",
        "0199-bb",
        "openai_agents",
        "openai_traces",
        "pi-2",
        "pi-1",
    ]
    again = server.json("session", "import", *files)["items"]
    assert again == imported
    # Other tests import their sessions into this server, in any order.
    listed = [row["session_id"] for row in server.json("session", "ls")["items"]]
    assert len(imported) == len(files)
    assert [listed.count(row["session_id"]) for row in imported] == [1] * len(files)
    assert "The date test fails" in printed(server.run("session", "ls"))
    shown = printed(server.run("session", "show", "5f1c"))
    assert re.search(r"tokens +300 in, 50 out", shown)
    assert 'assistant calls Read: {"file_path":"test_date.py"}' in shown
    assert "tool: assert day == 31" in shown
    assert shown.count("The date test fails. Fix it.") == 1
    assert "The month has 30 days: 世界." in shown
    found = server.json("session", "search", "30 DAYS")
    assert [match["session_id"] for match in found["items"]] == ["5f1c"]
    assert printed(server.run("session", "search", "nothing like this")) == "No messages match."
    errors = server.json("session", "search", "overloaded", "--scope", "errors")
    assert len(errors["items"]) == 1


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_export_of_originals_has_the_lines_as_they_were_imported(server: Server, tmp_path: Path) -> None:
    sources = {
        "codex_stored": "0199-bb",
        "codex_exec": "0199-aa",
        "pi_stream": "pi-1",
        "claude_stored": "5f1c",
    }
    for source, session_id in sources.items():
        file, out = TRANSCRIPTS / f"{source}.jsonl", tmp_path / f"{source}.jsonl"
        server.json("session", "import", str(file))
        written = printed(server.run("session", "export", session_id, "--original", "-o", str(out)))
        assert written == f"Wrote {len(read_lines(file))} lines to {out}."
        assert read_lines(out) == read_lines(file)
        as_stored = [
            json.loads(line) for line in printed(server.run("session", "export", session_id)).splitlines()
        ]
        kinds = {line["type"] for line in as_stored} - {"summary", "file-history-snapshot", "some-new-type"}
        assert kinds <= {"user", "assistant", "system", "result"}


def test_an_import_goes_on_where_it_ended(server: Server, tmp_path: Path) -> None:
    whole = (TRANSCRIPTS / "codex_exec.jsonl").read_text().replace("0199-aa", "0199-cc").splitlines(True)
    file = tmp_path / "grows.jsonl"
    for count in (5, len(whole), len(whole)):
        file.write_text("".join(whole[:count]))
        server.json("session", "import", str(file))
    out = tmp_path / "out.jsonl"
    printed(server.run("session", "export", "0199-cc", "--original", "-o", str(out)))
    assert read_lines(out) == read_lines(file)
    shown = printed(server.run("session", "show", "0199-cc"))
    assert shown.count("assistant calls command_execution") == 1
    assert "result (success): 40 in, 12 out" in shown


def test_a_cut_tool_result_is_shown_in_full(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/own.db"

    async def talk() -> str:
        agents = Agents()
        agents.register("talker", talker)
        async with Perdure(database, agents=agents) as perdure:
            end = await perdure.run("talker", {"text": "Where is Rome?"}, on_completion="keep")
            return end.run.run_id

    run_id = asyncio.run(talk())
    shown = printed(run_here(tmp_path, "run", "show", run_id, "--database", database))
    session_id = next(line.split()[1] for line in shown.splitlines() if line.startswith("session"))
    cut = printed(run_here(tmp_path, "session", "show", session_id, "--database", database))
    assert f"…[truncated {LONG - 65_536} chars]" in cut
    full = printed(run_here(tmp_path, "session", "show", session_id, "--full", "--database", database))
    assert "truncated" not in full
    assert "x" * LONG in full


def test_what_is_missing_or_wrong_is_said(server: Server, tmp_path: Path) -> None:
    missing = server.run("session", "show", "none")
    assert (missing.returncode, missing.stderr) == (4, "perdure: not_found: Session none not found\n")
    assert server.run("session", "search", "x", "--scope", "some").returncode == 2
    assert server.run("session", "import", str(tmp_path / "none.jsonl")).returncode == 2


def test_sessions_of_a_database_stand_beside_it(tmp_path: Path) -> None:
    assert printed(run_here(tmp_path, "session", "ls", "--database", "memory:")).startswith(
        "No sessions yet."
    )
    database = ("--database", f"sqlite:///{tmp_path}/own.db")
    printed(run_here(tmp_path, "session", "import", str(TRANSCRIPTS / "pi_stored.jsonl"), *database))
    assert "pi-2" in printed(run_here(tmp_path, "session", "ls", *database))
    log = tmp_path / "agent-sessions" / "projects" / "-srv-agent-workspace" / "pi-2.jsonl"
    assert log.read_text().count("\n") == 6
