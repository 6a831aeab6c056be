"""Graphs and commands as real runs, with a database, a worker and threads."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from perdure.agents.commands import Command
from perdure.embedding.perdure import Perdure
from perdure.worker.registry import Agents

SPEAKER = str(Path(__file__).parents[1] / "agents" / "speaker.py")


class State(TypedDict, total=False):
    count: int
    answer: str


class Counting:
    """Graph of two nodes. The second one asks a question, and fails a given number of times."""

    def __init__(self) -> None:
        self.failures = 0
        self.counted = 0

    def count(self, state: State) -> Any:
        self.counted += 1
        return {"count": state.get("count", 0) + 1}

    def ask(self, state: State) -> Any:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("gone")
        return {"answer": interrupt("go on?")}

    def builder(self) -> StateGraph[State]:
        builder = StateGraph(State)
        builder.add_node("count", self.count)
        builder.add_node("ask", self.ask)
        builder.add_edge(START, "count")
        builder.add_edge("count", "ask")
        return builder


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
async def perdure(counting: Counting, engine_url: str) -> AsyncIterator[Perdure]:
    agents = Agents()
    agents.register("graph", counting.builder())
    for way in ("talks", "fails", "kills_itself", "garbage", "asks"):
        agents.register(way, Command([sys.executable, SPEAKER, way]))
    async with Perdure(engine_url, agents=agents, jobs_per_worker=4) as opened:
        yield opened


async def test_a_graph_waits_for_a_person_and_goes_on(perdure: Perdure, counting: Counting) -> None:
    counting.failures = 1
    thread = (await perdure.threads.create_thread()).thread_id
    first = await perdure.run("graph", {"count": 1}, thread_id=thread)
    assert (first.run.status, first.run.attempt, first.values) == ("success", 2, {"count": 2})
    # The node before the failure did not run again.
    assert counting.counted == 1
    waiting = await perdure.threads.get_thread(thread)
    assert (waiting.status, [each.value for each in waiting.interrupts]) == ("interrupted", ["go on?"])

    second = await perdure.run("graph", thread_id=thread, command={"resume": "yes"})
    assert (second.run.status, second.values) == ("success", {"count": 2, "answer": "yes"})
    rested = await perdure.threads.get_thread(thread)
    assert (rested.status, rested.interrupts) == ("idle", [])
    third = await perdure.run("graph", {}, thread_id=thread)
    assert third.values["count"] == 3

    events = [event async for burst in perdure.threads.stream_run(first.run.run_id) for event in burst]
    assert {event.event for event in events} == {"metadata", "values", "end"}


async def test_an_assistant_brings_its_config(perdure: Perdure) -> None:
    made = await perdure.assistants.create("graph", config={"recursion_limit": 1}, name="short of breath")
    end = await perdure.run(made.assistant_id, {"count": 0})
    assert end.run.status == "error"
    assert end.run.error is not None
    assert end.run.error.error == "GraphRecursionError"


async def test_commands_as_runs(perdure: Perdure) -> None:
    thread = (await perdure.threads.create_thread()).thread_id
    end = await perdure.run("talks", {"x": 1}, thread_id=thread)
    assert end.run.status == "success"
    assert end.values["kept"]["result"] == "paid"
    for way, words in {
        "fails": "exited with 3",
        "kills_itself": "SIGKILL",
        "garbage": "not a message",
    }.items():
        end = await perdure.run(way)
        assert end.run.status == "error"
        assert end.run.error is not None
        assert words in end.run.error.message
    end = await perdure.run("asks", thread_id=thread)
    assert [each.value for each in end.interrupts] == ["really?"]
    end = await perdure.run("asks", thread_id=thread, command={"resume": "yes"})
    assert end.values == {"answer": {"type": "answer", "value": "yes"}}
