"""Situations in which the original loses work: each known trap is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import LightningStore, RolloutConfig

from .support import (
    ATTEMPT_STATUSES,
    QUEUED,
    TERMINAL,
    AttemptStatus,
    Contract,
    Harness,
    RolloutStatus,
    claim,
    drain,
    finish,
    get_rollout,
    get_worker,
    latest,
    list_attempts,
    make_span,
    new_rollout,
    retrying,
    soon,
)

__all__ = [
    "TestAtomicClaim",
    "TestCancelledIsSticky",
    "TestEndTime",
    "TestLateSpan",
    "TestRepeatedReport",
    "TestWaitersOfARequeue",
    "TestWatchdogOfItsOwn",
]


class TestLateSpan(Contract):
    """T1: a span that arrives after the attempt's end is stored and changes no status."""

    @pytest.mark.parametrize("retried", [True, False])
    @pytest.mark.parametrize("status", ["failed", "succeeded", "timeout"])
    async def test_is_stored_and_moves_nothing(
        self, store: LightningStore, status: AttemptStatus, retried: bool
    ) -> None:
        started = await new_rollout(store, retrying(status) if retried else None)
        ended = await finish(store, started, status)
        before = await get_rollout(store, started.rollout_id)
        assert await store.add_span(make_span(started)) is not None
        attempt = await latest(store, started.rollout_id)
        assert (attempt.status, attempt.end_time) == (status, ended.end_time)
        assert attempt.last_heartbeat_time is not None
        after = await get_rollout(store, started.rollout_id)
        assert (after.status, after.end_time) == (before.status, before.end_time)
        assert len(await store.query_spans(started.rollout_id)) == 1

    @pytest.mark.parametrize("status", ["failed", "timeout"])
    async def test_never_loses_the_retry(self, store: LightningStore, status: AttemptStatus) -> None:
        queued = await store.enqueue_rollout("task", config=retrying(status))
        first = await claim(store)
        await finish(store, first, status)
        await store.add_span(make_span(first))
        await store.add_many_spans([make_span(first), make_span(first)])
        second = await claim(store)
        assert (second.rollout_id, second.attempt.sequence_id) == (queued.rollout_id, 2)

    async def test_a_timeout_by_the_watchdog_is_final_for_spans(
        self, store: LightningStore, harness: Harness
    ) -> None:
        started = await new_rollout(store, retrying("timeout", timeout_seconds=10))
        await harness.advance(11)
        await store.query_rollouts()
        await store.add_span(make_span(started))
        assert (await latest(store, started.rollout_id)).status == "timeout"
        assert await drain(store) == [started.rollout_id]

    async def test_on_an_explicitly_requeued_rollout_keeps_the_retry(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started))
        await store.update_rollout(started.rollout_id, status="requeuing")
        await store.add_span(make_span(started))
        assert (await get_rollout(store, started.rollout_id)).status == "requeuing"
        assert await drain(store) == [started.rollout_id]

    @pytest.mark.parametrize("status", QUEUED)
    async def test_first_span_after_an_explicit_requeue_runs(
        self, store: LightningStore, status: RolloutStatus
    ) -> None:
        """T7: a preparing attempt that sends its first span is running."""
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=status)
        await store.add_span(make_span(started))
        assert (await get_rollout(store, started.rollout_id)).status == "running"
        assert (await latest(store, started.rollout_id)).status == "running"
        assert await drain(store) == []


class TestCancelledIsSticky(Contract):
    """T2: only an explicit update or a new attempt reopens a cancelled rollout."""

    async def cancelled(self, store: LightningStore, config: RolloutConfig | None = None) -> Any:
        started = await new_rollout(store, config, "w")
        await store.update_rollout(started.rollout_id, status="cancelled")
        return started

    @pytest.mark.parametrize("status", ATTEMPT_STATUSES)
    async def test_reports_do_not_move_it(self, store: LightningStore, status: AttemptStatus) -> None:
        started = await self.cancelled(store, retrying("failed", "timeout", "unresponsive"))
        before = await get_rollout(store, started.rollout_id)
        updated = await finish(store, started, status)
        assert updated.status == status
        after = await get_rollout(store, started.rollout_id)
        assert (after.status, after.end_time) == ("cancelled", before.end_time)
        assert await drain(store) == []

    async def test_metadata_and_heartbeats_do_not_move_it(self, store: LightningStore) -> None:
        started = await self.cancelled(store)
        await store.update_attempt(
            started.rollout_id, "latest", metadata={"k": 1}, last_heartbeat_time=started.start_time + 1
        )
        assert (await get_rollout(store, started.rollout_id)).status == "cancelled"

    async def test_spans_do_not_move_it(self, store: LightningStore) -> None:
        started = await self.cancelled(store)
        assert await store.add_span(make_span(started)) is not None
        await store.add_many_spans([make_span(started), make_span(started)])
        assert (await get_rollout(store, started.rollout_id)).status == "cancelled"
        assert len(await store.query_spans(started.rollout_id)) == 3

    async def test_a_silent_attempt_that_speaks_does_not_move_it(self, store: LightningStore) -> None:
        started = await self.cancelled(store, retrying("unresponsive"))
        await finish(store, started, "unresponsive")
        await store.add_span(make_span(started))
        await finish(store, started)
        assert (await get_rollout(store, started.rollout_id)).status == "cancelled"

    async def test_live_attempt_stays_until_it_is_reported(self, store: LightningStore) -> None:
        started = await self.cancelled(store)
        assert await latest(store, started.rollout_id) == started.attempt
        assert (await get_worker(store, "w")).status == "busy"
        ended = await finish(store, started)
        assert ended.end_time is not None
        assert (await get_worker(store, "w")).status == "idle"

    @pytest.mark.parametrize(
        ("limits", "ending"),
        [({"timeout_seconds": 10}, "timeout"), ({"unresponsive_seconds": 10}, "unresponsive")],
    )
    async def test_watchdog_still_ends_the_live_attempt(
        self, store: LightningStore, harness: Harness, limits: dict[str, Any], ending: AttemptStatus
    ) -> None:
        started = await self.cancelled(store, retrying(ending, **limits))
        await harness.advance(11)
        assert (await latest(store, started.rollout_id)).status == ending
        assert (await get_rollout(store, started.rollout_id)).status == "cancelled"
        worker = await get_worker(store, "w")
        assert (worker.status, worker.current_attempt_id) == ("unknown", None)
        assert await drain(store) == []

    @pytest.mark.parametrize("status", QUEUED)
    async def test_an_explicit_update_reopens_it(self, store: LightningStore, status: RolloutStatus) -> None:
        started = await self.cancelled(store)
        reopened = await store.update_rollout(started.rollout_id, status=status)
        assert reopened.end_time is None
        again = await claim(store)
        await finish(store, again)
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"

    async def test_a_new_attempt_reopens_it(self, store: LightningStore) -> None:
        started = await self.cancelled(store)
        again = await store.start_attempt(started.rollout_id)
        assert (again.status, again.end_time) == ("preparing", None)
        await finish(store, again)
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"


class TestEndTime(Contract):
    """T4: an end time means that the rollout has ended, and nothing else."""

    @pytest.mark.parametrize("target", ["queuing", "requeuing", "preparing", "running"])
    @pytest.mark.parametrize("ended", TERMINAL)
    async def test_cleared_by_an_update(
        self, store: LightningStore, ended: RolloutStatus, target: RolloutStatus
    ) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=ended)
        assert (await store.update_rollout(started.rollout_id, status=target)).end_time is None
        assert (await get_rollout(store, started.rollout_id)).end_time is None

    @pytest.mark.parametrize("ended", TERMINAL)
    async def test_cleared_by_a_new_attempt(self, store: LightningStore, ended: RolloutStatus) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=ended)
        assert (await store.start_attempt(started.rollout_id)).end_time is None
        assert (await get_rollout(store, started.rollout_id)).end_time is None

    async def test_cleared_when_the_attempt_is_running_again(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await finish(store, started, "failed")
        await finish(store, started, "running")
        rollout = await get_rollout(store, started.rollout_id)
        assert (rollout.status, rollout.end_time) == ("running", None)

    async def test_set_again_at_the_second_end(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store)
        await finish(store, started)
        await store.update_rollout(started.rollout_id, status="requeuing")
        await harness.advance(100)
        again = await claim(store)
        await finish(store, again)
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout.end_time is not None
        assert rollout.end_time >= again.attempt.start_time


class TestRepeatedReport(Contract):
    """A repeated report counts once."""

    @pytest.mark.parametrize("status", ["succeeded", "failed"])
    async def test_times_are_kept(
        self, store: LightningStore, harness: Harness, status: AttemptStatus
    ) -> None:
        started = await new_rollout(store)
        await finish(store, started, status)
        await harness.advance(10)
        before = await get_rollout(store, started.rollout_id)
        await finish(store, started, status)
        assert await get_rollout(store, started.rollout_id) == before

    async def test_a_retry_is_not_doubled(self, store: LightningStore) -> None:
        started = await new_rollout(store, retrying("failed"))
        await finish(store, started, "failed")
        await finish(store, started, "failed")
        assert await drain(store) == [started.rollout_id]

    @pytest.mark.parametrize("status", ["succeeded", "failed"])
    @pytest.mark.parametrize("moved_to", [*QUEUED, "cancelled"])
    async def test_does_not_undo_an_explicit_update(
        self, store: LightningStore, status: AttemptStatus, moved_to: RolloutStatus
    ) -> None:
        started = await new_rollout(store)
        await finish(store, started, status)
        await store.update_rollout(started.rollout_id, status=moved_to)
        await finish(store, started, status)
        assert (await get_rollout(store, started.rollout_id)).status == moved_to
        assert await drain(store) == ([started.rollout_id] if moved_to in QUEUED else [])


class TestWaitersOfARequeue(Contract):
    """T4: waiters wait for a rollout that has finished and is queued again."""

    @pytest.mark.parametrize("ended", TERMINAL)
    async def test_keep_waiting(self, store: LightningStore, ended: RolloutStatus) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, status=ended)
        await store.update_rollout(started.rollout_id, status="requeuing")
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        ended_early, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not ended_early
        await finish(store, await claim(store))
        assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]


class TestWatchdogOfItsOwn(Contract):
    """T9: timeouts fire without any call."""

    @pytest.mark.parametrize("limits", [{"timeout_seconds": 10}, {"unresponsive_seconds": 10}], ids=str)
    async def test_ends_a_rollout_that_someone_waits_for(
        self, store: LightningStore, harness: Harness, limits: dict[str, Any]
    ) -> None:
        started = await new_rollout(store, RolloutConfig(**limits))
        waiting = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        assert await store.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=0) == []
        await harness.advance(11)
        assert [rollout.status for rollout in await soon(waiting)] == ["failed"]


class TestAtomicClaim(Contract):
    """T6: a claim and its attempt are one; a caller that goes away loses nothing."""

    async def test_cancelled_callers_lose_no_rollout(self, store: LightningStore) -> None:
        ids = {(await store.enqueue_rollout(i)).rollout_id for i in range(20)}
        calls = [asyncio.create_task(store.dequeue_rollout()) for _ in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await soon(asyncio.wait(calls))
        await drain(store)
        rollouts = await store.query_rollouts()
        assert {rollout.rollout_id for rollout in rollouts} == ids
        for rollout in rollouts:
            attempts = await list_attempts(store, rollout.rollout_id)
            assert rollout.status in QUEUED or attempts[-1].status == rollout.status == "preparing"
