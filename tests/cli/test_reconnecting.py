"""Commands that watch, wait or create survive a server that is away, and one with a new secret."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.client.flaky import LOST_AFTER, LOST_BEFORE, FlakyServer

from perdure.cli.shell.remote import AWAY, PATIENCE_SECONDS
from perdure.client.outage import Outage
from perdure.client.session import HttpSession
from perdure.kernel.errors import NotFound, Unauthorized, Unreachable

from .command import Server, perdure, start

QUICK = {"BG_JOB_HEARTBEAT": "1", "BG_JOB_INTERVAL": "1", "PYTHONUNBUFFERED": "1"}
AGENTS = """
import asyncio
from pathlib import Path

from perdure import Agents

agents = Agents()


@agents.agent("waiting")
async def waiting(ctx, input):
    await ctx.emit("begun")
    while not Path(input).exists():
        await asyncio.sleep(0.05)
    return "released"
"""


def write_agents(folder: Path) -> tuple[str, ...]:
    (folder / "agents.py").write_text(AGENTS)
    return "serve", "--agents", "./agents.py:agents"


def test_watchers_outlast_a_kill_and_a_new_secret_of_a_server_with_tokens(tmp_path: Path) -> None:
    serving = write_agents(tmp_path)
    first = Server(tmp_path, *serving, more=QUICK).__enter__()
    first.run("token", "create", "somebody", "--scope", "read")
    target = "--url", first.url
    run = first.json("run", "create", "waiting", '"released"')
    created = ("run", "create", "waiting", '"released"', *target)
    watching = [
        start(tmp_path, "run", "watch", run["run_id"], "--json", *target, more=QUICK),
        start(tmp_path, *created, "--watch", "--json", more=QUICK),
        start(tmp_path, *created, "--wait", "--json", more=QUICK),
    ]
    for process in watching[:2]:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "metadata"
    while len(first.json("run", "list")["items"]) < len(watching):
        assert all(process.poll() is None for process in watching)
    first.stop(signal.SIGKILL)
    for process in watching:
        assert process.stderr is not None
        assert process.stderr.readline() == f"perdure: {AWAY}\n"
    with Server(tmp_path, *serving, "--port", str(urlsplit(first.url).port), more=QUICK):
        (tmp_path / "released").touch()
        ended: list[Any] = [process.communicate() for process in watching]
    assert [process.returncode for process in watching] == [0, 0, 0]
    assert [errors for _, errors in ended] == ["", "", ""]
    for output, _ in ended[:2]:
        assert json.loads(output.splitlines()[-1])["data"] == {"status": "success"}
    assert json.loads(ended[2][0])["values"] == "released"


async def test_a_create_whose_answer_was_lost_is_repeated_with_its_key(tmp_path: Path) -> None:
    with Server(tmp_path, *write_agents(tmp_path), more=QUICK) as server:
        (tmp_path / "released").touch()
        async with FlakyServer(server.url) as proxy:
            proxy.faults += [LOST_AFTER, LOST_BEFORE]
            ended = await asyncio.to_thread(
                perdure, tmp_path, "run", "create", "waiting", '"released"', "--json", "--url", proxy.url
            )
        assert (ended.returncode, ended.stderr) == (0, f"perdure: {AWAY}\n")
        assert proxy.counts["/api/v1/runs"] == 3
        assert len(set(proxy.keys)) == 1
        (only,) = (await asyncio.to_thread(server.json, "run", "list"))["items"]
        assert json.loads(ended.stdout)["run_id"] == only["run_id"]


@pytest.mark.parametrize("command", [("create", "waiting"), ("watch", "run-1"), ("wait", "run-1")])
def test_a_server_that_was_never_there_is_told_at_once(tmp_path: Path, command: tuple[str, str]) -> None:
    ended = perdure(tmp_path, "run", *command, "--url", "http://127.0.0.1:9")
    assert ended.returncode == 1
    assert "unreachable" in ended.stderr
    assert AWAY not in ended.stderr


# --- temporary errors, and their limits -------------------------------------------------------------------


def test_the_command_waits_at_least_five_minutes() -> None:
    assert PATIENCE_SECONDS >= 300


async def pauses(outage: Outage, *errors: Exception) -> None:
    for error in errors:
        await outage.pause(error)  # type: ignore[arg-type]


async def test_a_refusal_passes_only_while_a_new_secret_may_come() -> None:
    told: list[str] = []
    session = HttpSession("http://127.0.0.1:9", token=lambda: "secret")
    outage = Outage(session, 60.0, lambda: told.append("away"))
    with pytest.raises(Unauthorized):
        await outage.pause(Unauthorized())
    await pauses(outage, Unreachable(), Unauthorized(), Unreachable())
    assert told == ["away"]
    outage.end()
    with pytest.raises(Unauthorized):
        await outage.pause(Unauthorized())
    with pytest.raises(NotFound):
        await outage.pause(NotFound())
    fixed = Outage(HttpSession("http://127.0.0.1:9", token="fixed"), 60.0)
    await fixed.pause(Unreachable())
    with pytest.raises(Unauthorized):
        await fixed.pause(Unauthorized())
    impatient = Outage(session, 0.0)
    with pytest.raises(Unreachable):
        await impatient.pause(Unreachable())
