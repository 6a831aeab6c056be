"""Workers of runs: their leases, when they are busy and alive, and what happens after they are lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kernel.support import soon
from tests.support.kinds import KINDS
from tests.threads.support import AGENT_NAMES, AGENTS, ATTEMPTS, POLICY, World

from perdure.diagnostics.service import ALIVE_LEASES, Diagnostics
from perdure.kernel import ids
from perdure.rollouts.records import WorkerDetails
from perdure.rollouts.workers import Workers
from perdure.runs.queue import RunQueue
from perdure.threads.work import Assignment


def workers_of(world: World) -> Workers:
    return Workers.of_same(world.threads)


async def look(world: World, worker_id: str = "w1") -> tuple[str, set[str], WorkerDetails]:
    """Return the status of a worker, its leases, and its details."""
    found = await workers_of(world).get(worker_id)
    return found.status, {each.rollout_id for each in found.held}, found


def diagnose(world: World) -> Diagnostics:
    return Diagnostics(
        world.storage,
        KINDS,
        namespace=world.namespace,
        watchdog=world.threads.watchdog,
        lease=POLICY.lease,
    )


async def alive(world: World) -> int:
    return (await diagnose(world).live_workers()).alive


async def hold(world: World, count: int) -> list[Assignment]:
    for _ in range(count):
        await world.run()
    claimed = await world.claim(count)
    assert len(claimed) == count
    return claimed


async def test_a_worker_that_holds_several_is_busy_until_it_holds_none(world: World) -> None:
    first, second, third, last = await hold(world, 4)
    held = {each.run.run_id for each in (first, second, third, last)}
    assert (await look(world))[:2] == ("busy", held)
    assert await world.claim() == [], "a claim that finds nothing"
    assert (await look(world))[:2] == ("busy", held)
    await world.finish(last.held)
    assert (await look(world))[:2] == ("busy", held - {last.run.run_id})
    await world.queue.hand_back([first.held])
    assert (await look(world))[:2] == ("busy", {second.run.run_id, third.run.run_id})
    await world.finish(second.held, "error")
    await world.finish(third.held)
    status, left, details = await look(world)
    assert (status, left, details.current_attempt_id) == ("idle", set(), None)
    again = await world.take()
    assert (await look(world))[:2] == ("busy", {again.run.run_id})


async def test_a_page_of_workers_shows_what_each_holds(world: World) -> None:
    one, two = await hold(world, 2)
    await world.run()
    (other,) = await world.queue.claim("w2", AGENT_NAMES, 1, 0)
    page = await workers_of(world).search(sort_by="worker_id")
    held = {each.worker_id: [(item.rollout_id, item.kind) for item in each.held] for each in page.items}
    assert held == {
        "w1": [(one.run.run_id, "run"), (two.run.run_id, "run")],
        "w2": [(other.run.run_id, "run")],
    }
    assert {each.worker_id for each in (await workers_of(world).search(status=["idle"])).items} == set()


async def test_a_worker_that_signed_off_is_not_alive(world: World) -> None:
    (held,) = await hold(world, 1)
    assert await alive(world) == 1
    await world.queue.deregister("w1")
    status, _, details = await look(world)
    assert (status, await alive(world)) == ("busy", 0), "it ends what it holds"
    assert details.stopped_at is not None
    await world.queue.renew("w1", [held.held])
    assert await alive(world) == 0, "a last heartbeat does not bring it back"
    await world.finish(held.held)
    assert (await look(world))[0] == "idle"
    await world.queue.deregister("w1")
    assert (await look(world))[0] == "unknown"
    await world.queue.deregister("nobody")
    assert [each.worker_id for each in (await workers_of(world).search()).items] == ["w1"]
    await world.queue.register("w1", AGENTS)
    assert await alive(world) == 1


async def test_a_worker_whose_leases_ended_did_not_say_that_it_lives(world: World) -> None:
    """The watchdog ends the lease. That is not a heartbeat of the worker."""
    (held,) = await hold(world, 1)
    before = (await look(world))[2].last_heartbeat_time
    await world.advance(POLICY.lease * (ALIVE_LEASES - 1))
    await world.advance(POLICY.lease * 1.5)
    status, _, details = await look(world)
    assert (status, await alive(world)) == ("unknown", 0)
    if world.storage.engine == "sqlite":
        assert details.last_heartbeat_time == before
    assert await world.queue.renew("w1", [held.held]) == ["lost"]
    assert await alive(world) == 1, "it is there again, without that run"


# --- a process that takes a SQLite file over --------------------------------------------------------------


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after whose call this process counts as another one."""

    def change() -> None:
        monkeypatch.setattr(ids, "_process_id", lambda pid: "another")

    return change


async def test_who_takes_a_file_over_does_not_wait_for_the_workers_before(
    world: World, another_process: Any
) -> None:
    local = world.queue.in_this_process()
    await local.register("local", AGENTS, 4)
    thread, other = await world.thread(), await world.thread()
    runs = [await world.run(), await world.run(thread), await world.run()]
    runs.append(await world.run(other, max_attempts=1))
    near = await local.claim("local", AGENT_NAMES, 2, 0)
    (far,) = await world.queue.claim("w1", AGENT_NAMES, 1, 0)
    (last,) = await local.claim("local", AGENT_NAMES, 1, 0)
    await world.threads.cancel_run(near[1].run.run_id)
    behind = await world.run(thread, "enqueue")
    await world.queue.take_over()
    assert await alive(world) == 2, "the same process takes nothing over"
    another_process()
    await world.queue.take_over()
    if world.storage.engine == "postgres":
        await world.idle()
        return
    assert await alive(world) == 1
    status, held, details = await look(world, "local")
    assert (status, held, details.stopped_at is not None) == ("unknown", set(), True)
    assert await world.status(last.run) == "error", "it had one attempt, and an attempt that was lost counts"
    again = await world.claim()
    assert {each.run.run_id for each in again} == {runs[0].run_id, behind.run_id}
    assert {each.attempt for each in again} == {2, 1}
    (first, _) = await world.rows(ATTEMPTS, run_id=runs[0].run_id)
    assert first[1:] == ("unresponsive", "unresponsive", 1)
    assert await world.queue.renew("w1", [far.held]) == ["go"], "a remote worker goes on"
    await world.queue.take_over()
    assert await soon(world.queue.renew("w1", [each.held for each in again])) == ["go", "go"]


async def test_a_worker_that_registers_again_elsewhere_is_not_taken_for_the_one_before(
    world: World, another_process: Any
) -> None:
    await world.queue.in_this_process().register("same", AGENTS)
    another_process()
    await RunQueue.beside(world.threads).register("same", AGENTS)
    await world.queue.take_over()
    assert await alive(world) == 2
