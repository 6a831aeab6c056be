"""Runs, threads, assistants and webhooks from the command line, over a server with agents and without one."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.outbox.operations import NewEffect, put
from perdure.runtime.stores import open_store

from .command import ROOT, Server, perdure, run_here

AGENTS = ("--agents", "./agents.py:agents")
DATABASE = ("--database", "sqlite:///agents.db")
SLOW = '{"to": 1, "pause": 600}'
UNREACHABLE = {"PERDURE_URL": "http://127.0.0.1:1"}
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


def ended_with(server: Server, *arguments: str) -> tuple[int, str]:
    ended = server.run(*arguments)
    return ended.returncode, ended.stderr


# --- runs -------------------------------------------------------------------------------------------------


def test_a_run_is_asked_for_and_awaited(server: Server) -> None:
    assert (
        said(server.run("run", "create", "greet", '{"name": "Ann"}', "--wait"))
        == '{"greeting":"Hello, Ann!"}'
    )
    end = server.json("run", "create", "greet", '{"name": "Bo"}', "--wait")
    assert (end["run"]["status"], end["values"]) == ("success", {"greeting": "Hello, Bo!"})


def test_the_events_of_a_run_are_printed_live_and_again(server: Server) -> None:
    live = said(server.run("run", "create", "count", '{"to": 2}', "--thread", "w", "--new-thread", "--watch"))
    words = [line.split()[1] for line in live.splitlines()]
    assert words == ["metadata", "custom", "custom", "values", "end"]
    (run,) = server.json("run", "ls", "--thread", "w")["items"]
    again = said(server.run("run", "watch", run["run_id"], "--json"))
    events = [json.loads(line) for line in again.splitlines()]
    assert [event["event"] for event in events] == words
    assert events[-1]["data"] == {"status": "success"}
    rest = said(server.run("run", "watch", run["run_id"], "--after", events[2]["id"], "--json"))
    assert [json.loads(line) for line in rest.splitlines()] == events[3:]
    only = said(server.run("run", "watch", run["run_id"], "--event", "values"))
    assert only.endswith('values    {"counted":2}')


def test_a_failure_has_its_reason_and_its_exit_code(server: Server) -> None:
    assert ended_with(server, "run", "create", "fail", "--wait") == (
        1,
        "perdure: error: ValueError: no such city\n",
    )
    watched = server.run("run", "create", "fail", "--thread", "f", "--new-thread", "--watch")
    assert (watched.returncode, watched.stderr) == (1, "")
    assert "no such city" in watched.stdout
    (run,) = server.json("run", "ls", "--status", "error", "--thread", "f")["items"]
    shown = said(server.run("run", "get", run["run_id"]))
    assert re.search(r"error +ValueError: no such city", shown)
    assert "failed at" in server.json("run", "get", run["run_id"])["why"]["sentence"]
    assert "is in error since its last run" in said(server.run("why", "f"))


def test_a_thread_is_asked_and_answered(server: Server) -> None:
    said(server.run("thread", "create", "trip", "--metadata", '{"user": "ann"}'))
    asked = said(server.run("run", "create", "book", '{"city": "Rome"}', "--thread", "trip", "--wait"))
    assert "Paused. The agent asks: Book a flight to Rome?" in asked
    assert "perdure run create book --thread trip --resume" in asked
    assert "Thread trip is waiting for an answer to Book a flight" in said(server.run("why", "trip"))
    assert server.json("why", "trip")["rule"] == "waits_for_answer"
    answered = said(server.run("run", "create", "book", "--thread", "trip", "--resume", '"yes"', "--wait"))
    assert answered == '{"booked":true}'
    history = server.json("thread", "history", "trip")["items"]
    assert [state["values"] for state in history] == [{"booked": True}, None]
    assert re.search(r"values +{\"booked\":true}", said(server.run("thread", "state", "trip")))
    older = server.json("thread", "state", "trip", "--checkpoint", history[1]["checkpoint_id"])
    assert older["interrupts"][0]["value"] == "Book a flight to Rome?"
    copy = said(server.run("thread", "copy", "trip"))
    assert len(server.json("thread", "history", copy)["items"]) == 2
    found = server.json("thread", "ls", "--metadata", "user:ann", "--status", "idle")["items"]
    assert "trip" in {each["thread_id"] for each in found}
    assert said(server.run("thread", "delete", copy, "--yes")) == f"Deleted thread {copy}."
    assert server.run("thread", "get", copy).returncode == 4


def test_runs_that_wait_are_explained_and_ended(server: Server) -> None:
    said(server.run("thread", "create", "busy"))
    first = said(server.run("run", "create", "count", SLOW, "--thread", "busy"))
    code, error = ended_with(server, "run", "create", "count", SLOW, "--thread", "busy")
    assert (code, "Thread busy is busy with run" in error) == (1, True)
    second = said(server.run("run", "create", "count", SLOW, "--thread", "busy", "--strategy", "enqueue"))
    assert f"1st in line in thread busy, behind run {first}" in said(server.run("why", second))
    assert server.run("run", "wait", second, "--timeout", "0.1s").returncode == 5
    assert server.run("run", "watch", second, "--timeout", "0.1s").returncode == 5
    waiting = said(
        server.run("run", "create", "greet", "{}", "--after", "1h", "--thread", "later", "--new-thread")
    )
    assert "is delayed until" in said(server.run("why", waiting))
    assert re.search(rf"{waiting} +greet +pending +- +- +in \d", said(server.run("run", "ls")))
    assert said(server.run("run", "cancel", first, "--wait")) == f"{first} is interrupted"
    assert server.run("run", "cancel", first).returncode == 1
    ended = server.json("thread", "cancel", "busy", "--action", "rollback")
    assert ended["changed"] == [{"run_id": second, "status": "rollback"}]
    assert [
        each["run_id"] for each in server.json("run", "cancel", "--status", "pending", "--yes")["changed"]
    ] == [waiting]
    assert said(server.run("run", "delete", waiting, "--yes")) == f"Deleted run {waiting}."
    assert server.run("run", "get", waiting).returncode == 4


# --- assistants and agents --------------------------------------------------------------------------------


def test_assistants_have_versions(server: Server) -> None:
    made = said(server.run("assistant", "create", "greet", "--name", "French", "--config", '{"tags": ["a"]}'))
    assert re.search(rf"{made} +greet +French +1", said(server.run("assistant", "ls", "--agent", "greet")))
    changed = server.json("assistant", "update", made, "--config", '{"tags": ["b"]}')
    assert (changed["version"], changed["config"]) == (2, {"tags": ["b"]})
    versions = server.json("assistant", "versions", made)["items"]
    assert [each["version"] for each in versions] == [2, 1]
    assert server.json("assistant", "update", made, "--version", "1")["config"] == {"tags": ["a"]}
    assert "French" in said(server.run("assistant", "get", made))
    assert server.json("assistant", "get", "greet")["name"] == "greet"
    assert "give at least one change" in server.run("assistant", "update", made).stderr
    run = server.json("run", "create", made, '{"name": "Ann"}', "--wait")
    assert run["values"] == {"greeting": "Hello, Ann!"}
    assert "--yes" in server.run("assistant", "delete", made).stderr
    said(server.run("assistant", "delete", made, "--yes"))
    assert server.run("assistant", "get", made).returncode == 4
    code, error = ended_with(server, "assistant", "create", "nobody")
    assert (code, "no worker has registered it" in error) == (4, True)


def test_agents_tells_what_is_configured(tmp_path: Path) -> None:
    assert "No agents found" in said(run_here(tmp_path, "agents"))
    (tmp_path / "good.py").write_text("async def good(ctx, input):\n    'Is good.'\n")
    (tmp_path / "perdure.toml").write_text(
        '[perdure.agents]\ngood = "./good.py:good"\nbad = "./bad.py:bad"\n'
    )
    # A separate process, because it imports the agents.
    ended = perdure(tmp_path, "agents")
    assert ended.returncode == 1
    assert re.search(r"good +function +Is good\.", ended.stdout)
    assert "agent 'bad': there is no file" in ended.stderr
    assert "Traceback" not in ended.stderr
    document = json.loads(perdure(tmp_path, "agents", "--json").stdout)
    assert [each["name"] for each in document["agents"]] == ["good"]
    assert [each["agent"] for each in document["failures"]] == ["bad"]


# --- webhooks and statistics ------------------------------------------------------------------------------


def test_webhooks_are_listed_shown_and_retried(tmp_path: Path) -> None:
    async def prepare() -> str:
        async with open_store("sqlite:///" + str(tmp_path / "agents.db")) as store:
            body = json.dumps({"url": "https://example.com/hook", "payload": {"status": "success"}})
            (made,) = await store.storage.run(
                put, [NewEffect("webhook", "run-1", body, "https://example.com/hook")], ns=1
            )
            return made

    assert "No webhooks yet" in said(run_here(tmp_path, "webhook", "ls", *create(tmp_path)))
    webhook = asyncio.run(prepare())
    listed = said(run_here(tmp_path, "webhook", "ls", *DATABASE))
    assert re.search(rf"{webhook} +pending +0 +run-1 +https://example.com", listed)
    assert said(run_here(tmp_path, "webhook", "ls", "--status", "dead", *DATABASE)) == "No webhooks match."
    assert "success" in said(run_here(tmp_path, "webhook", "get", webhook, *DATABASE))
    assert "will be delivered now" in said(run_here(tmp_path, "webhook", "retry", webhook, *DATABASE))
    assert run_here(tmp_path, "webhook", "retry", "nothing", *DATABASE).returncode == 4
    found = json.loads(said(run_here(tmp_path, "stats", "--json", *DATABASE)))
    assert found["outbox"] == {"pending": 1, "dead": 0}
    listed = said(run_here(tmp_path, "outbox", "ls", "--state", "pending", *DATABASE))
    assert re.search(rf"{webhook} +pending +webhook +0 ", listed)
    assert said(run_here(tmp_path, "outbox", "ls", "--dead", *DATABASE)) == "No entries match."
    shown = said(run_here(tmp_path, "outbox", "show", webhook, *DATABASE))
    assert re.search(r"next try +now", shown)
    assert "is pending and will be delivered now" in said(
        run_here(tmp_path, "outbox", "retry", webhook, *DATABASE)
    )
    retried = json.loads(said(run_here(tmp_path, "outbox", "retry", "--dead", "--json", *DATABASE)))
    assert retried == {"retried": 0}


def create(folder: Path) -> tuple[str, ...]:
    """Return the options that name a database, and create it."""
    said(run_here(folder, "thread", "create", "first", *DATABASE))
    return DATABASE


def test_statistics_of_a_server(server: Server) -> None:
    shown = said(server.run("stats"))
    assert re.search(r"workers +1 alive, \d+ of \d+ slots busy", shown)
    found = server.json("stats")
    assert {"n_pending", "n_running", "min_age_secs", "med_age_secs"} <= set(found)
    assert found["workers"]["max"] >= 1
    twice = said(server.run("stats", "--watch", "--every", "0.01s", "--times", "2", "--json"))
    assert [set(json.loads(line)) for line in twice.splitlines()] == [set(found)] * 2
    assert len(said(server.run("stats", "--times", "2", "--every", "0.01s")).split("runs ")) == 3


# --- without a server -------------------------------------------------------------------------------------


def test_a_database_is_asked_without_a_server(tmp_path: Path) -> None:
    def asked(*arguments: str) -> str:
        return said(run_here(tmp_path, *arguments, *DATABASE))

    assert run_here(tmp_path, "run", "ls", *DATABASE).returncode == 4
    asked("thread", "create", "t", "--values", '{"n": 1}')
    assert "Thread t is idle: it has no runs." in asked("why", "t")
    assert "No runs yet" in asked("run", "ls")
    assert "No assistants yet" in asked("assistant", "ls")
    assert re.search(r"t +idle", asked("thread", "ls"))
    assert re.search(r'values +{"n":1}', asked("thread", "get", "t"))
    assert "none alive; start one with `perdure worker`" in asked("stats")
    missing = run_here(tmp_path, "run", "create", "greet", *DATABASE)
    assert (missing.returncode, "Assistant greet not found" in missing.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "create", "greet", "{"), 2, "INPUT is not JSON"),
        (
            ("run", "create", "greet", "{}", "--strategy", "queue"),
            2,
            "--strategy must be reject, enqueue, interrupt or rollback, not 'queue'",
        ),
        (("run", "create", "greet", "{}", "--config", "[]"), 2, "--config must be a JSON object"),
        (("run", "create", "nobody", "{}"), 4, "Assistant nobody not found"),
        (("run", "create", "greet", "{}", "--thread", "nowhere"), 4, "Thread nowhere not found"),
        (("run", "get", NOBODY), 4, f"Run {NOBODY} not found"),
        (("run", "watch", NOBODY), 4, f"Run {NOBODY} not found"),
        (("run", "wait", NOBODY), 4, f"Run {NOBODY} not found"),
        (("run", "cancel"), 2, "give run IDs or --status"),
        (("run", "cancel", "--status", "all"), 2, "--yes"),
        (("run", "ls", "--status", "done"), 2, "--status must be pending"),
        (("thread", "ls", "--metadata", "user"), 2, "key:value"),
        (("thread", "cancel", "nowhere"), 4, "Thread nowhere not found"),
        (("thread", "delete", "nowhere", "--yes"), 4, "Thread nowhere not found"),
        (("why", "nothing"), 4, "Nothing in this namespace has the id nothing"),
        (("webhook", "ls", "--status", "lost"), 2, "--status must be pending"),
        (("outbox", "ls", "--state", "dead"), 2, "--state must be pending"),
        (("outbox", "retry"), 2, "give an ENTRY_ID or --dead"),
    ],
)
def test_what_is_wrong_is_said(server: Server, arguments: tuple[str, ...], code: int, words: str) -> None:
    ended = server.run(*arguments)
    told = re.sub(r"[\s│]+", " ", ended.stderr)
    assert (ended.returncode, ended.stdout) == (code, ""), ended
    assert words in told


@pytest.mark.parametrize("command", ["run ls", "thread ls", "assistant ls", "webhook ls", "why x", "stats"])
def test_a_server_that_is_away_is_said_to_be(tmp_path: Path, command: str) -> None:
    ended = run_here(tmp_path, *command.split(), more=UNREACHABLE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "perdure dev" in ended.stderr
