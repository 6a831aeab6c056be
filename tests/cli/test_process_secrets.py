"""The output of /proc for perdure's processes never contains a secret."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.hosting.process_secrets import (
    encode_secrets,
    mask_arguments,
    receive_secrets,
    split_environment,
)

from .command import COMMAND, Server, perdure, settings
from .test_supervisor import children_of

KEY, WEBHOOKS, TOKEN = "the-key-of-the-server", "the-secret-of-webhooks", "the-token-of-the-worker"
MARKS = (KEY.encode(), WEBHOOKS.encode(), TOKEN.encode(), b"its-password")
SECRETS = {"PERDURE_API_KEY": KEY, "PERDURE_WEBHOOK_SECRET": WEBHOOKS}
PATIENCE = 60.0
AGENT = """
import ctypes, os

async def tell(ctx, input):
    return {"dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), "key": os.environ["PERDURE_API_KEY"]}
"""
EMBEDDED = """
import asyncio, ctypes
from pathlib import Path
from perdure import Agents, Perdure

async def main():
    async with Perdure("memory:", agents=Agents()):
        shown = Path("/proc/self/environ").read_text()
        print("key-of-the-program" in shown, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))

asyncio.run(main())
"""


def shown_of(pid: int) -> bytes:
    """Return the environment and the arguments of a process from /proc; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def marks_of(pid: int) -> list[bytes]:
    shown = shown_of(pid)
    return [mark for mark in MARKS if mark in shown]


def asks(server: Server, secret: str = KEY) -> int:
    return server.run("token", "list", more={"PERDURE_TOKEN": secret}).returncode


def test_the_marks_are_seen_where_they_are_not_hidden() -> None:
    command, pipe = [sys.executable, "-c", "print('started', flush=True); input()"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=SECRETS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        assert marks_of(process.pid) == [KEY.encode(), WEBHOOKS.encode()]
        process.communicate(b"\n")


def test_a_server_shows_no_secret_and_keeps_it_through_sighup(tmp_path: Path) -> None:
    with Server(tmp_path, "serve", more=SECRETS, popen=subprocess.Popen) as server:
        assert marks_of(server.process.pid) == []
        assert asks(server) == 0
        server.process.send_signal(signal.SIGHUP)
        seen = ""
        while "reload" not in seen:
            assert server.process.stderr is not None
            line = server.process.stderr.readline()
            assert line, seen
            seen += line
        assert asks(server) == 0
        assert asks(server, "a-key-that-is-wrong") == 1
        assert marks_of(server.process.pid) == []
    assert "failed" not in seen
    assert server.end() == 0


def test_no_process_of_several_shows_one_at_any_time(tmp_path: Path, database_url: str) -> None:
    """Also while a killed process is replaced, when other processes execute commands."""
    arguments = ("--workers", "2", "--database", database_url)
    with Server(tmp_path, "serve", *arguments, more=SECRETS, popen=subprocess.Popen) as server:
        before = children_of(server.process.pid)
        assert [marks_of(pid) for pid in (server.process.pid, *before)] == [[], [], []]
        seen: dict[int, set[bytes]] = {}
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                for entry in Path("/proc").glob("[0-9]*"):
                    pid = int(entry.name)
                    if pid not in before and is_child(pid, server.process.pid):
                        seen.setdefault(pid, set()).update(marks_of(pid))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            os.kill(before[0], signal.SIGKILL)
            deadline = time.monotonic() + PATIENCE
            while len(replaced := set(children_of(server.process.pid)) - set(before)) < 1:
                assert time.monotonic() < deadline
            # Stop the remaining process, so that the new one answers.
            os.kill(before[1], signal.SIGKILL)
            while server.get("/readyz")[0] != 200 or asks(server) != 0:
                assert time.monotonic() < deadline
        finally:
            done.set()
            watching.join()
        assert replaced <= seen.keys()
        assert set().union(*seen.values()) == set()
        assert asks(server) == 0


def is_child(pid: int, parent: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(parent)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_shows_no_token(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    with Server(tmp_path, "serve", "--no-worker", more=SECRETS, popen=subprocess.Popen) as server:
        created = server.json("token", "create", "w", "--scope", "admin", more={"PERDURE_TOKEN": KEY})
        worker = subprocess.Popen(
            [*COMMAND, "worker", "--agents", "./agent.py:tell", "--url", server.url, "--json"],
            cwd=tmp_path,
            env=settings(tmp_path, {"PERDURE_TOKEN": created["secret"], **SECRETS}),
            stdout=subprocess.PIPE,
        )
        with worker:
            assert worker.stdout is not None
            assert worker.stdout.readline()
            shown = shown_of(worker.pid)
            worker.terminate()
    assert shown
    assert created["secret"].encode() not in shown
    assert not [mark for mark in MARKS if mark in shown]


def test_a_server_in_the_background_shows_none_after_a_start_and_a_restart(tmp_path: Path) -> None:
    for command in ("start", "restart"):
        port = ["--port", "0"] if command == "start" else []
        begun = perdure(tmp_path, command, *port, "--json", more=SECRETS)
        assert begun.returncode == 0, begun.stderr
        facts = json.loads(begun.stdout)
        assert marks_of(facts["pid"]) == []
        given = {"PERDURE_URL": facts["url"], "PERDURE_TOKEN": KEY}
        assert perdure(tmp_path, "token", "list", more=given).returncode == 0
        assert perdure(tmp_path, "token", "list", more={"PERDURE_URL": facts["url"]}).returncode == 1
    assert perdure(tmp_path, "stop").returncode == 0


@pytest.mark.parametrize(("value", "dumpable"), [("false", 0), ("true", 1)])
def test_debuggers_are_forbidden_unless_a_setting_allows_them(
    value: str, dumpable: int, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    more = {**SECRETS, "PERDURE_ALLOW_CORE_DUMPS": value}
    with Server(
        tmp_path, "serve", "--agents", "./agent.py:tell", more=more, popen=subprocess.Popen
    ) as server:
        result = server.json("run", "create", "tell", "{}", "--wait", more={"PERDURE_TOKEN": KEY})
    assert values_of(result) == {"dumpable": dumpable, "key": KEY}


def values_of(result: Any) -> Any:
    return result.get("values", result.get("output", result)) if isinstance(result, dict) else result


def test_a_program_that_embeds_it_is_not_changed(tmp_path: Path) -> None:
    environment = settings(tmp_path, {"PERDURE_API_KEY": "key-of-the-program"})
    command = [sys.executable, "-c", EMBEDDED]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "1"]


def test_a_password_in_the_arguments_is_masked() -> None:
    url = "postgresql://ann:its-password@127.0.0.1:1/none"
    block = f"perdure\0serve\0--database\0{url}\0--json\0".encode()
    masked = mask_arguments(block)
    assert len(masked) == len(block)
    assert b"its-password" not in masked
    assert masked.count(b"\0") == block.count(b"\0")
    assert mask_arguments(b"perdure\0serve\0\xff\0") == b"perdure\0serve\0\xff\0"
    assert len(mask_arguments(b"x://a:b@c\0token=a")) == len(b"x://a:b@c\0token=a")


def test_secrets_are_split_off_and_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PATH": "/bin", "PERDURE_API_KEY": KEY, "DATABASE_URL": "x" * 100_000, "PGPASSWORD": "p"}
    environment, secrets = split_environment(given)
    assert environment == {"PATH": "/bin"}
    assert {**environment, **secrets} == given
    for name in secrets:
        monkeypatch.setenv(name, "before")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=ours.sendall, args=(encode_secrets(secrets) + b"r",))
        sending.start()
        receive_secrets(theirs.fileno())
        sending.join()
        assert theirs.recv(10) == b"r"
    assert {name: os.environ[name] for name in secrets} == secrets


def test_the_environment_of_a_child_process_is_whole(tmp_path: Path) -> None:
    """Child processes of in-process agents get the variables that the server was started with."""
    code = (
        "import os, subprocess, sys\n"
        "from perdure.cli.hosting.process_secrets import hide_environment\n"
        "before = subprocess.run(['env', '-0'], capture_output=True).stdout\n"
        "hide_environment()\n"
        "after = subprocess.run(['env', '-0'], capture_output=True).stdout\n"
        "shown = open('/proc/self/environ', 'rb').read().strip(b'\\0')\n"
        "print(sorted(before.split(b'\\0')) == sorted(after.split(b'\\0')), shown)\n"
    )
    environment = settings(tmp_path, {"A": "1", "Ä": "ü", "EMPTY": "", **SECRETS})
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.stdout == "True b''\n", ended.stderr
