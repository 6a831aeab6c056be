"""Lines: one run at a time per thread, in order, however the first run ends."""

from __future__ import annotations

import asyncio

from tests.threads.support import LINES, World

from perdure.threads.records import RunRequest


async def test_the_runs_of_a_thread_go_one_after_the_other(world: World) -> None:
    thread = await world.thread()
    runs = [await world.run(thread, "enqueue") for _ in range(3)]
    for number, run in enumerate(runs):
        held = (await world.take(run)).held
        await world.idle()
        assert await world.rest(thread) == "busy"
        await world.finish(held, values=number)
    await world.idle()
    assert await world.statuses(thread) == ["success"] * 3
    assert await world.rest(thread) == "idle"
    assert await world.kept(thread) == [0, 1, 2]


async def test_threads_do_not_wait_for_each_other(world: World) -> None:
    threads = [await world.thread() for _ in range(4)]
    for thread in threads * 2:
        await world.run(thread, "enqueue")
    first = await world.claim()
    assert [each.run.thread_id for each in first] == threads
    await world.finish(first[2].held)
    (second,) = await world.claim()
    assert second.run.thread_id == threads[2]


async def test_runs_of_one_batch_keep_their_order(world: World) -> None:
    thread = await world.thread()
    request = RunRequest(assistant_id="echo", thread_id=thread, multitask_strategy="enqueue")
    runs = await world.threads.create_runs([request] * 5)
    assert [run.run_id for run in runs] == [
        run.run_id for run in reversed((await world.threads.list_runs(thread_id=thread)).items)
    ]
    for run in runs:
        await world.done(run)


async def test_runs_asked_for_at_once_all_run(world: World) -> None:
    thread = await world.thread()
    made = await asyncio.gather(*(world.run(thread, "enqueue") for _ in range(10)))
    seen = []
    for _ in made:
        assignment = await world.take()
        seen.append(assignment.run.run_id)
        await world.finish(assignment.held)
    assert sorted(seen) == sorted(run.run_id for run in made)


async def test_the_more_important_run_goes_first(world: World) -> None:
    thread = await world.thread()
    first = await world.run(thread)
    low, high = await world.run(thread, "enqueue"), await world.run(thread, "enqueue", priority=5)
    for run in (first, high, low):
        await world.done(run)


async def test_a_delayed_run_is_overtaken(world: World) -> None:
    thread = await world.thread()
    late = await world.run(thread, after_seconds=100)
    assert late.status == "pending"
    assert await world.rest(thread) == "busy"
    await world.idle()
    quick = await world.run(thread, "enqueue")
    await world.done(quick)
    await world.idle()
    assert await world.rest(thread) == "busy"
    await world.advance(150)
    await world.done(late)


async def test_a_delayed_run_is_listed_by_the_time_it_is_for(world: World) -> None:
    thread = await world.thread()
    late = await world.run(thread, after_seconds=100)
    soon = await world.run(thread, "enqueue")
    listed = (await world.threads.list_runs(thread_id=thread)).items
    assert [run.run_id for run in listed] == [late.run_id, soon.run_id]
    assert late.created_at - soon.created_at > 90


async def test_a_delayed_run_whose_time_comes_waits_for_the_one_in_front(world: World) -> None:
    thread = await world.thread()
    late = await world.run(thread, after_seconds=20)
    quick = await world.run(thread, "enqueue")
    held = (await world.take(quick)).held
    last = await world.run(thread, "enqueue", after_seconds=30)
    await world.advance(40)
    await world.idle()
    await world.finish(held)
    await world.done(late)
    await world.done(last)


async def test_a_run_that_waits_for_a_retry_keeps_its_place(world: World) -> None:
    thread = await world.thread()
    first = await world.run(thread)
    second = await world.run(thread, "enqueue", priority=9)
    held = (await world.take(first)).held
    retried = await world.finish(held, "retriable", retry_after=100.0)
    assert retried.status == "pending"
    await world.idle()
    assert await world.rest(thread) == "busy"
    await world.advance(150)
    await world.done(first)
    await world.done(second)


async def test_a_run_that_is_given_back_keeps_its_place(world: World) -> None:
    thread = await world.thread()
    first, second = await world.run(thread), await world.run(thread, "enqueue")
    await world.queue.hand_back([(await world.take(first)).held])
    await world.done(first)
    await world.done(second)


async def test_the_line_is_released_by_the_executor_that_stops(world: World) -> None:
    thread = await world.thread()
    first, second = await world.run(thread), await world.run(thread, "enqueue")
    held = (await world.take(first)).held
    await world.threads.cancel_run(first.run_id)
    await world.idle()
    assert await world.rows(LINES) == [(thread, first.run_id)]
    assert (await world.finish(held, "stopped")).status == "interrupted"
    await world.done(second)


async def test_the_line_is_released_when_the_grace_has_passed(world: World) -> None:
    thread = await world.thread()
    first, second = await world.run(thread), await world.run(thread, "enqueue")
    await world.take(first)
    await world.threads.cancel_run(first.run_id)
    await world.advance(10)
    await world.idle()
    await world.advance(25)
    await world.done(second)


async def test_a_cancelled_run_that_nobody_executes_holds_nobody_up(world: World) -> None:
    thread = await world.thread()
    first, second = await world.run(thread), await world.run(thread, "enqueue")
    await world.threads.cancel_run(first.run_id)
    await world.done(second)


async def test_a_run_in_back_off_that_is_cancelled_holds_nobody_up(world: World) -> None:
    thread = await world.thread()
    first, second = await world.run(thread), await world.run(thread, "enqueue")
    await world.finish((await world.take(first)).held, "retriable", retry_after=100.0)
    await world.threads.cancel_run(first.run_id)
    await world.done(second)


async def test_one_that_leaves_the_middle_of_a_line_changes_nothing_for_the_rest(world: World) -> None:
    thread = await world.thread()
    runs = [await world.run(thread, "enqueue") for _ in range(4)]
    await world.threads.cancel_run(runs[1].run_id)
    for run in (runs[0], runs[2], runs[3]):
        await world.done(run)


async def test_an_unknown_thread_leaves_no_line_behind(world: World) -> None:
    for name in ("nowhere", "neither"):
        answer = await asyncio.gather(world.run(name), return_exceptions=True)
        assert isinstance(answer[0], Exception)
    assert await world.rows(LINES) == []
