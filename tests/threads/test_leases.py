"""Leases: a worker keeps its runs while it renews them, and loses runs that it does not renew."""

from __future__ import annotations

import asyncio

import pytest
from tests.threads.support import ATTEMPTS, POLICY, World

from perdure.kernel.errors import Fenced
from perdure.threads.work import Lease


async def test_a_silent_worker_loses_its_run(world: World) -> None:
    run = await world.run(await world.thread())
    for _ in range(2):
        held = (await world.take(run)).held
        await world.advance(100)
        assert await world.status(run) == "pending"
        assert await world.queue.renew("w1", [held]) == ["lost"]
    await world.take(run)
    await world.advance(100)
    ended = await world.threads.get_run(run.run_id)
    assert ended.status == "error"
    assert ended.error is not None
    assert "exceeded max attempts (3)" in ended.error.message
    assert "fell silent" in ended.error.message
    reasons = [row[1:] for row in await world.rows(ATTEMPTS, run_id=run.run_id)]
    assert reasons == [("unresponsive", "unresponsive", 1)] * 3
    assert await world.names(run.run_id) == ["error", "end"]


async def test_a_worker_that_renews_keeps_its_run(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    for _ in range(4):
        await world.advance(50)
        assert await world.queue.renew("w1", [held]) == ["go"]
    assert (await world.finish(held)).attempt == 1


async def test_what_a_worker_is_told(world: World) -> None:
    runs = [await world.run(await world.thread()) for _ in range(5)]
    held = {each.run.run_id: each.held for each in await world.claim()}
    going, stopped, undone, given, over = (held[run.run_id] for run in runs)
    await world.threads.cancel_run(stopped.run_id)
    await world.threads.cancel_run(undone.run_id, action="rollback")
    await world.queue.hand_back([given])
    await world.finish(over)
    claims = [going, stopped, undone, given, over, Lease("no-run", "no-thread", "no-attempt")]
    expected = ["go", "interrupt", "rollback", "lost", "lost", "lost"]
    assert await world.queue.renew("w1", claims) == expected
    controls = await world.queue.controls(claims, 0)
    assert controls == {
        each.run_id: verdict for each, verdict in zip(claims, expected, strict=True) if verdict != "go"
    }


async def test_a_cancel_is_heard_by_the_worker(world: World) -> None:
    run = await world.run(await world.thread())
    held = (await world.take(run)).held
    waiting = asyncio.create_task(world.queue.controls([held], 20))
    await asyncio.sleep(0)
    await world.threads.cancel_run(run.run_id, action="rollback")
    assert await waiting == {run.run_id: "rollback"}


async def test_a_run_that_takes_too_long_ends_though_its_worker_renews(world: World) -> None:
    thread = await world.thread()
    run, after = await world.run(thread, timeout_seconds=100), await world.run(thread, "enqueue")
    assignment = await world.take(run)
    assert (assignment.timeout_seconds, assignment.lease_seconds) == (100, POLICY.lease)
    for _ in range(3):
        await world.advance(50)
        assert await world.queue.renew("w1", [assignment.held]) == ["go"]
    await world.advance(30)
    ended = await world.threads.get_run(run.run_id)
    assert ended.status == "timeout"
    assert ended.error is not None
    assert "100 s" in ended.error.message
    with pytest.raises(Fenced):
        await world.finish(assignment.held)
    await world.done(after)


async def test_a_worker_that_died_long_ago_did_not_take_too_long(world: World) -> None:
    """The watchdog did not run for an hour. The lease expired before the timeout, so the run is retried."""
    run = await world.run(await world.thread())
    await world.take(run)
    await world.advance(3600)
    assert await world.status(run) == "pending"
    await world.done(run)


async def test_a_worker_that_was_lost_did_not_take_too_long_if_its_lease_is_longer(world: World) -> None:
    run = await world.run(await world.thread(), timeout_seconds=POLICY.lease / 10)
    await world.take(run)
    await world.advance(POLICY.lease / 2)
    assert await world.status(run) == "running"
    await world.advance(POLICY.lease)
    assert await world.status(run) == "pending"
    await world.done(run)


async def test_a_worker_that_stops_too_late_is_told_so(world: World) -> None:
    thread = await world.thread()
    run, after = await world.run(thread), await world.run(thread, "enqueue")
    held = (await world.take(run)).held
    await world.threads.cancel_run(run.run_id)
    await world.advance(50)
    with pytest.raises(Fenced):
        await world.finish(held, "stopped")
    assert await world.queue.renew("w1", [held]) == ["lost"]
    await world.done(after)
    assert await world.status(run) == "interrupted"


async def test_renewing_does_not_prolong_the_grace(world: World) -> None:
    thread = await world.thread()
    run, after = await world.run(thread), await world.run(thread, "enqueue")
    held = (await world.take(run)).held
    await world.threads.cancel_run(run.run_id)
    for _ in range(3):
        await world.advance(12)
        await world.queue.renew("w1", [held])
    await world.done(after)
