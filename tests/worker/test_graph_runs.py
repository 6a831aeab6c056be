"""Graphs as runs of a real queue: stored, continued, rolled back, copied and removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.native.support import housed
from tests.worker.graph_agents import Graphs

from perdure.agents.commands import isolated
from perdure.checkpoints.records import CheckpointQuery
from perdure.checkpoints.service import StoredCheckpoints as GraphService
from perdure.client.run_queue import RemoteRunQueue
from perdure.embedding.perdure import Perdure
from perdure.kernel.errors import NotFound, StorageUnavailable
from perdure.runtime.components import build_worker
from perdure.runtime.stores import open_store
from perdure.threads.policy import Policy
from perdure.threads.records import RunCommand, RunRequest
from perdure.worker.options import WorkerOptions
from perdure.worker.registry import Agents
from perdure.worker.worker import RunWorker

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 30.0


@pytest.fixture
def graphs() -> Graphs:
    return Graphs()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    return str(request.getfixturevalue("database_url"))


@pytest.fixture
async def perdure(url: str, graphs: Graphs) -> AsyncIterator[Perdure]:
    async with Perdure(url, agents=graphs.agents, job_heartbeat=2.0) as opened:
        yield opened


async def thread_of(perdure: Perdure) -> str:
    return (await perdure.threads.create_thread()).thread_id


async def kept(perdure: Perdure, thread_id: str) -> int:
    """Count the checkpoints of a thread's graphs."""
    room = GraphService(perdure.threads.storage)
    return len(await room.find(CheckpointQuery(thread_id=thread_id)))


async def purge(perdure: Perdure) -> None:
    """Purge deleted rows."""
    perdure.threads.policy = Policy(linger=0.0)
    await perdure.threads.purge()


async def began(graphs: Graphs) -> None:
    assert await asyncio.to_thread(graphs.begun.wait, PATIENCE)


async def test_a_thread_shows_what_its_graph_has_done(perdure: Perdure) -> None:
    thread = await thread_of(perdure)
    end = await perdure.run("steps", {"said": ["0"]}, thread_id=thread)
    expected = {"said": ["0", "one", "two"], "messages": []}
    assert (end.run.status, end.values) == ("success", expected)
    shown = await perdure.threads.get_thread(thread)
    assert (shown.status, shown.values) == ("idle", expected)
    history = await perdure.threads.history(thread)
    assert [(each.next, each.metadata["step"], each.graph) for each in history] == [
        ([], 2, True),
        (["two"], 1, True),
        (["one"], 0, True),
        (["__start__"], -1, True),
    ]
    assert [each.values.get("said") for each in history] == [["0", "one", "two"], ["0", "one"], ["0"], None]
    found = await perdure.threads.search_threads(ids=[thread])
    assert found.items[0].values == expected


async def test_values_that_are_long_come_from_their_pieces(perdure: Perdure) -> None:
    thread = await thread_of(perdure)
    for number in range(6):
        end = await perdure.run("talks", {"said": [str(number)]}, thread_id=thread)
    assert [each["id"] for each in end.values["messages"]] == [str(number) for number in range(6)]
    again = await perdure.threads.get_thread(thread)
    assert again.values == end.values
    (latest, *_) = await perdure.threads.history(thread, limit=1)
    assert latest.values == end.values
    joined = await perdure.threads.join_run(end.run.run_id)
    assert joined.values == end.values


async def test_a_worker_that_is_cut_off_loses_its_graph_to_another(url: str, graphs: Graphs) -> None:
    async with Perdure(url, job_heartbeat=4.0) as perdure:
        app = perdure._opened
        cut_off = build_worker(app, graphs.agents, interval=0.1)

        async def unreachable(*args: Any) -> Any:
            raise StorageUnavailable

        # It never reports on the claimed run, as if it had died in the middle of its graph.
        cut_off._queue.renew = cut_off._queue.controls = unreachable  # type: ignore[method-assign, assignment]
        await cut_off.start()
        thread = await thread_of(perdure)
        request = RunRequest(assistant_id="slow", thread_id=thread, input={"said": ["0"]})
        run = await perdure.threads.create_run(request)
        await began(graphs)
        cut_off._queue.claim_now = unreachable  # type: ignore[method-assign, assignment]
        other = Graphs()
        other.go_on.set()
        worker = build_worker(app, other.agents)
        await worker.start()
        end = await perdure.threads.join_run(run.run_id, PATIENCE)
        await asyncio.gather(worker.stop(), cut_off.stop(0.0))
        graphs.go_on.set()
        assert (end.run.status, end.run.attempt) == ("success", 2)
        assert end.values["said"] == ["0", "one", "waited", "two"]
        assert (graphs.done, other.done) == (["one", "wait"], ["wait", "two"])


async def test_a_cancelled_run_leaves_the_steps_it_has_done(perdure: Perdure, graphs: Graphs) -> None:
    thread = await thread_of(perdure)
    request = RunRequest(assistant_id="slow", thread_id=thread, input={"said": ["0"]})
    run = await perdure.threads.create_run(request)
    await began(graphs)
    await perdure.threads.cancel_run(run.run_id, wait=True)
    left = await perdure.threads.get_thread(thread)
    assert (left.status, left.values["said"]) == ("interrupted", ["0", "one"])
    graphs.go_on.set()
    end = await perdure.run("slow", None, thread_id=thread)
    assert end.values["said"] == ["0", "one", "waited", "two"]
    assert graphs.done == ["one", "wait", "wait", "two"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_run_that_is_rolled_back_leaves_nothing(
    perdure: Perdure, graphs: Graphs, durability: str
) -> None:
    thread = await thread_of(perdure)
    await perdure.run("steps", {"said": ["0"]}, thread_id=thread)
    before, count = await perdure.threads.get_thread(thread), await kept(perdure, thread)
    request = RunRequest(
        assistant_id="slow", thread_id=thread, input={"said": ["x"]}, options={"durability": durability}
    )
    run = await perdure.threads.create_run(request)
    await began(graphs)
    await perdure.threads.cancel_run(run.run_id, action="rollback", wait=True)
    after = await perdure.threads.get_thread(thread)
    assert (after.values, after.checkpoint_id) == (before.values, before.checkpoint_id)
    assert await kept(perdure, thread) == count
    end = await perdure.run("steps", {"said": ["y"]}, thread_id=thread)
    assert end.values["said"] == ["0", "one", "two", "y", "one", "two"]


async def test_a_failure_keeps_what_was_done(perdure: Perdure) -> None:
    thread = await thread_of(perdure)
    end = await perdure.run("fails", {"said": ["0"]}, thread_id=thread)
    assert (end.run.status, end.run.error and end.run.error.error) == ("error", "ValueError")
    left = await perdure.threads.get_thread(thread)
    assert (left.status, left.values["said"]) == ("error", ["0", "one"])


async def test_threads_are_copied_and_removed_with_what_graphs_keep(perdure: Perdure) -> None:
    thread = await thread_of(perdure)
    await perdure.run("asks", {"said": ["0"]}, thread_id=thread)
    copy = (await perdure.threads.copy_thread(thread)).thread_id
    assert await kept(perdure, copy) == await kept(perdure, thread) > 0
    end = await perdure.run("asks", thread_id=copy, command=RunCommand(resume="yes"))
    assert (end.run.status, end.values["answer"]) == ("success", "yes")
    first = await perdure.threads.get_thread(thread)
    assert (first.status, "answer" in first.values) == ("interrupted", False)
    await perdure.threads.delete_thread(thread)
    await purge(perdure)
    assert await kept(perdure, thread) == 0
    assert (await perdure.threads.get_thread(copy)).values["answer"] == "yes"


async def test_a_run_is_deleted_with_its_checkpoints(perdure: Perdure) -> None:
    thread = await thread_of(perdure)
    await perdure.run("steps", {"said": ["0"]}, thread_id=thread)
    count = await kept(perdure, thread)
    end = await perdure.run("steps", {"said": ["x"]}, thread_id=thread)
    await perdure.threads.delete_run(end.run.run_id)
    assert await kept(perdure, thread) == count
    with pytest.raises(NotFound):
        await perdure.threads.get_run(end.run.run_id)
    assert (await perdure.threads.get_thread(thread)).values["said"] == ["0", "one", "two"]


async def test_a_temporary_run_leaves_nothing_behind(perdure: Perdure) -> None:
    end = await perdure.run("talks", {"said": ["x" * 5000]}, on_completion="delete")
    assert end.values["said"] == ["x" * 5000]
    await purge(perdure)
    assert await kept(perdure, end.run.thread_id) == 0


async def test_a_function_goes_on_from_what_a_graph_has_left(perdure: Perdure, graphs: Graphs) -> None:
    @graphs.agents.agent("counts")
    async def counts(ctx: Any, input: Any) -> Any:
        return {"said": [*(await ctx.load())["said"], "counted"]}

    thread = await thread_of(perdure)
    await perdure.run("talks", {"said": ["x" * 5000]}, thread_id=thread)
    worker = build_worker(perdure._opened, graphs.agents)
    await worker.start()
    end = await perdure.run("counts", thread_id=thread)
    assert end.values == {"said": ["x" * 5000, "counted"]}
    end = await perdure.run("steps", {"said": ["y"]}, thread_id=thread)
    await worker.stop()
    assert end.values["said"] == ["x" * 5000, "counted", "y", "one", "two"]


# --- other processes --------------------------------------------------------------------------------------


async def test_a_graph_behind_a_server(url: str, graphs: Graphs) -> None:
    async with open_store(url) as store, housed(store) as house:
        queue = RemoteRunQueue(house.visitor.url)
        worker = RunWorker(queue, graphs.agents, WorkerOptions(heartbeat=5.0, interval=1.0))
        await worker.start()
        try:
            thread = (await house.client.create_thread()).thread_id
            run = await house.client.create_run(
                RunRequest(assistant_id="nested", thread_id=thread, input={"said": ["0"]})
            )
            end = await house.client.join_run(run.run_id)
            assert (end.run.status, end.values["said"]) == ("success", ["0", "one"])
            assert [each.value for each in end.interrupts] == ["well?"]
            run = await house.client.create_run(
                RunRequest(assistant_id="nested", thread_id=thread, command=RunCommand(resume="yes"))
            )
            end = await house.client.join_run(run.run_id)
        finally:
            await worker.stop()
    assert (end.run.status, end.values["answer"], graphs.done) == ("success", "yes", ["one"])


async def test_a_graph_in_a_process_of_its_own(tmp_path: Path) -> None:
    agents = Agents()
    agents.register("counting", isolated("tests.worker.graph_agents:counting", directory=ROOT))
    async with Perdure(f"sqlite:///{tmp_path}/runs.db", agents=agents) as perdure:
        thread = await thread_of(perdure)
        end = await perdure.run("counting", {"count": 1}, thread_id=thread)
        assert (end.run.status, end.values) == ("success", {"count": 2})
        assert [each.value for each in end.interrupts] == ["well?"]
        end = await perdure.run("counting", thread_id=thread, command=RunCommand(resume="yes"))
        assert (end.run.status, end.values) == ("success", {"count": 2, "answer": "yes"})
