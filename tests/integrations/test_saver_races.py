"""Nothing that a step builds on is removed under it, whoever prunes, removes and copies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.integrations import programs
from tests.integrations.support import check_nothing_is_left_over, config_for, new_thread

from perdure.integrations.langgraph import PerdureSaver

STEPS = 60


@pytest.fixture
async def savers(engine_url: str) -> AsyncIterator[tuple[PerdureSaver, PerdureSaver]]:
    """Two that know nothing of each other; on PostgreSQL each has connections of its own."""
    async with PerdureSaver(engine_url) as one, PerdureSaver(engine_url) as other:
        yield one, other


async def _until_done(task: asyncio.Task[Any], action: Callable[[], Awaitable[None]]) -> None:
    while not task.done():
        await action()
        await asyncio.sleep(0)


def _check_whole(messages: list[Any]) -> None:
    assert [each.id for each in messages] == [f"m{number}" for number in range(len(messages))]


async def test_a_thread_is_pruned_and_copied_while_it_grows(
    savers: tuple[PerdureSaver, PerdureSaver],
) -> None:
    one, other = savers
    thread_id = new_thread()
    copies: list[str] = []

    async def disturb() -> None:
        await other.aprune([thread_id])
        copies.append(new_thread())
        await other.acopy_thread(thread_id, copies[-1])
        await other.aprune([copies[-1]])

    graph = programs.loop().compile(checkpointer=one)
    config = config_for(thread_id)
    config["recursion_limit"] = STEPS + 5
    running = asyncio.create_task(graph.ainvoke({"left": STEPS}, config))
    await _until_done(running, disturb)
    assert len((await running)["messages"]) == STEPS
    for each in (thread_id, *copies):
        async for found in other.alist(config_for(each)):
            _check_whole(found.checkpoint["channel_values"].get("messages", []))
    await other.aprune([thread_id])
    state = await graph.aget_state(config)
    assert len(state.values["messages"]) == STEPS
    for each in (thread_id, *copies):
        await asyncio.to_thread(check_nothing_is_left_over, other, each)


async def test_two_talk_in_one_thread(savers: tuple[PerdureSaver, PerdureSaver]) -> None:
    thread_id = new_thread()
    graphs = [programs.loop().compile(checkpointer=saver) for saver in savers]
    for turn in range(6):
        # Each knows what it wrote itself two turns ago, and finds what the other has added.
        await graphs[turn % 2].ainvoke({"left": 5}, config_for(thread_id))
    state = await graphs[0].aget_state(config_for(thread_id))
    _check_whole(state.values["messages"])
    assert len(state.values["messages"]) == 30


async def test_branches_of_one_past_at_once(savers: tuple[PerdureSaver, PerdureSaver]) -> None:
    thread_id = new_thread()
    graphs = [programs.loop().compile(checkpointer=saver) for saver in savers]
    await graphs[0].ainvoke({"left": 8}, config_for(thread_id))
    past = [each async for each in graphs[0].aget_state_history(config_for(thread_id))][3]
    ends = await asyncio.gather(*(graphs[n % 2].ainvoke(None, past.config) for n in range(6)))
    assert [len(end["messages"]) for end in ends] == [8] * 6
    async for found in savers[1].alist(config_for(thread_id)):
        _check_whole(found.checkpoint["channel_values"].get("messages", []))
