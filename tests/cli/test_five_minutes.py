"""The first five minutes, as in the README: a run survives the server that executes it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.test_docs import README, blocks_of

from .command import Server, settings, start

QUICK = {"BG_JOB_HEARTBEAT": "1", "BG_JOB_INTERVAL": "1"}
SERVING = ("serve", "--agents", "./agents.py:agents")


def write(folder: Path, name: str) -> str:
    """Write a file of the README, and return its text."""
    (text,) = [block.text for block in blocks_of(README) if block.text.startswith(f"# {name}\n")]
    (folder / name).write_text(text)
    return text


def test_an_unmodified_client_streams_on_over_a_killed_server(tmp_path: Path) -> None:
    write(tmp_path, "agents.py")
    program = write(tmp_path, "watch.py")
    first = Server(tmp_path, *SERVING, more=QUICK).__enter__()
    port = str(urlsplit(first.url).port)
    assert "input=100" in program
    shorter = program.replace("http://127.0.0.1:4747", first.url).replace("input=100", "input=20")
    watching = subprocess.Popen(
        [sys.executable, "-c", shorter],
        cwd=tmp_path,
        env=settings(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    seen = [watching.stdout.readline() for _ in range(4)]
    first.stop(signal.SIGKILL)
    with Server(tmp_path, *SERVING, "--port", port, more=QUICK):
        rest, errors = watching.communicate()
    assert (watching.returncode, errors) == (0, "")
    assert [int(line) for line in [*seen, *rest.splitlines()]] == list(range(1, 21))


def test_a_killed_server_ends_neither_the_run_nor_its_watcher(tmp_path: Path) -> None:
    write(tmp_path, "agents.py")
    first = Server(tmp_path, *SERVING, more=QUICK).__enter__()
    port = str(urlsplit(first.url).port)
    asking = ("run", "create", "count", "20", "--thread", "demo", "--new-thread", "--watch", "--json")
    watching = start(tmp_path, *asking, "--url", first.url, more={"PYTHONUNBUFFERED": "1"})
    assert watching.stdout is not None
    events: list[dict[str, Any]] = [json.loads(watching.stdout.readline()) for _ in range(4)]
    first.stop(signal.SIGKILL)
    run_id = events[0]["data"]["run_id"]
    with Server(tmp_path, *SERVING, "--port", port, more=QUICK) as second:
        rest, _ = watching.communicate()
        end = second.json("run", "wait", run_id)
    events += [json.loads(line) for line in rest.splitlines()]
    assert watching.returncode == 0
    assert [int(each["id"].partition("-")[2]) for each in events] == list(range(1, len(events) + 1))
    assert [each["data"]["attempt"] for each in events if each["event"] == "metadata"] == [1, 2]
    assert [each["data"] for each in events if each["event"] == "custom"] == list(range(1, 21))
    assert events[-1]["data"] == {"status": "success"}
    assert end["values"] == {"counted": 20}
