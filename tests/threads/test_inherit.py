"""Metadata that runs inherit, lists without rolled-back runs, and events of threads."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from tests.kernel.support import soon
from tests.threads.support import World
from tests.threads.test_removal import left, purge

from perdure.assistants.model import SYSTEM_METADATA, system_id
from perdure.kernel.errors import NotFound
from perdure.threads.operations.queries import RunSearch

MARKS = {"graph_id": "echo", "assistant_id": system_id("echo")}


async def test_metadata_is_a_runs_own_unless_it_inherits(world: World) -> None:
    thread = await world.thread(metadata={"a": 1, "b": 1})
    run = await world.run(thread, "enqueue", metadata={"b": 2})
    assert run.metadata == {"b": 2}
    assert (await world.threads.get_thread(thread)).metadata == {"a": 1, "b": 1}
    heir = await world.run(thread, "enqueue", metadata={"b": 2}, inherit_metadata=True)
    assert heir.metadata == {**SYSTEM_METADATA, "a": 1, "b": 2, **MARKS}
    assert (await world.threads.get_run(heir.run_id)).metadata == heir.metadata


async def test_a_thread_is_found_by_who_worked_on_it_last(world: World) -> None:
    thread = await world.thread(metadata={"a": 1})
    for agent in ("echo", "echo", "other"):
        await world.run(thread, "enqueue", assistant_id=agent, inherit_metadata=True)
        wanted = {"graph_id": agent, "a": 1}
        (found,) = (await world.threads.search_threads(metadata=wanted)).items
        assert found.metadata == {"a": 1, "graph_id": agent, "assistant_id": system_id(agent)}
    assert (await world.threads.search_threads(metadata={"graph_id": "echo"})).items == []


async def test_a_thread_that_is_made_with_its_run_is_marked_too(world: World) -> None:
    run = await world.run("new", if_not_exists="create", inherit_metadata=True)
    assert (await world.threads.get_thread("new")).metadata == MARKS
    assert run.metadata == {**SYSTEM_METADATA, **MARKS}
    (found,) = (await world.threads.search_threads(metadata=MARKS)).items
    assert found.thread_id == "new"


async def test_a_thread_that_ends_with_its_run_is_not_marked(world: World) -> None:
    run = await world.run(on_completion="delete", inherit_metadata=True)
    assert run.metadata == {**SYSTEM_METADATA, **MARKS}
    assert (await world.threads.get_thread(run.thread_id)).metadata == {}


async def test_a_list_may_leave_out_what_was_undone(world: World) -> None:
    thread = await world.thread()
    kept = await world.run(thread)
    undone = [await world.run(thread, "enqueue") for _ in range(3)]
    last = await world.run(thread, "enqueue")
    for run in undone:
        await world.threads.cancel_run(run.run_id, action="rollback")
    page = await world.threads.find_runs(RunSearch(thread, None, 1, 1, undone=False))
    assert [run.run_id for run in page.items] == [kept.run_id]
    assert page.total == 2
    whole = await world.threads.find_runs(RunSearch(thread, None, 10, 0, undone=False))
    assert [run.run_id for run in whole.items] == [last.run_id, kept.run_id]
    assert (await world.threads.list_runs(thread_id=thread)).total == 5


async def test_a_thread_tells_something_beside_its_runs(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    await world.threads.tell_thread(thread, "state_update", {"n": 1})
    await world.done(run)
    await world.threads.tell_thread(thread, "state_update", {"n": 2})
    names: list[str] = []
    async with aclosing(world.threads.stream_thread(thread, "-1")) as bursts:
        while len(names) < 3:
            names += [event.event for event in await soon(anext(bursts))]
    assert names == ["state_update", "end", "state_update"]
    await world.threads.delete_thread(thread)
    with pytest.raises(NotFound):
        await world.threads.tell_thread(thread, "state_update", {})
    await purge(world)
    assert await left(world) == []
