"""A run that is created while a worker waits is claimed in the transaction that creates it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.kernel.support import soon, until
from tests.threads.support import ATTEMPTS, AUDIT, World

from perdure.kernel.errors import Conflict, StorageError
from perdure.kernel.storage.dialect import statement
from perdure.rollouts.operations import holds
from perdure.runs.claimer import Claimer
from perdure.service.callers import Caller
from perdure.threads.operations import assign
from perdure.threads.records import RunRequest
from perdure.threads.work import Assignment

AGENTS = ("echo", "other")
WORKERS = statement("SELECT id, status, last_dequeue_time, last_idle_time FROM workers WHERE ns = :ns")
KEYS = statement("SELECT key FROM idempotency WHERE ns = :ns")
STORED = statement(
    """
    SELECT r.status, r.queued_as, r.ready, r.due_at, r.behind, r.attempts, r.priority, r.end_time,
      a.sequence_id, a.status AS attempt_status, a.worker_id, a.charged, a.check_at - a.start_time AS watched,
      CASE WHEN l.holder = r.id AND l.holder_attempt = a.id THEN 1 ELSE 0 END AS holds
    FROM rollouts AS r
    JOIN attempts AS a ON a.ns = r.ns AND a.rollout_id = r.id
    JOIN lines AS l ON l.ns = r.ns AND l.line = r.line
    WHERE r.ns = :ns AND r.id = :id
    """
)


@pytest.fixture
def world(lone_world: World) -> World:
    """World with its own database: a ready run of another test would wake workers that wait for its agent."""
    return lone_world


class Waiter:
    """Worker that waits for runs, and counts its own queries of the database."""

    def __init__(self, world: World, worker_id: str = "w1", limit: int = 10, agents: Any = AGENTS) -> None:
        self.world = world
        self.claimer = Claimer(world.queue, worker_id, agents, ("agents",))
        self.waiting = asyncio.create_task(self.claimer.next(lambda: limit, 60.0))

    async def runs(self) -> list[str]:
        found = await soon(self.waiting)
        self.claimer.close()
        return [each.run.run_id for each in found or []]


def waiting(world: World) -> int:
    """Return the number of claims that wait in this process."""
    by_agents = world.threads.waiting_claims._waiting.get(world.namespace, {})
    return sum(len(claims) for claims in by_agents.values())


async def wait_for(world: World, count: int = 1) -> None:
    await until(lambda: waiting(world) == count)


def transactions(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the write operations that run from now on."""
    ran: list[Any] = []
    run = world.storage.run

    def noted(operation: Any, *args: Any, **options: Any) -> Any:
        ran.append(operation)
        return run(operation, *args, **options)

    monkeypatch.setattr(world.storage, "run", noted)
    return ran


async def test_it_is_claimed_in_the_transaction_that_creates_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    ran = transactions(world, monkeypatch)
    run = await world.run()
    assert run.status == "pending", "its creator sees it as it was created"
    assert await waiter.runs() == [run.run_id]
    assert len(ran) == 1
    assert await world.status(run) == "running"
    await world.check()


async def test_what_its_worker_gets_is_what_any_claim_gives(world: World) -> None:
    thread = await world.thread(config={"configurable": {"tone": "dry"}})
    first = await world.run(thread, input={"n": 1})
    await world.finish((await world.take(first)).held, values={"n": 1})
    waiter = Waiter(world)
    await wait_for(world)
    run = await world.run(thread, input={"n": 2}, config={"tags": ["a"]})
    (given,) = await soon(waiter.waiting) or []
    waiter.claimer.close()
    await world.queue.hand_back([given.held])
    again: Assignment = await world.take(run)
    assert (given.attempt, again.attempt) == (1, 2)
    run_of_both = msgspec.structs.replace(again.run, attempt=1)
    assert given.run == run_of_both
    same = {"attempt": 1, "attempt_id": given.attempt_id, "run": given.run}
    assert given == msgspec.structs.replace(again, **same)
    await world.finish(again.held)
    await world.check()


async def test_the_first_of_the_queue_is_claimed_and_not_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older runs are ready without a hint."""
    with monkeypatch.context() as silent:
        silent.setattr(world.storage.signals, "publish", lambda hints: None)
        older = [await world.run() for _ in range(2)]
        waiter = Waiter(world, limit=2)
        await wait_for(world)
    run = await world.run()
    assert await waiter.runs() == [each.run_id for each in older]
    assert await world.status(run) == "pending"
    assert [each.run.run_id for each in await world.claim()] == [run.run_id]


async def test_priority_counts_among_those_that_are_created_together(world: World) -> None:
    waiter = Waiter(world, limit=1)
    await wait_for(world)
    low, high = await asyncio.gather(world.run(priority=0), world.run(priority=5))
    (claimed,) = await waiter.runs()
    assert [each.run.run_id for each in await world.claim()] == [low.run_id]
    assert claimed == high.run_id, "the two calls were merged"


async def test_a_run_behind_another_in_its_thread_is_not_claimed(world: World) -> None:
    thread = await world.thread()
    first = await world.run(thread)
    await world.take(first)
    waiter = Waiter(world)
    await wait_for(world)
    second = await world.run(thread, "enqueue")
    delayed = await world.run(after_seconds=100)
    assert [await world.status(each) for each in (second, delayed)] == ["pending"] * 2
    waiter.waiting.cancel()
    await asyncio.gather(waiter.waiting, return_exceptions=True)
    waiter.claimer.close()
    await world.check()


async def test_each_worker_gets_runs_of_its_agents(world: World) -> None:
    echo, other = Waiter(world, "w1", agents=["echo"]), Waiter(world, "w2", agents=["other"])
    await wait_for(world, 2)
    mine, theirs = await world.run(), await world.run(assistant_id="other")
    assert (await echo.runs(), await other.runs()) == ([mine.run_id], [theirs.run_id])


async def test_a_run_of_another_namespace_is_not_claimed(world: World) -> None:
    elsewhere = await World(world.storage, world.clock, namespace="elsewhere").begin()
    waiter = Waiter(world)
    await wait_for(world)
    run = await elsewhere.run()
    assert await elsewhere.status(run) == "pending"
    mine = await world.run()
    assert await waiter.runs() == [mine.run_id]


async def test_of_many_that_wait_each_run_wakes_one(world: World) -> None:
    waiters = [Waiter(world, f"w{number}", limit=1) for number in range(20)]
    await wait_for(world, 20)
    runs = [await world.run() for _ in range(3)]
    assert [await waiter.runs() for waiter in waiters[:3]] == [[run.run_id] for run in runs]
    assert waiting(world) == 17
    for waiter in waiters[3:]:
        waiter.waiting.cancel()
    await asyncio.gather(*(waiter.waiting for waiter in waiters[3:]), return_exceptions=True)


async def test_more_than_one_can_take_is_left_to_others(world: World) -> None:
    waiters = [Waiter(world, f"w{number}", limit=1) for number in range(3)]
    await wait_for(world, 3)
    runs = await asyncio.gather(*(world.run() for _ in range(3)))
    found = [await waiter.runs() for waiter in waiters]
    assert sorted(each for share in found for each in share) == sorted(run.run_id for run in runs)


async def test_nothing_is_claimed_from_a_paused_queue_or_for_a_drained_worker(world: World) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    await world.storage.run(holds.pause_queue, "agents", ns=world.ns)
    run = await world.run()
    assert await world.status(run) == "pending"
    await world.storage.run(holds.resume_queue, "agents", ns=world.ns)
    assert await waiter.runs() == [run.run_id]
    await world.storage.run(holds.drain_worker, "w1", ns=world.ns)
    drained = Waiter(world)
    await wait_for(world)
    another = Waiter(world, "w2")
    await wait_for(world, 2)
    run = await world.run()
    assert await another.runs() == [run.run_id], "the hint that is not for one is passed on"
    drained.waiting.cancel()


async def test_a_hint_that_a_drained_worker_took_goes_to_another(world: World) -> None:
    held = (await world.take(await world.run(), "w3")).held
    await world.storage.run(holds.drain_worker, "w1", ns=world.ns)
    drained = Waiter(world)
    await wait_for(world)
    another = Waiter(world, "w2")
    await wait_for(world, 2)
    await world.queue.hand_back([held])
    assert await another.runs() == [held.run_id]
    drained.waiting.cancel()


async def test_one_that_is_cancelled_meanwhile_leaves_its_runs_uncharged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    settle = world.threads.waiting_claims.settle

    def cancelled_first(*args: Any) -> bool:
        waiter.waiting.cancel()
        return settle(*args)

    monkeypatch.setattr(world.threads.waiting_claims, "settle", cancelled_first)
    run = await world.run()
    with pytest.raises(asyncio.CancelledError):
        await waiter.waiting
    await soon(world.queue.close())
    (again,) = await world.claim()
    assert (again.run.run_id, again.attempt, again.last_attempt) == (run.run_id, 2, False)
    first, second = await world.rows(ATTEMPTS, run_id=run.run_id)
    assert [first[2:], second[3]] == [("released", 0), 1]
    await world.check()


async def test_one_whose_loop_is_gone_leaves_its_runs_uncharged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(world)
    await wait_for(world)
    monkeypatch.setattr("perdure.threads.waiting_claims.WaitingClaim.tell", lambda self, share: False)
    run = await world.run()
    await until(lambda: not world.threads._releases)
    monkeypatch.undo()
    assert (await world.claim())[0].run.run_id == run.run_id
    waiter.waiting.cancel()


@pytest.mark.parametrize("error", [Conflict("no"), StorageError("no")])
async def test_where_the_creation_fails_the_worker_waits_on(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    waiter = Waiter(world)
    await wait_for(world)

    async def fails(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(assign, "begin_attempts", fails)
        with pytest.raises(type(error)):
            await world.run()
    run = await world.run()
    assert await waiter.runs() == [run.run_id]
    await world.check()


async def test_the_audit_names_who_created_and_who_claimed(world: World) -> None:
    worker = world.queue.acting_as(Caller.trusted("worker", world.namespace))
    claimer = Claimer(worker, "w1", AGENTS, ("agents",))
    found = asyncio.create_task(claimer.next(lambda: 1, 60.0))
    await wait_for(world)
    threads = world.threads.acting_as(Caller.trusted("creator", world.namespace))
    run = await threads.create_run(RunRequest(assistant_id="echo"))
    assert [each.run.run_id for each in await soon(found) or []] == [run.run_id]
    claimer.close()
    entries = [(actor, action) for actor, action, _ in await world.rows(AUDIT)]
    assert entries == [("creator", "create_run"), ("worker", "claim_run")]


async def test_a_claim_under_a_key_is_not_taken_along(world: World) -> None:
    """Its answer is stored under the key, so it claims by itself, after a hint."""
    claiming = asyncio.create_task(world.queue.claim("w1", AGENTS, 1, 20, idempotency_key="k"))
    await until(lambda: bool(world.storage.signals.watched("rollouts.ready")))
    assert waiting(world) == 0
    run = await world.run()
    assert [each.run.run_id for each in await soon(claiming)] == [run.run_id]
    (again,) = await world.queue.claim("w1", AGENTS, 1, 0, idempotency_key="k")
    assert again.run.run_id == run.run_id


async def test_of_many_remote_claims_a_run_wakes_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    claim_now = world.queue.claim_now

    async def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await claim_now(*args)

    monkeypatch.setattr(world.queue, "claim_now", counted)
    claims = [
        asyncio.create_task(world.queue.claim(f"w{number}", AGENTS, 1, 20, idempotency_key=f"k{number}"))
        for number in range(50)
    ]
    hub: Any = getattr(world.storage.signals, "_local", world.storage.signals)
    key = ("rollouts.ready", "agents/echo")
    await until(lambda: key in hub._watchers and sum(1 for each in hub._watchers[key] if each.is_free) == 50)
    for count in (1, 2, 3):
        run = await world.run()
        done, _ = await asyncio.wait(claims, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        (claimed,) = done
        claims.remove(claimed)
        assert [each.run.run_id for each in claimed.result()] == [run.run_id]
        assert asked == count
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)


async def test_a_claim_that_finds_nothing_writes_nothing(world: World) -> None:
    await world.claim()
    before = [await world.rows(each) for each in (WORKERS, KEYS)]
    for _ in range(3):
        assert await world.claim() == []
    assert await world.queue.claim("w1", AGENTS, 1, 0, idempotency_key="k") == []
    assert [await world.rows(each) for each in (WORKERS, KEYS)] == before


async def test_a_run_that_is_claimed_as_it_is_created_is_stored_like_any_that_is_claimed(
    world: World,
) -> None:
    """If no other run is ready, its rows are written once, as a claim leaves them."""
    waiter = Waiter(world)
    await wait_for(world)
    at_once = await world.run(await world.thread(), priority=3)
    assert await waiter.runs() == [at_once.run_id]
    later = await world.run(await world.thread(), priority=3)
    assert [each.run.run_id for each in await world.claim()] == [later.run_id]
    first, second = [await world.rows(STORED, id=run.run_id) for run in (at_once, later)]
    assert len(first) == 1
    assert first == second
    await world.check()


async def test_a_run_that_gives_way_to_the_next_of_its_transaction_is_not_claimed(world: World) -> None:
    waiter, thread = Waiter(world), await world.thread()
    await wait_for(world)
    first, second = await asyncio.gather(world.run(thread, "rollback"), world.run(thread, "rollback"))
    assert await waiter.runs() == [second.run_id]
    assert await world.status(first) not in ("pending", "running")
    await world.check()


async def test_what_waits_behind_a_run_that_is_stopped_is_claimed_first(world: World) -> None:
    thread = await world.thread()
    await world.take(await world.run(thread))
    waiter = Waiter(world)
    await wait_for(world)
    run = await world.run(thread, "interrupt")
    other = await world.run()
    assert await waiter.runs() == [other.run_id], "its worker has still to stop"
    assert await world.status(run) == "pending"
    await world.check()


async def test_what_a_worker_cannot_take_is_told_to_the_next(world: World) -> None:
    waiters = [Waiter(world, "w1", limit=2), Waiter(world, "w2")]
    await wait_for(world, 2)
    runs = await asyncio.gather(*(world.run() for _ in range(3)))
    claimed = [await each.runs() for each in waiters]
    assert [len(each) for each in claimed] == [2, 1]
    assert {run_id for each in claimed for run_id in each} == {run.run_id for run in runs}
    await world.check()
