"""The graphs of the zoo in this process, with LangGraph's own checkpointer, to compare with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

PROGRAM = """
import asyncio, json, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = [".", "src"]
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from perdure.agents.loading import import_target


def plain(value):
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


async def main():
    results = []
    for path, *steps in json.load(sys.stdin):
        graph = import_target(path).copy({"checkpointer": InMemorySaver(), "store": InMemoryStore()})
        config = {"configurable": {"thread_id": "here"}}
        for step in steps:
            given = Command(resume=step["resume"]) if "resume" in step else step["input"]
            ended = await graph.ainvoke(given, config)
        results.append(ended)
    print(json.dumps(results, default=plain))

asyncio.run(main())
"""


def run_here(folder: Path, calls: list[Any]) -> list[Any]:
    """The final values of graphs, each given as its path and its steps (an input, or what resumes it)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        input=msgspec.json.encode(calls),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: list[Any] = msgspec.json.decode(done.stdout)
    return found
