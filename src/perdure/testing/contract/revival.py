"""T3: a report from an attempt marked unresponsive revives it while it is still the latest."""

from __future__ import annotations

import pytest

from perdure import AttemptedRollout, LightningStore, RolloutConfig

from .support import (
    AttemptStatus,
    Contract,
    Harness,
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
)

__all__ = ["TestOlderAttemptSpeaks", "TestRevival"]


async def silent(
    store: LightningStore, harness: Harness, retried: bool, worker_id: str | None = None
) -> AttemptedRollout:
    """Create a rollout whose only attempt the watchdog has marked unresponsive."""
    condition: tuple[AttemptStatus, ...] = ("unresponsive",) if retried else ()
    config = retrying(*condition, unresponsive_seconds=10)
    started = await new_rollout(store, config, worker_id)
    await harness.advance(11)
    assert (await latest(store, started.rollout_id)).status == "unresponsive"
    return started


class TestRevival(Contract):
    """The latest attempt comes back."""

    @pytest.mark.parametrize("retried", [True, False])
    async def test_by_a_span(self, store: LightningStore, harness: Harness, retried: bool) -> None:
        started = await silent(store, harness, retried)
        before = await get_rollout(store, started.rollout_id)
        assert before.status == ("requeuing" if retried else "failed")
        await store.add_span(make_span(started))
        rollout = await get_rollout(store, started.rollout_id)
        assert (rollout.status, rollout.end_time) == ("running", None)
        assert (await latest(store, started.rollout_id)).status == "running"
        assert await store.dequeue_rollout() is None

    @pytest.mark.parametrize("retried", [True, False])
    @pytest.mark.parametrize("status", ["succeeded", "failed"])
    async def test_then_its_report_counts(
        self, store: LightningStore, harness: Harness, status: AttemptStatus, retried: bool
    ) -> None:
        started = await silent(store, harness, retried)
        await store.add_span(make_span(started))
        await finish(store, started, status)
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout.status == status
        assert rollout.end_time is not None
        assert await drain(store) == []

    @pytest.mark.parametrize("retried", [True, False])
    async def test_by_success_alone(self, store: LightningStore, harness: Harness, retried: bool) -> None:
        started = await silent(store, harness, retried)
        await finish(store, started)
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"
        assert await drain(store) == []

    async def test_failure_alone_ends_a_waiting_retry(self, store: LightningStore, harness: Harness) -> None:
        started = await silent(store, harness, retried=True)
        await finish(store, started, "failed")
        assert (await get_rollout(store, started.rollout_id)).status == "failed"
        assert await drain(store) == []

    async def test_a_failure_that_was_told_is_not_taken_back(
        self, store: LightningStore, harness: Harness
    ) -> None:
        started = await silent(store, harness, retried=True)
        await store.update_rollout(started.rollout_id, status="failed")
        before = await get_rollout(store, started.rollout_id)
        await store.add_span(make_span(started))
        after = await get_rollout(store, started.rollout_id)
        assert (after.status, after.end_time) == ("failed", before.end_time)
        assert await drain(store) == []

    async def test_timeout_is_lifted_by_a_report(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=10))
        await harness.advance(11)
        assert (await get_rollout(store, started.rollout_id)).status == "failed"
        await finish(store, started)
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"
        assert (await latest(store, started.rollout_id)).status == "succeeded"

    @pytest.mark.parametrize("retried", [True, False])
    async def test_is_watched_again(self, store: LightningStore, harness: Harness, retried: bool) -> None:
        started = await silent(store, harness, retried)
        await store.add_span(make_span(started))
        await harness.advance(11)
        assert (await latest(store, started.rollout_id)).status == "unresponsive"
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout.status == ("requeuing" if retried else "failed")

    async def test_the_retry_comes_back_when_it_falls_silent_again(
        self, store: LightningStore, harness: Harness
    ) -> None:
        started = await silent(store, harness, retried=True)
        await store.add_span(make_span(started))
        await harness.advance(11)
        again = await claim(store)
        assert (again.rollout_id, again.attempt.sequence_id) == (started.rollout_id, 2)

    async def test_worker_stays_unknown(self, store: LightningStore, harness: Harness) -> None:
        started = await silent(store, harness, retried=True, worker_id="w")
        await store.add_span(make_span(started))
        worker = await get_worker(store, "w")
        assert (worker.status, worker.current_attempt_id) == ("unknown", None)


class TestOlderAttemptSpeaks(Contract):
    """A replaced attempt may live on, but does not change its rollout."""

    @pytest.mark.parametrize("status", ["preparing", "unresponsive"])
    async def test_it_runs_and_nothing_else_moves(
        self, store: LightningStore, harness: Harness, status: AttemptStatus
    ) -> None:
        first = await new_rollout(store, retrying("unresponsive"), "old")
        if status == "unresponsive":
            await finish(store, first, status)
            second = await claim(store, "new")
        else:
            second = await store.start_attempt(first.rollout_id, "new")
        old, new = await get_worker(store, "old"), await get_worker(store, "new")
        await store.add_span(make_span(first))
        one, two = await list_attempts(store, first.rollout_id)
        assert (one.status, two) == ("running", second.attempt)
        assert (await get_rollout(store, first.rollout_id)).status == "preparing"
        assert (await get_worker(store, "old"), await get_worker(store, "new")) == (old, new)
        assert await store.dequeue_rollout() is None

    async def test_it_stays_ended_if_it_had_ended(self, store: LightningStore) -> None:
        first = await new_rollout(store)
        ended = await finish(store, first, "failed")
        second = await store.start_attempt(first.rollout_id)
        await store.add_span(make_span(first))
        one, two = await list_attempts(store, first.rollout_id)
        assert (one.status, one.end_time) == ("failed", ended.end_time)
        assert two == second.attempt
        assert (await get_rollout(store, first.rollout_id)).status == "preparing"

    async def test_a_finished_rollout_stays_finished(self, store: LightningStore) -> None:
        first = await new_rollout(store)
        second = await store.start_attempt(first.rollout_id)
        await finish(store, second)
        before = await get_rollout(store, first.rollout_id)
        await store.add_span(make_span(first))
        assert await get_rollout(store, first.rollout_id) == before

    async def test_a_waiting_retry_stays_in_the_queue(self, store: LightningStore) -> None:
        first = await new_rollout(store, retrying("failed"))
        second = await store.start_attempt(first.rollout_id)
        await finish(store, second, "failed")
        await store.add_span(make_span(first))
        assert (await get_rollout(store, first.rollout_id)).status == "requeuing"
        assert await drain(store) == [first.rollout_id]
