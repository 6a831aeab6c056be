"""Crons from the command line, over a server and straight into a database."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .command import ROOT, Server, run_here

AGENTS = ("--agents", "./agents.py:agents")
DATABASE = ("--database", "sqlite:///agents.db")
YEARLY = "0 0 1 1 *"
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "agents.py").write_text((ROOT / "examples" / "agents.py").read_text())
    with Server(folder, "serve", *AGENTS) as server:
        yield server


def said(ended: subprocess.CompletedProcess[str]) -> str:
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


def test_nothing_yet_says_how_to_begin(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text("")
    run_here(tmp_path, "thread", "create", *DATABASE)
    empty = said(run_here(tmp_path, "cron", "ls", *DATABASE))
    assert empty.startswith("No crons yet.")
    assert "perdure cron create greet '0 9 * * MON-FRI'" in empty
    assert said(run_here(tmp_path, "cron", "ls", "--paused", *DATABASE)) == "No crons match."
    listed = json.loads(said(run_here(tmp_path, "cron", "ls", "--json", *DATABASE)))
    assert listed == {"items": [], "total": 0}


def test_a_cron_is_made_listed_paused_resumed_and_removed(server: Server) -> None:
    made = said(
        server.run(
            *("cron", "create", "greet", "0 9 1 1 *", '{"name": "Ann"}', "--timezone", "Europe/Berlin"),
            *("--until", "2099-12-31T12:00", "--metadata", '{"team": "blue"}', "--strategy", "reject"),
            *("--config", '{"tags": ["a"]}', "--context", '{"b": 1}', "--keep"),
        )
    )
    shown = server.json("cron", "show", made)
    assert (shown["expression"], shown["timezone"]) == ("0 9 1 1 *", "Europe/Berlin")
    assert shown["end_time"] == 4102401600.0
    assert shown["payload"] == {
        "input": {"name": "Ann"},
        "config": {"tags": ["a"]},
        "context": {"b": 1},
        "multitask_strategy": "reject",
        "on_run_completed": "keep",
    }
    assert (shown["metadata"], shown["firings"]) == ({"team": "blue"}, [])
    assert re.search(rf"{made} +0 9 1 1 \* +Europe/Berlin +in \d+ d", said(server.run("cron", "ls")))
    assert said(server.run("cron", "pause", made)) == f"Cron {made} is paused."
    assert server.json("cron", "ls", "--enabled", "-m", "team:blue")["total"] == 0
    assert server.json("cron", "ls", "--paused", "-m", "team:blue")["total"] == 1
    assert re.fullmatch(rf"Cron {made} fires in \d+ d\.", said(server.run("cron", "resume", made)))
    assert re.search(r"next +in \d+ d \(20\d\d-01-01 08:00:00 UTC\)", said(server.run("cron", "show", made)))
    refused = server.run("cron", "rm", made)
    assert (refused.returncode, "add --yes" in refused.stderr) == (2, True)
    assert said(server.run("cron", "rm", made, "--yes")) == f"Deleted cron {made}."
    gone = server.run("cron", "show", made)
    assert (gone.returncode, gone.stderr) == (4, f"perdure: job_not_found: Job not found: {made}\n")


def test_why_says_when_it_fires_and_why_it_does_not(server: Server) -> None:
    made = server.json("cron", "create", "greet", YEARLY)["schedule_id"]
    waiting = server.json("why", made)
    assert (waiting["kind"], waiting["status"], waiting["rule"]) == ("schedule", "waiting", "waits_for_time")
    assert re.search(r"fires at 20\d\d-01-01 00:00:00 UTC, in \d+ d\.$", said(server.run("why", made)))
    server.run("cron", "pause", made)
    assert server.json("why", made)["rule"] == "paused"
    unknown = server.run("why", NOBODY)
    assert unknown.returncode == 4


def test_a_cron_fires_while_the_server_runs(server: Server) -> None:
    made = server.json("cron", "create", "greet", "* * * * * *", '{"name": "Bo"}', "--keep")["schedule_id"]
    deadline = time.monotonic() + 20
    while not (shown := server.json("cron", "show", made))["firings"]:
        assert time.monotonic() < deadline
    server.run("cron", "rm", made, "--yes")
    run_id = shown["firings"][-1]["started_id"]
    assert said(server.run("run", "wait", run_id)) == '{"greeting":"Hello, Bo!"}'


def test_a_thread_that_it_runs_on(server: Server) -> None:
    said(server.run("thread", "create", "t1"))
    made = server.json("cron", "create", "greet", YEARLY, "--thread", "t1", "--paused")
    assert (made["thread_id"], made["enabled"], made["next_at"]) == ("t1", False, None)
    assert server.json("cron", "ls", "--thread", "t1")["total"] == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("greet", "bad"), 1, "Invalid cron expression: 'bad': wrong number of fields"),
        (("greet", YEARLY, "--timezone", "Mars/Olympus"), 1, "Invalid timezone: 'Mars/Olympus'"),
        (("nobody", YEARLY), 4, "Assistant nobody not found"),
        (("greet", YEARLY, "--thread", "nowhere"), 4, "Thread nowhere not found"),
        (("greet", YEARLY, "--until", "soon"), 2, "--until must be a time"),
        (("greet", YEARLY, "{"), 2, "INPUT is not JSON"),
        (("greet", YEARLY, "--thread", "t", "--keep"), 2, "--keep cannot be used with --thread"),
        (
            ("greet", YEARLY, "--strategy", "shove"),
            2,
            "--strategy must be reject, enqueue, interrupt or rollback",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    server: Server, words: tuple[str, ...], code: int, message: str
) -> None:
    ended = server.run("cron", "create", *words)
    assert ended.returncode == code
    assert message in " ".join(ended.stderr.replace("│", " ").split())


CRON = """
kind: cron
name: {name}
schedule: "0 4 * * SUN"
handler: {name}
context: {{days: 30}}
"""
GUARDED = """
kind: cron
name: guarded
schedule: "* * * * * *"
handler: sweep
condition: {unless: maintenance}
"""
CODE = """
from pathlib import Path

from perdure import Agents

agents = Agents()


@agents.handler("cleanup")
async def cleanup(context, payload):
    return {"deleted": payload["days"], "by": context.name}


@agents.condition("maintenance")
def maintenance(order):
    return Path("maintenance").exists() and order.name == "guarded"


async def sweep(context, payload):
    return {"swept": payload["days"]}
"""


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_cron_files_call_the_handlers_of_a_served_project(tmp_path: Path, command: str) -> None:
    (tmp_path / "jobs.py").write_text(CODE)
    (tmp_path / "perdure.toml").write_text(
        '[perdure.handlers]\nsweep = "./jobs.py:sweep"\nwrong = "./jobs.py:nothing"\n'
    )
    (tmp_path / "crons").mkdir()
    for name in ("cleanup", "sweep", "unknown"):
        (tmp_path / "crons" / f"{name}.yaml").write_text(CRON.format(name=name))
    (tmp_path / "crons" / "guarded.yaml").write_text(GUARDED)
    (tmp_path / "maintenance").touch()
    with Server(tmp_path, command, "--agents", "./jobs.py:agents") as server:
        for name, result in (("cleanup", {"deleted": 30, "by": "cleanup"}), ("sweep", {"swept": 30})):
            assert server.json("cron", "show", name)["origin"] == "file"
            server.run("cron", "trigger", name)
            assert ended_firing(server, name)["status"] == "success"
            jobs = {job["job_name"]: job for job in server.json("scheduler", "status")["jobs"]}
            assert jobs[name]["last_run_metadata"] == result
        assert server.run("cron", "show", "unknown").returncode == 4
        skipped = ended_firing(server, "guarded")
        assert (skipped["status"], skipped["skipped"]) == ("skipped", "condition")
        assert server.stop() == 0
    assert "unknown handler 'unknown'" in server.errors
    assert "perdure.toml [handlers] wrong" in server.errors


def ended_firing(server: Server, name: str) -> dict[str, object]:
    """Return the latest firing of a cron, after it has ended."""
    deadline = time.monotonic() + 30
    while True:
        found = server.json("scheduler", "history", name)["items"]
        if (found and found[0]["status"] != "running") or time.monotonic() > deadline:
            return dict(found[0])
        time.sleep(0.05)
