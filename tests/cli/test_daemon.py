"""`perdure start`, `stop`, `status` and `restart`: a server in the background, and its PID file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import ROOT, Server, perdure, run_here

from perdure.cli.hosting.daemon import _end
from perdure.kernel.config import Settings
from perdure.kernel.files import is_alive

AGENTS = """
from perdure import Agents

agents = Agents()

@agents.agent("greet")
async def greet(ctx, input):
    return {"greeting": input}
"""


class Background:
    """The servers that a test starts in the background of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []

    def json(self, command: str, *arguments: str, code: int = 0) -> Any:
        """Return the --json output of a command."""
        ended = self._run(command, *arguments, "--json")
        assert ended.returncode == code, ended.stderr
        facts = json.loads(ended.stdout)
        if command in ("start", "restart"):
            self.pids.append(facts["pid"])
        return facts

    def _run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # A command that starts a server needs its own process, because the server is its child.
        run = perdure if command in ("start", "restart") else run_here
        return run(self.folder, command, *arguments)

    def refused(self, command: str, *arguments: str, code: int = 1) -> str:
        """Return the single error line of a failing command."""
        ended = self._run(command, *arguments)
        assert (ended.returncode, ended.stdout) == (code, "")
        assert ended.stderr.count("\n") == 1
        return ended.stderr

    def files(self) -> set[str]:
        return {each.suffix for each in (self.folder / "perdure").iterdir()} - {".log"}

    def close(self) -> None:
        for pid in self.pids:
            _end(pid, signal.SIGKILL, 30)


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    made = Background(tmp_path)
    try:
        yield made
    finally:
        made.close()


def session_of(pid: int) -> tuple[int, str]:
    listing = subprocess.run(
        ["ps", "-o", "sid=,tty=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    session, terminal = listing.stdout.split()
    return int(session), terminal


def answers(url: str) -> bool:
    with urllib.request.urlopen(url + "/readyz") as answer:
        return bool(answer.status == 200)


def test_a_server_in_the_background_from_its_start_to_its_end(background: Background) -> None:
    (background.folder / "agents.py").write_text(AGENTS)
    assert background.json("status", code=4)["status"] == "stopped"
    options = ("--port", "0", "--agents", "./agents.py:agents")
    started = background.json("start", *options, "--api-key-file", str(key_in(background.folder)))
    pid, url = started["pid"], started["url"]
    # The server has its own session and no terminal, and logs to a file.
    assert session_of(pid) == (pid, "?")
    assert os.path.realpath(f"/proc/{pid}/fd/0") == os.devnull
    assert os.path.realpath(f"/proc/{pid}/fd/2") == started["log_file"]
    assert answers(url)
    assert Path(started["pid_file"]).read_text() == f"{pid}\n"
    assert Path(started["pid_file"]).parent.stat().st_mode & 0o077 == 0
    # A second start is refused with a hint.
    message = background.refused("start", "--port", "0")
    assert f"already running for sqlite:///perdure.db: process {pid} at {url}" in message
    assert "perdure restart" in message
    shown = background.json("status")
    names = ("status", "health", "pid", "agents")
    assert [shown[name] for name in names] == ["running", "ok", pid, ["greet"]]
    assert f"process    {pid}, for " in run_here(background.folder, "status").stdout
    # A restart keeps the options, from any directory.
    elsewhere = background.folder / "elsewhere"
    elsewhere.mkdir()
    surroundings = {name: str(background.folder) for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}
    database = f"sqlite:///{background.folder / 'perdure.db'}"
    again = perdure(elsewhere, "restart", "--database", database, "--json", more=surroundings)
    assert again.returncode == 0, again.stderr
    facts = json.loads(again.stdout)
    background.pids.append(facts["pid"])
    assert (facts["stopped"]["pid"], facts["agents"], facts["key_needed"]) == (pid, ["greet"], True)
    assert facts["pid"] != pid
    # Port 0 was kept: it is not the default.
    assert not facts["url"].endswith(f":{Settings().port}")
    # `stop` waits for the end, and leaves no file.
    stopped = background.json("stop")
    assert (stopped["pid"], stopped["forced"]) == (facts["pid"], False)
    until(lambda: not is_alive(facts["pid"]))
    assert background.files() == set()
    assert "not running" in background.refused("stop", code=4)
    log = Path(started["log_file"]).read_text()
    assert log.count("is running") == log.count("is stopped") == 2


def test_the_commands_of_the_page_run(background: Background) -> None:
    shutil.copytree(ROOT / "examples", background.folder / "examples")
    (background.folder / "perdure.toml").write_text("[perdure]\nport = 0\n")
    page = (ROOT / "docs" / "daemon.md").read_text(encoding="utf-8")
    block = page.partition("```sh\n")[2].partition("```")[0]
    for line in block.splitlines():
        words = shlex.split(line)[1:]
        # The port of the page may be taken on this machine.
        words = [word for word in words if word not in ("--port", "4747")]
        facts = background.json(*words)
        if words[0] == "start":
            (agents,) = re.findall(r"agents     (.+)", page)
            assert facts["agents"] == agents.split(", ")
        if words[0] == "restart":
            assert facts["agents"] == background.json("status")["agents"]


def key_in(folder: Path) -> Path:
    path = folder / "key"
    path.write_text("a-key-of-the-server-1")
    return path


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_killed_server_leaves_nothing_that_matters(
    background: Background, engine: str, request: pytest.FixtureRequest
) -> None:
    url = "sqlite:///perdure.db" if engine == "sqlite" else request.getfixturevalue("database_url")
    database = ("--database", url)
    first = background.json("start", "--port", "0", *database)
    if engine == "postgres":
        assert "already running" in background.refused("start", "--port", "0", *database)
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: not is_alive(first["pid"]))
    assert background.files() >= {".pid", ".json"}
    shown = background.json("status", *database, code=4)
    assert (shown["status"], shown["crashed_pid"]) == ("stopped", first["pid"])
    assert "ended without stopping properly" in run_here(background.folder, "status", *database).stdout
    # The pid has been reused, here by this process, which must survive.
    pid_file = Path(first["pid_file"])
    record = pid_file.with_suffix(".json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "pid": os.getpid()}))
    pid_file.write_text(str(os.getpid()))
    assert background.json("status", *database, code=4)["status"] == "stopped"
    assert "not running" in background.refused("stop", *database, code=4)
    second = background.json("start", "--port", "0", *database)
    assert answers(second["url"])
    assert background.json("stop", "--force", *database)["pid"] == second["pid"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_start_that_fails_ends_stopped(background: Background) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        message = background.refused("start", "--port", str(taken.getsockname()[1]))
    assert re.match(
        r"perdure: start_refused: the server cannot listen .* --port; 0 picks a free one", message
    )
    assert "there is no file" in background.refused("start", "--port", "0", "--agents", "./absent.py:agents")
    assert "0.0.0.0" in background.refused("start", "--port", "0", "--host", "0.0.0.0")
    nowhere = "postgresql://ann:hunter22@127.0.0.1:1/agents"
    message = background.refused("start", "--port", "0", "--database", nowhere)
    assert "storage_unavailable" in message
    assert "hunter22" not in message
    assert background.json("status", code=4)["status"] == "stopped"
    assert background.json("status", "--database", nowhere, code=4)["status"] == "stopped"
    assert background.files() <= {".lock"}


def test_a_server_in_the_foreground_has_a_pid_file_too(background: Background) -> None:
    with Server(background.folder, "start", "--foreground") as server:
        shown = background.json("status")
        assert (shown["pid"], shown["url"]) == (server.process.pid, server.url)
        assert background.json("stop")["pid"] == server.process.pid
        assert server.end() == 0
    assert background.files() == set()
    refused = run_here(background.folder, "start", "--foreground", "--log-file", "x.log")
    assert refused.returncode == 2


def test_a_server_of_serve_is_shown_and_left_alone(background: Background) -> None:
    with Server(background.folder, "serve") as server:
        shown = background.json("status")
        assert (shown["status"], shown["daemon"], shown["url"]) == ("running", False, server.url)
        assert "not started with `perdure start`" in background.refused("stop")
        assert server.url in background.refused("start", "--port", "0")
        assert answers(server.url)


def test_several_processes_in_the_background(background: Background, database_url: str) -> None:
    arguments = ("--workers", "2", "--database", database_url)
    started = background.json("start", "--port", "0", *arguments)
    assert started["workers"] == 2
    assert answers(started["url"])
    assert background.json("stop", "--database", database_url)["forced"] is False


def test_a_start_that_takes_too_long_is_stopped(background: Background) -> None:
    (background.folder / "slow.py").write_text("import time\ntime.sleep(600)\nagents = None\n")
    refused = background.refused("start", "--port", "0", "--agents", "./slow.py:agents", "--timeout", "2s")
    assert "not ready within 2 s" in refused
    assert background.json("status", code=4)["status"] == "stopped"


def test_a_server_that_dies_while_it_starts_is_reported(background: Background) -> None:
    (background.folder / "bad.py").write_text("import os\nos.abort()\n")
    ended = perdure(background.folder, "start", "--port", "0", "--agents", "./bad.py:agents")
    assert ended.returncode == 1
    assert "ended with signal SIGABRT before it was ready; see " in ended.stderr


def test_its_log_and_a_forced_end(background: Background) -> None:
    (background.folder / "perdure.toml").write_text('[perdure.agents]\nbad = "./absent.py:agent"\n')
    ended = perdure(background.folder, "start", "--port", "0", "--log-file", "server.log", "--json")
    started = json.loads(ended.stdout)
    background.pids.append(started["pid"])
    # The starting command shows the output of the server's start.
    assert "agent 'bad': there is no file" in ended.stderr
    # After a rotation, SIGHUP reopens the log.
    log = Path(started["log_file"])
    assert log == background.folder / "server.log"
    log.rename(log.with_suffix(".1"))
    os.kill(started["pid"], signal.SIGHUP)
    until(lambda: log.exists() and "reloaded log file" in log.read_text())
    # A hanging process is killed only with --force.
    os.kill(started["pid"], signal.SIGSTOP)
    refused = background.refused("stop", "--timeout", "0.1s", code=5)
    assert "perdure stop --force" in refused
    assert background.json("stop", "--timeout", "0.1s", "--force")["forced"] is True
    assert background.json("status", code=4)["status"] == "stopped"
