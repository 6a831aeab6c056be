"""If a run's stream has readers from the beginning, the transaction that claims the run starts the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.kernel.support import soon
from tests.threads.support import World
from tests.threads.test_claims_at_once import AGENTS, transactions, wait_for

from perdure.kernel.errors import NotFound
from perdure.runs.claimer import Claimer
from perdure.streams.model import NewEvent, StreamEvent
from perdure.streams.operations import read
from perdure.streams.service import Follower
from perdure.threads.encoding import begin_event
from perdure.threads.operations.settle import thread_stream
from perdure.threads.records import RunRequest
from perdure.threads.work import Assignment


def request(**options: Any) -> RunRequest:
    return RunRequest(assistant_id="echo", **options)


class Waiter:
    """Worker of this process that waits for runs."""

    def __init__(self, world: World) -> None:
        claimer = world.queue.claimer("w1", AGENTS, ("agents",))
        assert claimer is not None
        self._claimer: Claimer = claimer
        self._waiting = asyncio.create_task(claimer.next(lambda: 10, 60.0))

    async def claimed(self) -> Assignment:
        (claimed,) = await soon(self._waiting) or []
        self._claimer.close()
        return claimed


async def next_events(follower: Follower) -> Sequence[StreamEvent]:
    burst = await soon(asyncio.create_task(follower.next()))
    assert burst is not None
    return burst.events


async def stored(world: World, run_id: str) -> Sequence[StreamEvent]:
    """Return the events in the stream of a run so far."""
    return (await world.storage.read(read, run_id, 0, 100, ns=await world.threads.ns())).events


async def test_its_first_event_is_stored_with_its_claim_and_read_without_a_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, thread = Waiter(world), await world.thread()
    await wait_for(world)
    ran = transactions(world, monkeypatch)
    looks: list[Any] = []
    monkeypatch.setattr(world.storage, "read", lambda *call, **_: looks.append(call))
    async with world.threads.followed_run(request(thread_id=thread)) as run:
        follower = await world.threads.follow_run(run.run_id, fresh=True)
    (event,) = await next_events(follower)
    assert (len(ran), looks) == (1, [])
    monkeypatch.undo()
    assert (event.seq, event.attempt) == (1, 1)
    assert NewEvent(event.event, event.body) == begin_event(run.run_id, 1)
    assert await stored(world, run.run_id) == [event]
    claimed = await waiter.claimed()
    assert (claimed.begun, claimed.last_seq) == (True, 1)
    assert await world.queue.append(claimed.held, [NewEvent("custom", "1")], claimed.last_seq) == 2
    assert [each.seq for each in await next_events(follower)] == [2]
    await world.finish(claimed.held)
    assert [each.event for each in await next_events(follower)] == ["end"]
    follower.close()
    joined = world.threads.streams.follow(await world.threads.ns(), thread_stream(thread), 0, joined=True)
    assert [each.event for each in await next_events(joined)] == ["metadata", "custom", "end"]
    joined.close()
    await world.check()


async def test_a_worker_that_may_not_know_of_it_tells_it_itself(world: World) -> None:
    """A worker that claims over HTTP may be of an earlier release, which always announces its start."""
    waiting = asyncio.create_task(world.queue.claim("w1", AGENTS, 1, 30.0))
    await wait_for(world)
    async with world.threads.followed_run(request()) as run:
        (claimed,) = await soon(waiting)
    assert (claimed.run.run_id, claimed.begun, claimed.last_seq) == (run.run_id, False, 0)
    assert await stored(world, run.run_id) == []
    await world.check()


async def test_a_run_that_nobody_reads_begins_with_its_worker(world: World) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    run = await world.run()
    assert (await waiter.claimed()).begun is False
    assert await stored(world, run.run_id) == []


async def test_a_run_that_nobody_waits_for_begins_with_its_worker(world: World) -> None:
    async with world.threads.followed_run(request()) as run:
        claimed = await world.take(run)
    assert claimed.begun is False
    assert await stored(world, run.run_id) == []


async def test_the_next_attempt_begins_by_itself(world: World) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    async with world.threads.followed_run(request()) as run:
        await world.queue.hand_back([(await waiter.claimed()).held])
    again = await world.take(run)
    assert (again.attempt, again.begun, again.last_seq) == (2, False, 1)
    await world.queue.append(again.held, [begin_event(run.run_id, 2)], again.last_seq)
    found = await stored(world, run.run_id)
    assert [(each.seq, each.attempt, each.event) for each in found] == [
        (1, 1, "metadata"),
        (2, 2, "metadata"),
    ]
    await world.check()


async def test_a_repeated_key_gives_the_stream_of_the_first_run(world: World) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    seen = []
    for _ in range(2):
        async with world.threads.followed_run(request(), idempotency_key="k") as run:
            follower = await world.threads.follow_run(run.run_id, fresh=True)
        seen.append([each.id for each in await next_events(follower)])
        follower.close()
    assert (await waiter.claimed()).begun is True
    assert seen[0] == seen[1]
    assert world.threads.streams._tails == {}


async def test_a_run_that_is_not_created_leaves_no_reader(world: World) -> None:
    with pytest.raises(NotFound):
        async with world.threads.followed_run(request(thread_id="nowhere")):
            pass
    assert world.threads.streams._tails == {}
    await world.check()


async def test_a_temporary_thread_is_followed_too(world: World) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    stream = world.threads.stream(request(on_completion="delete"))
    first = await soon(asyncio.create_task(anext(stream)))
    assert [each.event for each in first.events] == ["metadata"]
    await world.finish((await waiter.claimed()).held)
    assert [each.event async for burst in stream for each in burst.events] == ["end"]
