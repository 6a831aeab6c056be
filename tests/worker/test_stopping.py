"""Runs that stop before their agents are done: cancelled, lost, timed out, or because the worker stops."""

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from tests.worker.worker_support import House

from perdure.agents.context import Cancelled
from perdure.kernel.errors import StorageUnavailable


@pytest.fixture
def house() -> House:
    return House()


def waiting(house: House, seen: list[Any]) -> None:
    """Agent that waits to be cancelled, and records how it was."""

    @house.agents.agent("waiting")
    async def wait(ctx: Any, input: Any) -> None:
        house.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(ctx.cancelled)
            try:
                await ctx.emit("too late")
            except Cancelled as cancelled:
                seen.append(cancelled.action)
            raise


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_a_cancelled_run_stops_and_its_stop_is_confirmed(house: House, action: Any) -> None:
    seen: list[Any] = []
    waiting(house, seen)
    async with house.working(interval=5.0) as worker:
        run_id = house.queue.add("waiting")
        await house.began()
        house.queue.cancel(run_id, action)
        row = await house.queue.ended(run_id)
    assert seen == [True, action]
    assert row.results == ["stopped"]
    assert worker.statistics.runs == {"stopped": 1}


async def test_a_cancel_is_heard_at_once_and_not_at_the_next_renewal(house: House) -> None:
    waiting(house, [])
    async with house.working(interval=10.0, heartbeat=30.0):
        run_id = house.queue.add("waiting")
        await house.began()
        house.queue.cancel(run_id)
        began = time.monotonic()
        await house.queue.ended(run_id)
    assert time.monotonic() - began < 9, "the next renewal would be after ten seconds"
    assert "renew" not in {name for name, _ in house.queue.calls}


async def test_a_renewal_tells_of_a_cancel_when_controls_fail(house: House) -> None:
    waiting(house, [])
    house.queue.faults["controls"] = [StorageUnavailable() for _ in range(1000)]
    async with house.working(heartbeat=0.3):
        run_id = house.queue.add("waiting")
        await house.began()
        house.queue.cancel(run_id)
        row = await house.queue.ended(run_id)
    assert row.results == ["stopped"]


async def test_an_agent_that_will_not_stop_is_left_behind(house: House) -> None:
    @house.agents.agent("stubborn")
    async def stubborn(ctx: Any, input: Any) -> None:
        house.begun.set()
        while not house.gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    async with house.working() as worker:
        run_id = house.queue.add("stubborn")
        await house.began()
        house.queue.cancel(run_id)
        row = await house.queue.ended(run_id)
        await house.queue.until(lambda: worker.active == 0)
    assert row.results == ["stopped"]


async def test_a_sync_agent_sees_that_it_is_cancelled(house: House) -> None:
    seen: list[Any] = []

    @house.agents.agent("sync")
    def sync(ctx: Any, input: Any) -> None:
        house.begun.set()
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        try:
            ctx.call(lambda: ctx.emit("too late"))
        except Cancelled as cancelled:
            seen.append(cancelled.action)

    async with house.working():
        run_id = house.queue.add("sync")
        await house.began()
        house.queue.cancel(run_id)
        row = await house.queue.ended(run_id)
    assert seen == ["interrupt"]
    assert row.results == ["stopped"]


async def test_a_lost_run_is_forgotten_without_a_word(house: House) -> None:
    seen: list[Any] = []
    waiting(house, seen)
    async with house.working(concurrency=1, heartbeat=0.3, grace=0.0) as worker:
        run_id = house.queue.add("waiting")
        await house.began()
        house.begun.clear()
        house.queue.steal(run_id)
        await house.queue.until(lambda: worker.statistics.leases_lost == 1)
        row = house.queue.rows[run_id]
        assert seen == [True, "lost"]
        assert "finish" not in {name for name, _ in house.queue.calls}
        await house.began()
        assert row.run.attempt == 2


async def test_a_worker_that_is_cut_off_stops_by_itself(house: House) -> None:
    house = House(lease=0.3)
    seen: list[Any] = []
    waiting(house, seen)
    house.queue.faults["renew"] = [StorageUnavailable() for _ in range(1000)]
    house.queue.faults["controls"] = [StorageUnavailable() for _ in range(1000)]
    async with house.working(concurrency=1, grace=0.0) as worker:
        house.queue.add("waiting")
        await house.began()
        house.queue.faults["claim"] = [StorageUnavailable() for _ in range(1000)]
        await house.queue.until(lambda: worker.statistics.leases_lost == 1)
    assert seen == [True, "lost"]


async def test_leases_are_renewed_together_while_agents_work(house: House) -> None:
    house = House(lease=1.5)

    @house.agents.agent("long")
    async def long(ctx: Any, input: Any) -> None:
        await asyncio.to_thread(house.gate.wait)

    runs = [house.queue.add("long") for _ in range(4)]
    async with house.working():
        for _ in range(4):
            house.queue.calls.clear()
            await house.queue.until(lambda: ("renew", 4) in house.queue.calls)
        house.gate.set()
        rows = [await house.queue.ended(run_id) for run_id in runs]
    assert [row.results for row in rows] == [["success"]] * 4


async def test_an_agent_that_blocks_its_loop_costs_no_lease(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house = House(lease=1.2)

    @house.agents.agent("blocking")
    async def blocking(ctx: Any, input: Any) -> None:
        house.begun.set()
        house.gate.wait(20)

    @house.agents.agent("good")
    async def good(ctx: Any, input: Any) -> None:
        return None

    with house.released(), caplog.at_level(logging.WARNING):
        async with house.working() as worker:
            blocked = house.queue.add("blocking")
            await house.began()
            house.queue.calls.clear()
            # A run in the blocked loop waits until the worker detects the block and moves it to another loop.
            row = await house.queue.ended(house.queue.add("good"))
            assert row.run.status == "success"
            assert "BG_JOB_ISOLATED_LOOPS=true" in caplog.text
            await house.queue.until(lambda: worker.active == 1)
            house.gate.set()
            done = await house.queue.ended(blocked)
    assert done.results == ["success"]
    assert len([1 for name, _ in house.queue.calls if name == "renew"]) >= 2


async def test_an_agent_that_blocks_beyond_its_time_is_left_behind(house: House) -> None:
    @house.agents.agent("blocking")
    async def blocking(ctx: Any, input: Any) -> None:
        house.gate.wait(20)

    @house.agents.agent("good")
    async def good(ctx: Any, input: Any) -> None:
        return None

    with house.released():
        async with house.working():
            row = await house.queue.ended(house.queue.add("blocking", timeout=0.1))
            after = await house.queue.ended(house.queue.add("good"))
    assert row.run.status == "timeout"
    assert after.run.status == "success"


async def test_isolated_loops_do_not_even_wait_for_each_other(house: House) -> None:
    @house.agents.agent("blocking")
    async def blocking(ctx: Any, input: Any) -> None:
        house.begun.set()
        house.gate.wait(20)

    @house.agents.agent("good")
    async def good(ctx: Any, input: Any) -> None:
        house.gate.set()

    with house.released():
        async with house.working(isolated_loops=True):
            blocked = house.queue.add("blocking")
            await house.began()
            await house.queue.ended(house.queue.add("good"))
            row = await house.queue.ended(blocked)
    assert row.results == ["success"]
    assert not [each for each in threading.enumerate() if each.name.startswith("perdure-agents")]


async def test_a_worker_that_stops_lets_runs_end_within_its_grace(house: House) -> None:
    @house.agents.agent("slow")
    async def slow(ctx: Any, input: Any) -> str:
        house.begun.set()
        await asyncio.to_thread(house.gate.wait)
        return "done"

    worker = house.worker()
    await worker.start()
    run_id, later = house.queue.add("slow"), house.queue.add("slow", thread_id="other")
    await house.began()
    stopping = asyncio.ensure_future(worker.stop(grace=20))
    await house.queue.until(lambda: worker._stopping)
    house.gate.set()
    await stopping
    assert house.queue.rows[run_id].results == ["success"]
    # The worker has places for both. It hands back a run that it had claimed and not begun.
    assert house.queue.rows[later].results in ([], ["success"], ["handed back"])


async def test_what_does_not_end_in_time_is_handed_back_uncharged(house: House) -> None:
    seen: list[Any] = []
    waiting(house, seen)
    runs = [house.queue.add("waiting") for _ in range(3)]
    worker = house.worker()
    await worker.start()
    await house.queue.until(lambda: worker.active == 3)
    await house.began()
    await worker.stop(grace=0.05)
    rows = [house.queue.rows[run_id] for run_id in runs]
    assert [(row.results, row.charged, row.run.status) for row in rows] == [
        (["handed back"], 0, "pending")
    ] * 3
    assert [count for name, count in house.queue.calls if name == "hand_back"] == [3]
    assert seen.count("shutdown") == 3
    house.begun.clear()
    async with house.working():
        await house.began()


async def test_a_blocked_agent_does_not_keep_a_worker_from_ending(house: House) -> None:
    @house.agents.agent("blocking")
    async def blocking(ctx: Any, input: Any) -> None:
        house.begun.set()
        house.gate.wait(20)

    worker = house.worker()
    await worker.start()
    run_id = house.queue.add("blocking")
    await house.began()
    with house.released():
        await worker.stop(grace=0.0)
    assert house.queue.rows[run_id].results == ["handed back"]


async def test_an_agent_that_ends_well_while_it_is_stopped_has_ended_well(house: House) -> None:
    @house.agents.agent("careful")
    async def careful(ctx: Any, input: Any) -> str:
        house.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "tidied up"
        return ""

    worker = house.worker()
    await worker.start()
    run_id = house.queue.add("careful")
    await house.began()
    await worker.stop(grace=0.0)
    assert house.queue.rows[run_id].told("values") == ["tidied up"]


async def test_a_claim_that_fails_is_tried_again(house: House) -> None:
    @house.agents.agent("good")
    async def good(ctx: Any, input: Any) -> None:
        return None

    house.queue.faults["claim"] = [StorageUnavailable() for _ in range(3)]
    async with house.working():
        row = await house.queue.ended(house.queue.add("good"))
    assert row.results == ["success"]


async def test_a_worker_says_how_busy_it_is(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def queue_stats() -> dict[str, Any]:
        return {"n_pending": 1, "n_running": 0, "min_age_secs": 0.5, "med_age_secs": 0.5}

    worker = house.worker(concurrency=7, stats_interval=0.02)
    worker.statistics._queue_stats = queue_stats
    with caplog.at_level(logging.INFO):
        await worker.start()
        await house.queue.until(lambda: "Queue stats" in caplog.text)
        await worker.stop()
    assert "Worker stats: max=7 available=7 active=0" in caplog.text
    assert "Queue stats: n_pending=1 n_running=0 min_age_secs=0.500 med_age_secs=0.500" in caplog.text


async def test_a_lost_attempt_does_not_stop_the_next_one_in_the_same_worker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict on the first attempt arrives after the next claim, and must not stop the second attempt."""
    asked, again = threading.Event(), threading.Event()

    @house.agents.agent("lost")
    async def lose(ctx: Any, input: Any) -> str:
        if ctx.attempt == 1:
            house.begun.set()
            await asyncio.Event().wait()
        again.set()
        await asyncio.to_thread(house.gate.wait, 20)
        return "done"

    async def controls(held: Any, wait: float = 0.0) -> dict[str, Any]:
        asked.set()
        assert await asyncio.to_thread(again.wait, 20)
        house.gate.set()
        return {each.run_id: "lost" for each in held if not house.queue._holds(each)}

    monkeypatch.setattr(house.queue, "controls", controls)
    async with house.working(heartbeat=60.0):
        run_id = house.queue.add("lost")
        await house.began()
        assert await asyncio.to_thread(asked.wait, 20)
        house.queue.steal(run_id)
        row = await house.queue.ended(run_id)
    assert row.results == ["swept", "success"]
