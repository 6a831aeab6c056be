"""The program of docs/differences.md: agentlightning's Trainer with our server as its store.

It runs in the peer's environment; then our commands show the rewards of its rollouts.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.environments import ROOT

PAGE = ROOT / "docs" / "differences.md"
PROGRAM = re.compile(r"^```text\n(# train\.py\n.*?)^```$", re.MULTILINE | re.DOTALL)
NAMESPACE = "trainer"
SECONDS = 300.0
REWARDS = {"yes": 1.0, "no": 0.0}


def program() -> str:
    """The program that the page shows."""
    found = PROGRAM.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"{PAGE.name} has no train.py"
    return found[1]


def train(python: str, url: str, key: str) -> None:
    """Run the program against a server."""
    store = {"STORE_URL": f"http://{NAMESPACE}:{key}@{urlsplit(url).netloc}"}
    with tempfile.TemporaryDirectory(prefix="perdure-trainer-") as folder:
        (Path(folder) / "train.py").write_text(program(), encoding="utf-8")
        ended = subprocess.run(
            [python, "train.py"],
            cwd=folder, env=os.environ | store, stdin=subprocess.DEVNULL, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-2000:]


def perdure(url: str, key: str, *command: str) -> Any:
    """What a command of ours prints as JSON."""
    place = ["--url", url, "--namespace", NAMESPACE, "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *command, *place],
        env=os.environ | {"PERDURE_TOKEN": key}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout)


def check(python: str, url: str, key: str) -> None:
    """Every task has succeeded, and its reward is shown."""
    train(python, url, key)
    found = perdure(url, key, "rollout", "list")["items"]
    assert [each["status"] for each in found] == ["succeeded"] * len(REWARDS), found
    assert {each["input"]["question"]: each.get("reward") for each in found} == REWARDS, found


def main(python: str, targets: list[str]) -> None:
    """Each target is an engine and the URL of a server on it."""
    for target in targets:
        engine, _, url = target.partition("=")
        started, error = time.monotonic(), None
        try:
            check(python, url, os.environ["PERDURE_CONFORMANCE_KEY"])
        except (AssertionError, subprocess.TimeoutExpired) as failed:
            error = str(failed)
        seconds = time.monotonic() - started
        result = {"check": "the Trainer with an external store, its rewards shown", "error": error}
        print(json.dumps({"engine": engine, "seconds": seconds, **result}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
