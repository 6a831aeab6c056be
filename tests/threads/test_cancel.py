"""Cancelling one or many runs, in any stage, with and without waiting for the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kernel.support import soon
from tests.threads.support import World

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.threads.records import CancelAction

ACTIONS: dict[CancelAction, str] = {"interrupt": "interrupted", "rollback": "rollback"}


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_pending_run_is_cancelled(world: World, action: CancelAction) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    cancelled = await world.threads.cancel_run(run.run_id, action=action, wait=True)
    assert cancelled.status == ACTIONS[action]
    assert cancelled.ended_at is not None
    assert await world.rest(thread) == "idle"
    control, end = await world.events(run.run_id)
    assert (control.event, decode_json(control.body)) == ("control", {"message": action})
    assert end.event == "end"
    await world.idle()


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_delayed_run_is_cancelled_before_its_time(world: World, action: CancelAction) -> None:
    thread = await world.thread()
    run = await world.run(thread, after_seconds=100)
    await world.threads.cancel_run(run.run_id, action=action)
    assert await world.rest(thread) == "idle"
    await world.advance(150)
    await world.idle()


async def test_a_running_run_ends_at_once(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.save(held, "half")
    assert (await world.threads.cancel_run(run.run_id)).status == "interrupted"
    assert await world.rest(thread) == "interrupted"
    assert await world.values(thread) == "half"
    await world.finish(held, "stopped")
    assert await world.rest(thread) == "interrupted"
    assert await world.kept(thread) == ["half"]


async def test_waiting_for_the_executor_to_stop(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    waiting = asyncio.create_task(world.threads.cancel_run(run.run_id, wait=True))
    assert await soon(world.queue.controls([held], 20)) == {run.run_id: "interrupt"}
    assert not waiting.done()
    await world.finish(held, "stopped")
    assert (await soon(waiting)).status == "interrupted"


async def test_waiting_for_an_executor_that_is_gone(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    waiting = asyncio.create_task(world.threads.cancel_run(run.run_id, action="rollback", wait=True))
    await soon(world.queue.controls([held], 20))
    await world.advance(50)
    assert (await soon(waiting)).status == "rollback"


async def test_what_has_ended_is_not_cancelled(world: World) -> None:
    run = await world.run(await world.thread())
    await world.done(run)
    for _ in range(2):
        with pytest.raises(Conflict, match="has ended already: success"):
            await world.threads.cancel_run(run.run_id)
    with pytest.raises(NotFound):
        await world.threads.cancel_run("no-run")
    with pytest.raises(InvalidInput, match="action"):
        await world.threads.cancel_run(run.run_id, action="stop")  # type: ignore[arg-type]


async def test_a_cancel_is_final(world: World) -> None:
    run = await world.run(await world.thread())
    await world.threads.cancel_run(run.run_id)
    with pytest.raises(Conflict, match="interrupted"):
        await world.threads.cancel_run(run.run_id, action="rollback")


async def test_of_two_cancels_at_once_one_wins(world: World) -> None:
    run = await world.run(await world.thread())
    await world.take(run)
    others = world.others(4)
    answers = await asyncio.gather(
        *(other.cancel_run(run.run_id) for other in others), return_exceptions=True
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 3


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("pending", ["running", "interrupted", "interrupted"]),
        ("running", ["interrupted", "pending", "pending"]),
        ("all", ["interrupted"] * 3),
        (None, ["interrupted"] * 3),
    ],
)
async def test_many_by_their_status(world: World, status: Any, expected: list[str]) -> None:
    thread = await world.thread()
    runs = [await world.run(thread, "enqueue") for _ in range(3)]
    await world.take(runs[0])
    ended = await world.threads.cancel_runs(status=status)
    assert await world.statuses(thread) == expected
    assert {run.run_id for run in ended} == {
        run.run_id for run, now in zip(runs, expected, strict=True) if now == "interrupted"
    }
    assert await world.threads.cancel_runs(status="all", thread_id="nowhere") == []


async def test_many_of_a_thread_or_by_their_ids(world: World) -> None:
    first, second = await world.thread(), await world.thread()
    runs = [await world.run(thread, "enqueue") for thread in (first, first, second, second)]
    await world.threads.cancel_runs(thread_id=first, action="rollback")
    assert await world.statuses(first) == ["rollback"] * 2
    assert await world.statuses(second) == ["pending"] * 2
    named = [runs[0].run_id, runs[2].run_id, "no-run"]
    ended = await world.threads.cancel_runs(run_ids=named)
    assert [run.run_id for run in ended] == [runs[2].run_id]
    assert await world.threads.cancel_runs(thread_id=first, run_ids=[runs[3].run_id]) == []
    with pytest.raises(InvalidInput, match="status"):
        await world.threads.cancel_runs(status="success")  # type: ignore[arg-type]


async def test_whoever_waits_for_a_cancelled_run_is_told(world: World) -> None:
    thread = await world.thread(values="so far")
    run = await world.run(thread)
    waiting = asyncio.create_task(world.threads.join_run(run.run_id))
    await asyncio.sleep(0)
    await world.threads.cancel_run(run.run_id)
    end = await soon(waiting)
    assert (end.run.status, end.values) == ("interrupted", "so far")


async def test_waiting_has_an_end(world: World) -> None:
    run = await world.run(await world.thread())
    with pytest.raises(TimeoutError, match=run.run_id):
        await world.threads.join_run(run.run_id, 0)
    with pytest.raises(NotFound):
        await world.threads.join_run("no-run", 0)
