"""Removal of threads and runs: hidden at once, and deleted after waiting callers have their answers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.kernel.support import soon, until_true
from tests.threads.support import LINES, STATES, STEPS, World, told

from perdure.kernel.errors import NotFound
from perdure.kernel.storage.dialect import statement
from perdure.threads.operations import remove
from perdure.threads.records import Run, RunRequest

LEFT = (
    statement("SELECT id FROM threads WHERE ns = :ns"),
    statement("SELECT id FROM runs WHERE ns = :ns"),
    STATES,
    STEPS,
    LINES,
    statement("SELECT id FROM labels WHERE ns = :ns AND kind = 'thread'"),
    statement("SELECT stream FROM streams WHERE ns = :ns"),
    statement("SELECT stream FROM stream_events WHERE ns = :ns"),
    statement("SELECT stream FROM stream_links WHERE ns = :ns"),
)
ROLLOUTS = statement("SELECT id, status FROM rollouts WHERE ns = :ns ORDER BY id")
SPAN_ROWS = statement("SELECT rollout_id, name FROM spans WHERE ns = :ns")
ATTEMPT_ROWS = statement("SELECT rollout_id FROM attempts WHERE ns = :ns ORDER BY rollout_id")


async def left(world: World) -> list[object]:
    return [row for sql in LEFT for row in await world.rows(sql)]


async def purge(world: World) -> None:
    await world.advance(2000)
    await world.threads.purge()


async def gone(world: World, thread: str, *run_ids: str) -> None:
    """Assert that the thread and its runs are hidden."""
    with pytest.raises(NotFound):
        await world.threads.get_thread(thread)
    with pytest.raises(NotFound):
        await world.threads.list_runs(thread_id=thread)
    for run_id in run_ids:
        with pytest.raises(NotFound):
            await world.threads.get_run(run_id)
    listed = (await world.threads.list_runs(limit=100)).items
    assert not {run.run_id for run in listed} & set(run_ids)
    found = (await world.threads.search_threads(limit=100)).items
    assert thread not in {each.thread_id for each in found}


# --- threads ----------------------------------------------------------------------------------------------


async def test_a_thread_goes_with_everything_but_its_trace(world: World) -> None:
    thread = await world.thread(metadata={"a": 1}, values="start")
    ended = await world.run(thread)
    held = (await world.take(ended)).held
    await world.queue.append(held, told("custom"))
    await world.queue.keep(held, ended.run_id, "s", "1")
    await world.span(held, "seen")
    await world.finish(held, values="end")
    pending = await world.run(thread)
    await world.threads.delete_thread(thread)
    await gone(world, thread, ended.run_id, pending.run_id)
    with pytest.raises(NotFound):
        await world.threads.delete_thread(thread)
    await purge(world)
    assert await left(world) == []
    expected = sorted([(ended.run_id, "succeeded"), (pending.run_id, "cancelled")])
    assert await world.rows(ROLLOUTS) == expected
    assert await world.rows(ATTEMPT_ROWS) == [(ended.run_id,)]
    assert await world.rows(SPAN_ROWS) == [(ended.run_id, "seen")]


async def test_whoever_waits_for_a_run_of_a_deleted_thread_gets_its_values(world: World) -> None:
    thread = await world.thread(values="last")
    run = await world.run(thread)
    held = (await world.take(run)).held
    joining = asyncio.create_task(world.threads.join_run(run.run_id))
    reading = asyncio.create_task(world.names(run.run_id))
    await world.queue.append(held, told("metadata"))
    await world.threads.delete_thread(thread)
    end = await soon(joining)
    assert (end.run.status, end.values) == ("interrupted", "last")
    assert await soon(reading) == ["metadata", "control", "end"]
    assert (await world.threads.join_run(run.run_id)).values == "last"
    assert await world.queue.renew("w1", [held]) == ["interrupt"]
    await world.finish(held, "stopped")


async def test_a_thread_is_purged_while_somebody_still_executes_in_it(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    await world.take(run)
    await world.threads.delete_thread(thread)
    await world.storage.background(remove.purge, -1_000_000)
    assert await world.rows(LINES) == [(thread, run.run_id)]
    await world.thread(thread_id=thread)
    after = await world.run(thread)
    await world.idle()
    await world.advance(50)
    await world.done(after)


async def test_a_deleted_thread_can_be_made_anew(world: World) -> None:
    await world.thread(thread_id="mine", values="old", metadata={"a": 1})
    old = await world.run("mine")
    await world.threads.delete_thread("mine")
    await world.thread(thread_id="mine")
    assert (await world.threads.get_thread("mine")).values is None
    assert (await world.threads.search_threads(metadata={"a": 1})).items == []
    new = await world.run("mine")
    await world.done(new, values="new")
    with pytest.raises(NotFound):
        await world.threads.get_run(old.run_id)
    await purge(world)
    assert await world.values("mine") == "new"


async def test_a_deleted_thread_is_made_anew_by_a_run(world: World) -> None:
    thread = await world.thread(values="old")
    await world.threads.delete_thread(thread)
    with pytest.raises(NotFound):
        await world.run(thread)
    run = await world.run(thread, if_not_exists="create")
    assignment = await world.take(run)
    assert assignment.checkpoint is None
    await world.finish(assignment.held, values="new")
    await purge(world)
    assert await world.values(thread) == "new"


async def test_a_thread_that_is_made_anew_has_no_old_states(world: World) -> None:
    thread = await world.thread(values="old")
    state = await world.threads.get_state(thread)
    assert state is not None
    await world.threads.delete_thread(thread)
    with pytest.raises(NotFound):
        await world.run(thread, if_not_exists="create", checkpoint_id=state.checkpoint_id)


async def test_nothing_unknown_is_removed(world: World) -> None:
    with pytest.raises(NotFound):
        await world.threads.delete_thread("nowhere")
    with pytest.raises(NotFound):
        await world.threads.delete_run("no-run")
    assert await world.rows(LINES) == []


# --- runs -------------------------------------------------------------------------------------------------


async def test_deleting_a_pending_run_frees_its_thread(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    assert await world.rest(thread) == "busy"
    await world.threads.delete_run(run.run_id)
    assert await world.rest(thread) == "idle"
    await world.idle()
    await world.done(await world.run(thread))


async def test_deleting_one_of_two_pending_runs_leaves_the_thread_busy(world: World) -> None:
    thread = await world.thread()
    first, second = await world.run(thread), await world.run(thread, "enqueue")
    await world.threads.delete_run(first.run_id)
    assert await world.rest(thread) == "busy"
    await world.done(second)
    assert await world.rest(thread) == "idle"


async def test_a_deleted_run_takes_its_states_along(world: World) -> None:
    thread = await world.thread(values="before")
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.save(held, "half")
    await world.queue.keep(held, run.run_id, "s", "1")
    await world.finish(held, values="whole")
    await world.threads.delete_run(run.run_id)
    assert await world.values(thread) == "before"
    assert await world.kept(thread) == ["before"]
    assert await world.rows(STEPS) == []
    with pytest.raises(NotFound):
        await world.threads.delete_run(run.run_id)
    await purge(world)
    assert await world.rows(ROLLOUTS) == [(run.run_id, "succeeded")]
    assert (await world.threads.list_runs(thread_id=thread)).items == []


async def test_deleting_a_running_run_stops_it(world: World) -> None:
    thread = await world.thread(values="before")
    run, after = await world.run(thread), await world.run(thread, "enqueue")
    held = (await world.take(run)).held
    await world.save(held, "half")
    joining = asyncio.create_task(world.threads.join_run(run.run_id))
    await asyncio.sleep(0)
    await world.threads.delete_run(run.run_id)
    end = await soon(joining)
    assert (end.run.status, end.values) == ("rollback", "before")
    assert await world.queue.renew("w1", [held]) == ["rollback"]
    await world.idle()
    await world.finish(held, "stopped")
    assert await world.kept(thread) == ["before"]
    await world.done(after)


async def test_deleting_a_live_stateless_run_removes_it(world: World) -> None:
    run = await world.run(on_completion="delete")
    await world.threads.delete_run(run.run_id)
    await gone(world, run.thread_id, run.run_id)
    await purge(world)
    assert await left(world) == []


async def test_only_what_was_deleted_is_purged(world: World) -> None:
    thread = await world.thread()
    kept, dropped = await world.run(thread), await world.run(thread, "enqueue")
    await world.done(kept, values=1)
    await world.done(dropped, values=2)
    await world.threads.delete_run(dropped.run_id)
    await purge(world)
    assert [run.run_id for run in (await world.threads.list_runs()).items] == [kept.run_id]
    assert await world.names(kept.run_id) == ["end"]
    with pytest.raises(NotFound):
        await world.names(dropped.run_id)


async def test_what_was_deleted_lingers_for_a_while(world: World) -> None:
    run = await world.run(on_completion="delete")
    await world.done(run, values="mine")
    await world.advance(900)
    await world.threads.purge()
    assert (await world.threads.join_run(run.run_id)).values == "mine"
    await world.advance(200)
    await world.threads.purge()
    with pytest.raises(NotFound):
        await world.threads.join_run(run.run_id)


# --- stateless runs ---------------------------------------------------------------------------------------


async def test_a_temporary_run_that_succeeded_is_gone_after_its_end(world: World) -> None:
    run = await world.run(on_completion="delete")
    await _ends_with(world, run, "success")
    await gone(world, run.thread_id, run.run_id)
    await purge(world)
    assert await left(world) == []
    assert len(await world.rows(ROLLOUTS)) == 1


@pytest.mark.parametrize("result", ["error", "timeout"])
async def test_a_temporary_run_that_failed_is_found_and_its_thread_is_not(world: World, result: str) -> None:
    run = await world.run(on_completion="delete")
    await _ends_with(world, run, result)
    await purge(world)
    assert (await world.threads.get_run(run.run_id)).status == result
    listed = await world.threads.list_runs(status=result)
    assert ([each.run_id for each in listed.items], listed.total) == ([run.run_id], 1)
    assert (await world.names(run.run_id))[-1] == "end"
    with pytest.raises(NotFound):
        await world.threads.get_thread(run.thread_id)
    with pytest.raises(NotFound):
        await world.run(run.thread_id)
    with pytest.raises(NotFound):
        await world.threads.delete_thread(run.thread_id)
    await world.threads.create_thread(run.thread_id)
    with pytest.raises(NotFound):
        await world.threads.get_run(run.run_id)


async def _ends_with(world: World, run: Run, result: str) -> None:
    """End a run on a temporary thread while its caller waits for it and reads its stream."""
    assert run.temporary
    assert (await world.threads.search_threads()).items == []
    held = (await world.take(run)).held
    joining = asyncio.create_task(world.threads.join_run(run.run_id))
    reading = asyncio.create_task(world.names(run.run_id))
    await until_true(lambda: read_so_far(world, run.run_id))
    await world.finish(held, result, "mine")  # type: ignore[arg-type]
    end = await soon(joining)
    assert (end.run.status, end.values) == (result, "mine")
    assert (await soon(reading))[-1] == "end"


@pytest.mark.parametrize("result", ["success", "error"])
async def test_a_run_on_a_thread_of_its_own_is_kept(world: World, result: str) -> None:
    run = await world.run()
    assert not run.temporary
    held = (await world.take(run)).held
    await world.finish(held, result, "mine")  # type: ignore[arg-type]
    await purge(world)
    assert await world.values(run.thread_id) == "mine"
    assert await world.status(run) == result


async def test_totals_of_lists_are_those_of_runs_that_are_found(world: World) -> None:
    """Removed runs leave their rollouts as traces, which no list of runs shows or counts."""
    kept = await world.run()
    await world.done(kept)
    for _ in range(3):
        await world.done(await world.run(on_completion="delete"))
    for _ in range(2):
        await purge(world)
        for status in (None, "success"):
            listed = await world.threads.list_runs(status=status, total=True)
            assert ([each.run_id for each in listed.items], listed.total) == ([kept.run_id], 1)
    assert len(await world.rows(ROLLOUTS)) == 4


async def read_so_far(world: World, run_id: str) -> bool:
    return bool(await world.threads.get_run(run_id))


async def test_a_stateless_run_stays_while_it_is_tried_again(world: World) -> None:
    run = await world.run(on_completion="delete")
    held = (await world.take(run)).held
    await world.save(held, "half")
    await world.finish(held, "retriable")
    assert await world.status(run) == "pending"
    again = await world.take(run)
    assert again.checkpoint is not None
    assert again.checkpoint.values == "half"


async def test_a_cancelled_stateless_run_is_gone_too(world: World) -> None:
    run = await world.run(on_completion="delete")
    cancelled = await world.threads.cancel_run(run.run_id)
    assert cancelled.status == "interrupted"
    await gone(world, run.thread_id, run.run_id)


async def test_a_stateless_run_may_keep_its_thread(world: World) -> None:
    run = await world.run(on_completion="keep")
    assert not run.temporary
    await world.done(run, values="mine")
    assert await world.values(run.thread_id) == "mine"
    found = (await world.threads.search_threads()).items
    assert [thread.thread_id for thread in found] == [run.thread_id]
    await purge(world)
    assert await world.status(run) == "success"


async def test_a_thread_of_its_own_stays_while_another_run_is_in_it(world: World) -> None:
    run = await world.run(on_completion="delete")
    other = await world.run(run.thread_id, "enqueue")
    await world.done(run)
    assert await world.rest(run.thread_id) == "busy"
    await world.done(other)
    await gone(world, run.thread_id, run.run_id, other.run_id)


async def test_the_states_of_a_thread_stay_while_it_does(world: World) -> None:
    """A deleted run of its own thread has left a state from which the next run continues."""
    run = await world.run(on_completion="delete")
    held = (await world.take(run)).held
    await world.save(held, "first")
    await world.threads.create_run(
        RunRequest(assistant_id="echo", thread_id=run.thread_id, multitask_strategy="interrupt")
    )
    await world.finish(held, "stopped")
    await purge(world)
    found = await world.take()
    assert found.checkpoint is not None
    assert found.checkpoint.values == "first"
    await world.finish(found.held)
    await purge(world)
    assert await left(world) == []


async def test_many_stateless_runs_in_one_call(world: World) -> None:
    requests = [RunRequest(assistant_id="echo", input=number, on_completion="delete") for number in range(5)]
    runs = await world.threads.create_runs(requests)
    assert len({run.thread_id for run in runs}) == 5
    claimed = await world.claim()
    assert [each.run.kwargs.input for each in claimed] == list(range(5))
    await asyncio.gather(*(world.finish(each.held, values=1) for each in claimed))
    await purge(world)
    assert await left(world) == []


async def test_a_reader_that_comes_late_still_finds_the_stream(world: World) -> None:
    run = await world.run()
    await world.done(run)
    async with aclosing(world.threads.stream_run(run.run_id)) as bursts:
        names = [event.event async for burst in bursts for event in burst]
    assert names == ["end"]


async def test_what_has_many_rows_is_removed_in_several_transactions(
    lone_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lone_world
    monkeypatch.setattr(remove, "PURGE_WEIGHT", 1)
    for _ in range(3):
        thread = await world.thread()
        await world.done(await world.run(thread), {"n": 1})
        await world.threads.delete_thread(thread)
    await world.advance(120)
    counts = []
    while some := await world.storage.background(remove.purge, 0):
        counts.append(some)
    assert max(counts) <= 2, "one thread and one run at a time"
    assert await world.rows(STATES) == []
