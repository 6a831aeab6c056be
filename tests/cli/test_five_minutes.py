"""The first five minutes, as the README tells them: a run outlives the server that executes it."""

import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.test_docs import README, blocks_of

from .command import Server, start

QUICK = {"BG_JOB_HEARTBEAT": "1", "BG_JOB_INTERVAL": "1"}


def test_a_killed_server_ends_neither_the_run_nor_its_watcher(tmp_path: Path) -> None:
    (agents,) = [block.text for block in blocks_of(README) if block.text.startswith("# agents.py\n")]
    (tmp_path / "agents.py").write_text(agents)
    serving = ("serve", "--agents", "./agents.py:agents")
    first = Server(tmp_path, *serving, more=QUICK).__enter__()
    port = str(urlsplit(first.url).port)
    asking = ("run", "create", "count", "20", "--thread", "demo", "--new-thread", "--watch", "--json")
    watching = start(tmp_path, *asking, "--url", first.url, more={"PYTHONUNBUFFERED": "1"})
    assert watching.stdout is not None
    events: list[dict[str, Any]] = [json.loads(watching.stdout.readline()) for _ in range(4)]
    first.stop(signal.SIGKILL)
    run_id = events[0]["data"]["run_id"]
    with Server(tmp_path, *serving, "--port", port, more=QUICK) as second:
        rest, _ = watching.communicate()
        end = second.json("run", "wait", run_id)
    events += [json.loads(line) for line in rest.splitlines()]
    assert watching.returncode == 0
    assert [int(each["id"].partition("-")[2]) for each in events] == list(range(1, len(events) + 1))
    assert [each["data"]["attempt"] for each in events if each["event"] == "metadata"] == [1, 2]
    assert events[-1]["data"] == {"status": "success"}
    assert end["values"] == {"counted": 20}
