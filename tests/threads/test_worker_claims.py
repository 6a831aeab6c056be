"""A worker claims again at once only while there may be more runs; otherwise it waits for a hint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from tests.kernel.support import soon
from tests.threads.support import World, open_storage
from tests.threads.test_agents import LOCK_SOME

from perdure.rollouts.operations.claim import SPARE_ROWS
from perdure.rollouts.operations.work import READY_CHANNEL
from perdure.testing.clock import ManualClock
from perdure.threads.operations import queries
from perdure.threads.records import RunRequest
from perdure.threads.work import Lease
from perdure.worker.options import WorkerOptions
from perdure.worker.worker import WorkerClaims

AGENTS = ["echo", "other"]


class Claimer:
    """Claims of a worker with two free slots, and the number of its queries."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, interval: float = 60.0) -> None:
        self.asked = 0
        self.free = 2
        self._claim = world.queue.claim_now
        monkeypatch.setattr(world.queue, "claim_now", self._counted)
        self.claims = WorkerClaims(world.queue, WorkerOptions(worker_id="w1", interval=interval))

    async def _counted(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return await self._claim(*args, **options)

    async def next(self) -> list[str]:
        return [each.run.run_id for each in await self.claims.next(AGENTS, lambda: self.free)]


async def lease_of(world: World, run_id: str) -> Lease:
    """Return the lease of the latest attempt of a run."""
    run = await world.threads.get_run(run_id)
    (attempt,) = await world.threads.read(queries.latest_attempts, [run_id])
    return Lease(run_id, run.thread_id, attempt.id)


@pytest.fixture
def world(lone_world: World) -> World:
    """World with its own database: a ready run of another test would wake workers that wait for its agent."""
    return lone_world


@pytest.fixture
def claimer(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Claimer]:
    made = Claimer(world, monkeypatch)
    yield made
    made.claims.close()


async def test_a_claim_that_left_nothing_is_repeated_after_a_hint_alone(
    world: World, claimer: Claimer
) -> None:
    run = await world.run()
    assert await claimer.next() == [run.run_id]
    waiting = asyncio.ensure_future(claimer.next())
    await asyncio.sleep(0)
    assert claimer.asked == 1
    await world.queue.hand_back([await lease_of(world, run.run_id)])
    assert await soon(waiting) == [run.run_id]
    assert claimer.asked == 2


async def test_a_hint_between_two_claims_is_not_lost(world: World, claimer: Claimer) -> None:
    assert await claimer.next() == []
    run = await world.run()
    assert await soon(claimer.next()) == [run.run_id]


async def test_after_a_claim_that_got_all_it_wanted_the_next_is_made_at_once(
    world: World, claimer: Claimer
) -> None:
    runs = [await world.run() for _ in range(3)]
    assert await claimer.next() == [run.run_id for run in runs[:2]]
    assert world.storage.signals.watched(READY_CHANNEL) == frozenset()
    claimer.free = 1
    assert await claimer.next() == [runs[2].run_id]


async def test_places_that_become_free_meanwhile_are_claimed_for(world: World, claimer: Claimer) -> None:
    claimer.free = 1
    assert await claimer.next() == []
    waiting = asyncio.ensure_future(claimer.next())
    await asyncio.sleep(0)
    claimer.free = 2
    runs = await world.threads.create_runs([RunRequest(assistant_id="echo") for _ in range(2)])
    assert await soon(waiting) == [run.run_id for run in runs]


async def test_without_hints_it_looks_again_after_the_interval(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimer = Claimer(world, monkeypatch, interval=0.01)
    assert await claimer.next() == []
    assert await soon(claimer.next()) == []
    assert claimer.asked == 2
    claimer.claims.close()


async def test_what_others_had_locked_is_claimed_soon(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(postgres_url)
    world = await World(storage, ManualClock()).begin()
    claimer = Claimer(world, monkeypatch)
    locked = SPARE_ROWS + 1
    runs = [await world.run() for _ in range(locked + 2)]
    other = await asyncpg.connect(postgres_url)
    try:
        async with other.transaction():
            assert len(await other.fetch(LOCK_SOME, "echo", locked)) == locked
            assert await claimer.next() == [runs[locked].run_id]
        assert await soon(claimer.next()) == [run.run_id for run in runs[:2]]
    finally:
        claimer.claims.close()
        await other.close()
        await storage.close()
