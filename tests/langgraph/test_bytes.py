"""Size of a graph run in the database: everything is stored once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypedDict

import apsw
import pytest
from langgraph.graph import END, START, StateGraph

from perdure import Agents, Perdure
from perdure.worker import emitter

RUNS = 40
MOST = 6_000
"""Return the bytes in all tables and indexes, without empty space in pages."""


class State(TypedDict):
    number: int


def _noop(state: State) -> dict[str, Any]:
    return {"number": state["number"]}


def _stored(path: Path) -> int:
    with apsw.Connection(str(path)) as database:
        ((size,),) = database.execute("SELECT sum(payload) FROM dbstat")
    return int(size)


async def test_a_run_of_a_graph_that_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing is stored before the end, even on a busy machine.
    monkeypatch.setattr(emitter, "LINGER_SECONDS", 60.0)
    monkeypatch.setattr(emitter, "CROWDED_SECONDS", 60.0)
    path = tmp_path / "bytes.db"
    builder = StateGraph(State).add_node("noop", _noop).add_edge(START, "noop").add_edge("noop", END)
    agents = Agents()
    agents.register("noop", builder.compile())

    async def run(count: int) -> list[str]:
        """Run the graph a number of times. Spans are stored when the program ends."""
        async with Perdure(f"sqlite:///{path}", agents=agents) as perdure:

            async def one(number: int) -> str:
                thread = await perdure.threads.create_thread()
                end = await perdure.run("noop", {"number": number}, thread_id=thread.thread_id)
                assert end.values == {"number": number}
                return thread.thread_id

            return await asyncio.gather(*map(one, range(count)))

    await run(2)
    before = _stored(path)
    threads = await run(RUNS)
    each = (_stored(path) - before) / RUNS
    assert 1_000 < each < MOST
    async with Perdure(f"sqlite:///{path}") as perdure:
        history = await perdure.threads.history(threads[0])
    assert [(state.metadata["step"], state.values) for state in history] == [
        (1, {"number": 0}),
        (0, {"number": 0}),
        (-1, {}),
    ]
