"""Memory from the command line: over a server, directly on a database, and as a hook of coding agents."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import COMMAND, Server, run_here, settings

DATABASE = ("--database", "sqlite:///memory.db")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), "serve") as server:
        yield server


def said(ended: subprocess.CompletedProcess[str]) -> str:
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def hook(folder: Path, line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "memory", "hook", *arguments],
        input=line,
        capture_output=True,
        text=True,
        cwd=folder,
        env=settings(folder),
        check=False,
    )


def test_what_a_hook_tells_is_stored_once(server: Server, tmp_path: Path) -> None:
    told = {
        "hook_event_name": "UserPromptSubmit",
        "session_id": "coding",
        "prompt": "Rename the zebra module",
        "timestamp": "2024-01-15T10:00:00Z",
        "cwd": "src",
        "agent": "Claude",
    }
    for _ in range(2):
        answer = hook(tmp_path, json.dumps(told), "--url", server.url)
        assert (answer.stdout.strip(), answer.returncode) == ('{"continue":true}', 0)
    stats = said(server.run("memory", "stats")).splitlines()
    assert [line.partition(":")[0] for line in stats] == [
        "Path",
        "Events",
        "TOC Nodes",
        "Grips",
        "Outbox",
        "Disk Usage",
    ]
    assert server.json("memory", "stats")["events"] == 1
    done = server.json("memory", "rebuild")
    assert (done["status"], done["result"]["built"]) == ("succeeded", 5)
    (hit, *_) = server.json("memory", "search", "zebra", "--kind", "event")["items"]
    assert (hit["agent"], hit["events"][0]["session_id"]) == ("claude", "coding")
    shown = said(server.run("memory", "search", "zebra"))
    assert "Rename the zebra module" in shown
    assert shown.count("events: " + hit["id"]) == 1, "not for its year, month, week and day again"
    assert said(server.run("memory", "search", "zebra", "--kind", "node")).count("events: " + hit["id"]) > 1
    assert "Monday, January 15, 2024" in said(server.run("memory", "browse", "toc:week:2024:W03"))
    node = server.json("memory", "show", "toc:day:2024-01-15")
    assert "zebra" in said(server.run("memory", "show", "toc:day:2024-01-15"))
    grip = node["bullets"][0]["grip_ids"][0]
    assert "Rename the zebra module" in said(server.run("memory", "expand", grip))
    assert server.run("memory", "show", "toc:day:1999-01-01").returncode == 4
    assert server.run("memory", "search", "x", "--kind", "cat").returncode == 1


@pytest.mark.parametrize("line", ["garbage", '{"session_id": "s"}', "{" * 10_000])
def test_a_hook_never_stops_its_agent(tmp_path: Path, line: str) -> None:
    answer = hook(tmp_path, line.encode("utf-8", "replace").decode(), "--url", "http://127.0.0.1:1")
    assert (answer.stdout.strip(), answer.returncode) == ('{"continue":true}', 0)
    assert "nothing was remembered" in answer.stderr


def test_memory_on_a_database(tmp_path: Path) -> None:
    out = run_here(tmp_path, "memory", "ingest", "We chose SQLite", "--session", "notes", *DATABASE)
    assert said(out) == "Stored 1 event."
    lines = [
        {
            "event_id": "01HMZ0KQ6V9B4T5Z7N2C8XJ3PD",
            "session_id": "s",
            "text": "from a file",
            "role": "assistant",
        },
        {"event_id": "01HMZ0KQ6V9B4T5Z7N2C8XJ3PD", "session_id": "s", "text": "again"},
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = run_here(tmp_path, "memory", "ingest", "@events.jsonl", *DATABASE)
    assert said(out) == "Stored 1 event, 1 known before."
    assert "We chose SQLite" in said(run_here(tmp_path, "memory", "search", "sqlite", *DATABASE))
    assert "Nothing matches" in said(run_here(tmp_path, "memory", "search", "elephant", *DATABASE))
    assert "table of contents is empty" in said(run_here(tmp_path, "memory", "browse", *DATABASE))
    assert "succeeded" in said(run_here(tmp_path, "memory", "rebuild", "--json", *DATABASE))
    assert "2024" in said(run_here(tmp_path, "memory", "browse", *DATABASE))
    assert run_here(tmp_path, "memory", "browse", "toc:year:1999", *DATABASE).returncode == 4
    for wrong in (["ingest"], ["ingest", "@missing"], ["ingest", "x", "--time", "soon"]):
        assert run_here(tmp_path, "memory", *wrong, *DATABASE).returncode == 2
    assert run_here(tmp_path, "memory", "ingest", "x", "--id", "no-ulid", *DATABASE).returncode == 1
