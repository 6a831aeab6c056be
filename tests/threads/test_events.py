"""Streams of runs and threads, as the runs write them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.kernel.support import soon
from tests.threads.support import World, told

from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.storage.dialect import statement
from perdure.streams.model import NewEvent, StreamEvent
from perdure.threads.records import Failure, NewCheckpoint
from perdure.threads.work import Ending

SPANS = statement("SELECT rollout_id, attempt_id FROM spans WHERE ns = :ns")


async def test_a_run_from_its_first_event_to_its_last(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    assert await world.queue.append(held, [NewEvent("metadata", '{"attempt":1}')]) == 1
    assert await world.queue.append(held, told("updates", "custom")) == 3
    await world.queue.save(held, NewCheckpoint(values=1), [NewEvent("values", "1")])
    last = Ending(held=held, result="success", events=told("values"))
    await world.queue.finish(last)
    events = await soon(world.events(run.run_id))
    assert [event.seq for event in events] == [1, 2, 3, 4, 5, 6]
    names = ["metadata", "updates", "custom", "values", "values", "end"]
    assert [event.event for event in events] == names
    assert (events[0].body, events[3].body, events[-1].body) == ('{"attempt":1}', "1", '{"status":"success"}')
    assert {event.attempt for event in events} == {1}
    assert {event.source for event in events} == {run.run_id}


async def test_an_error_is_told_before_the_end(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    failure = Failure(error="OSError", message="no")
    await world.finish(held, "error", error=failure, events=told("custom"))
    events = await soon(world.events(run.run_id))
    assert [event.event for event in events] == ["custom", "error", "end"]
    assert events[1].body == '{"error":"OSError","message":"no"}'
    assert events[2].body == '{"status":"error"}'


async def test_attempts_share_a_stream(world: World) -> None:
    run = await world.run(await world.thread())
    for _ in range(2):
        held = (await world.take(run)).held
        await world.queue.append(held, told("metadata"))
        await world.finish(held, "retriable", events=told("custom"))
    await world.done(run)
    events = await soon(world.events(run.run_id))
    expected = [("metadata", 1), ("custom", 1), ("metadata", 2), ("custom", 2), ("end", 3)]
    assert [(event.event, event.attempt) for event in events] == expected
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]


async def test_the_last_event_and_the_status_come_together(world: World) -> None:
    """A reader of the end event also sees the final status."""
    runs = [await world.run(await world.thread()) for _ in range(8)]
    claimed = await world.claim()

    async def watch(run_id: str) -> None:
        names = await soon(world.names(run_id))
        assert names == ["end"]
        assert (await world.threads.get_run(run_id)).status == "success"

    watching = [asyncio.create_task(watch(run.run_id)) for run in runs]
    await asyncio.gather(*(world.finish(each.held) for each in claimed))
    await asyncio.gather(*watching)


async def test_reading_goes_on_after_any_event(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await world.queue.append(held, told(*"abcd"))
    await world.finish(held)
    whole = await soon(world.events(run.run_id))
    assert [event.event for event in whole] == [*"abcd", "end"]
    for place, event in enumerate(whole, 1):
        rest = await soon(world.events(run.run_id, event.id))
        assert rest == whole[place:]


async def test_a_reader_follows_a_run_as_it_goes(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await world.queue.append(held, told("before"))
    follower = await world.threads.follow_run(run.run_id, None)
    await soon(follower.started())
    first = await follower.next(0)
    assert first is not None
    assert list(first) == []
    await world.queue.append(held, told("now"))
    burst = await soon(follower.next(None))
    assert burst is not None
    assert [event.event for event in burst] == ["now"]
    await world.finish(held)
    burst = await soon(follower.next(None))
    assert burst is not None
    assert [event.event for event in burst] == ["end"]
    assert await soon(follower.next(None)) is None
    follower.close()


async def test_a_thread_is_read_over_all_its_runs(world: World) -> None:
    thread = await world.thread()
    runs = [await world.run(thread, "enqueue") for _ in range(3)]
    for run in runs[:2]:
        held = (await world.take(run)).held
        await world.queue.append(held, told("custom"))
        await world.finish(held)
    await world.threads.cancel_run(runs[2].run_id)
    found: list[StreamEvent] = []
    async with aclosing(world.threads.stream_thread(thread, "-1")) as bursts:
        async for burst in bursts:
            found += burst
            if len(found) >= 6:
                break
    expected = [
        (runs[0].run_id, "custom"),
        (runs[0].run_id, "end"),
        (runs[1].run_id, "custom"),
        (runs[1].run_id, "end"),
        (runs[2].run_id, "control"),
        (runs[2].run_id, "end"),
    ]
    assert [(event.source, event.event) for event in found] == expected
    assert [event.seq for event in found] == [1, 2, 3, 4, 5, 6]
    async with aclosing(world.threads.stream_thread(thread, found[2].id)) as bursts:
        rest = await soon(anext(bursts))
    assert list(rest) == found[3:]


async def test_a_repeated_append_is_done_once(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    append = world.queue.append
    assert await append(held, told("a", "b"), after=0) == 2
    assert await append(held, told("a", "b"), after=0) == 2
    assert await append(held, told("c"), after=2) == 3
    with pytest.raises(Conflict, match="is at 3, not at 1"):
        await append(held, told("x"), after=1)
    with pytest.raises(Conflict, match="is at 3, not at 9"):
        await append(held, told("x"), after=9)
    assert await asyncio.gather(*[append(held, told("d"), after=3) for _ in range(3)]) == [4, 4, 4]
    await world.finish(held)
    assert await world.names(run.run_id) == ["a", "b", "c", "d", "end"]


async def test_an_append_is_repeated_only_if_its_own_events_are_there(world: World) -> None:
    """The same number of other events at the same position does not answer a repeated call."""
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    await world.queue.append(held, told("a"), after=0)
    with pytest.raises(Conflict, match="is at 1, not at 0"):
        await world.queue.append(held, told("b"), after=0)
    with pytest.raises(Conflict, match="is at 1, not at 0"):
        await world.queue.append(held, [NewEvent("a", '"other data"')], after=0)
    with pytest.raises(Conflict, match="is at 1, not at 0"):
        await world.queue.keep(held, run.run_id, "step", "1", told("b"), after=0)
    assert await world.queue.append(held, told("a"), after=0) == 1
    await world.finish(held)
    assert await world.names(run.run_id) == ["a", "end"]


async def test_appends_in_a_row_need_not_wait_for_each_other(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    calls = [world.queue.append(held, told(str(number)), after=number) for number in range(20)]
    assert await asyncio.gather(*calls) == list(range(1, 21))
    await world.finish(held)
    assert await world.names(run.run_id) == [*map(str, range(20)), "end"]


async def test_bad_places(world: World) -> None:
    run = await world.run(await world.thread())
    for wrong in ("x", "1-2-3", "-2", ""):
        with pytest.raises(InvalidInput, match="Last-Event-ID"):
            await world.threads.follow_run(run.run_id, wrong)
    with pytest.raises(NotFound):
        await world.threads.follow_run("no-run")
    with pytest.raises(NotFound):
        await world.threads.follow_thread("nowhere")


# --- spans ------------------------------------------------------------------------------------------------


async def test_spans_of_a_run_are_kept_and_change_nothing(world: World) -> None:
    thread = await world.thread()
    run = await world.run(thread)
    held = (await world.take(run)).held
    await world.span(held, "a")
    assert await world.status(run) == "running"
    await world.advance(100)
    assert await world.status(run) == "pending", "spans are no heartbeats of a run"
    await world.span(held, "b")
    assert await world.status(run) == "pending", "and bring none back"
    await world.done(run)
    await world.span(held, "c")
    assert await world.status(run) == "success"
    assert await world.rest(thread) == "idle"
    assert await world.rows(SPANS) == [(run.run_id, held.attempt_id)] * 3
    assert (await world.threads.get_run(run.run_id)).attempt == 2
