"""Waiting for rollouts to finish."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from perdure import EnqueueRolloutRequest, LightningStore, Rollout
from perdure.testing.grids import every

from .support import (
    PATIENCE,
    TERMINAL,
    Contract,
    Harness,
    RolloutStatus,
    claim,
    finish,
    new_rollout,
    retrying,
    soon,
)

__all__ = ["TestWaiters", "TestWaiting"]


def waiter(store: LightningStore, *rollout_ids: str) -> asyncio.Task[list[Rollout]]:
    """Start a task that waits for the rollouts without a timeout."""
    return asyncio.create_task(store.wait_for_rollouts(rollout_ids=list(rollout_ids), timeout=None))


class TestWaiting(Contract):
    """Result and duration of a wait."""

    async def test_nothing_to_wait_for(self, store: LightningStore) -> None:
        assert list(await soon(store.wait_for_rollouts(rollout_ids=[], timeout=None))) == []

    @every("seconds", [None, 0, 5.0])
    @every("status", TERMINAL)
    async def test_finished_ones_come_at_once(
        self, store: LightningStore, status: RolloutStatus, seconds: float | None
    ) -> None:
        started = await new_rollout(store)
        ended = await store.update_rollout(started.rollout_id, status=status)
        (waited,) = await soon(store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=seconds))
        assert (waited.rollout_id, waited.status, waited.end_time) == (
            ended.rollout_id,
            status,
            ended.end_time,
        )

    @every("status", ["queuing", "requeuing", "preparing", "running"])
    async def test_poll_shows_no_unfinished_one(self, store: LightningStore, status: RolloutStatus) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=status)
        assert await soon(store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=0)) == []

    async def test_timeout_gives_what_is_finished(self, store: LightningStore) -> None:
        done, pending = await new_rollout(store), await new_rollout(store)
        await finish(store, done)
        ids = [pending.rollout_id, done.rollout_id]
        before = time.monotonic()
        waited = await soon(store.wait_for_rollouts(rollout_ids=ids, timeout=0.1))
        assert [rollout.rollout_id for rollout in waited] == [done.rollout_id]
        assert 0.09 <= time.monotonic() - before < PATIENCE / 2

    async def test_in_the_order_asked(self, store: LightningStore) -> None:
        rollouts = [await new_rollout(store) for _ in range(4)]
        for started in rollouts:
            await finish(store, started)
        ids = [rollouts[i].rollout_id for i in (2, 0, 3, 1)]
        waited = await soon(store.wait_for_rollouts(rollout_ids=ids, timeout=0))
        assert [rollout.rollout_id for rollout in waited] == ids

    @pytest.mark.parametrize("seconds", [None, 0, 0.05])
    async def test_unknown_ids_are_absent(self, store: LightningStore, seconds: float | None) -> None:
        started = await new_rollout(store)
        await finish(store, started)
        ids = ["ro-missing", started.rollout_id]
        waited = await soon(store.wait_for_rollouts(rollout_ids=ids, timeout=seconds))
        assert [rollout.rollout_id for rollout in waited] == [started.rollout_id]

    async def test_changes_nothing(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        await store.wait_for_rollouts(rollout_ids=[queued.rollout_id], timeout=0)
        assert await store.get_rollout_by_id(queued.rollout_id) == queued


class TestWaiters(Contract):
    """Waiters that are present when a rollout finishes."""

    @pytest.mark.parametrize("status", ["succeeded", "failed"])
    async def test_woken_by_a_report(self, store: LightningStore, status: str) -> None:
        started = await new_rollout(store)
        waiting = waiter(store, started.rollout_id)
        await store.get_rollout_by_id(started.rollout_id)
        await finish(store, started, "succeeded" if status == "succeeded" else "failed")
        (rollout,) = await soon(waiting)
        assert (rollout.rollout_id, rollout.status) == (started.rollout_id, status)
        assert rollout.end_time is not None

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_woken_by_an_update(self, store: LightningStore, status: RolloutStatus) -> None:
        queued = await store.enqueue_rollout("task")
        waiting = waiter(store, queued.rollout_id)
        await store.get_rollout_by_id(queued.rollout_id)
        await store.update_rollout(queued.rollout_id, status=status)
        assert [rollout.status for rollout in await soon(waiting)] == [status]

    async def test_woken_by_the_watchdog(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, retrying(timeout_seconds=10, max_attempts=1))
        waiting = waiter(store, started.rollout_id)
        await harness.advance(11)
        await store.query_rollouts()
        assert [rollout.status for rollout in await soon(waiting)] == ["failed"]

    async def test_waits_for_all(self, store: LightningStore) -> None:
        first, second = await new_rollout(store), await new_rollout(store)
        waiting = waiter(store, first.rollout_id, second.rollout_id)
        await finish(store, first)
        assert await store.wait_for_rollouts(rollout_ids=[first.rollout_id], timeout=0) != []
        assert not waiting.done()
        await finish(store, second)
        waited = await soon(waiting)
        assert [rollout.rollout_id for rollout in waited] == [first.rollout_id, second.rollout_id]

    async def test_a_retry_is_not_the_end(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task", config=retrying("failed"))
        waiting = waiter(store, queued.rollout_id)
        await finish(store, await claim(store), "failed")
        assert not waiting.done()
        await finish(store, await claim(store))
        assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]

    async def test_many_waiters_on_one_rollout(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        waiting = [waiter(store, started.rollout_id) for _ in range(5)]
        await store.get_rollout_by_id(started.rollout_id)
        await finish(store, started)
        for waited in await soon(asyncio.gather(*waiting)):
            assert [rollout.rollout_id for rollout in waited] == [started.rollout_id]

    async def test_one_waiter_of_many_rollouts(self, store: LightningStore) -> None:
        rollouts = [await new_rollout(store) for _ in range(20)]
        waiting = waiter(store, *(started.rollout_id for started in rollouts))
        await asyncio.gather(*(finish(store, started) for started in rollouts))
        assert len(await soon(waiting)) == 20

    async def test_can_be_cancelled(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        waiting = waiter(store, started.rollout_id)
        await store.get_rollout_by_id(started.rollout_id)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(waiting)
        await finish(store, started)
        assert len(await soon(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))) == 1

    async def test_a_thousand_pending_take_no_threads(self, store: LightningStore) -> None:
        requests = [EnqueueRolloutRequest(input=i) for i in range(1000)]
        ids = [rollout.rollout_id for rollout in await store.enqueue_many_rollouts(requests)]
        await asyncio.gather(*(store.wait_for_rollouts(rollout_ids=[one], timeout=0.01) for one in ids[:100]))
        threads = threading.active_count()
        waiting = waiter(store, *ids)
        many = [waiter(store, rollout_id) for rollout_id in ids[:100]]
        assert await soon(store.wait_for_rollouts(rollout_ids=ids, timeout=0.1)) == []
        assert threading.active_count() <= threads
        for task in (waiting, *many):
            task.cancel()
        await asyncio.wait([waiting, *many])
