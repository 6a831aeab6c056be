"""The watchdog: attempts that take too long or stop sending heartbeats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import EnqueueRolloutRequest, LightningStore, RolloutConfig

from .support import (
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
)

__all__ = ["TestSilence", "TestTimeout", "TestWatchdogRetries", "TestWatchdogRuns"]

Call = Callable[[LightningStore, str], Awaitable[Any]]

CALLS: dict[str, Call] = {
    "start_rollout": lambda store, _: store.start_rollout("x"),
    "enqueue_rollout": lambda store, _: store.enqueue_rollout("x"),
    "enqueue_many_rollouts": lambda store, _: store.enqueue_many_rollouts([EnqueueRolloutRequest(input="x")]),
    "dequeue_rollout": lambda store, _: store.dequeue_rollout(),
    "dequeue_many_rollouts": lambda store, _: store.dequeue_many_rollouts(limit=2),
    "start_attempt": lambda store, other: store.start_attempt(other),
    "query_rollouts": lambda store, _: store.query_rollouts(),
    "query_attempts": lambda store, other: store.query_attempts(other),
    "query_spans": lambda store, other: store.query_spans(other),
    "get_rollout_by_id": lambda store, other: store.get_rollout_by_id(other),
    "get_latest_attempt": lambda store, other: store.get_latest_attempt(other),
    "wait_for_rollouts": lambda store, other: store.wait_for_rollouts(rollout_ids=[other], timeout=0),
    "update_rollout": lambda store, other: store.update_rollout(other, metadata={"k": 1}),
    "update_attempt": lambda store, other: store.update_attempt(other, "latest", metadata={"k": 1}),
    "update_resources": lambda store, _: store.update_resources("mine", {}),
    "query_workers": lambda store, _: store.query_workers(),
}


class TestWatchdogRuns(Contract):
    """The watchdog runs before the calls that the contract names."""

    @pytest.mark.parametrize("call", CALLS)
    async def test_before_the_call(self, store: LightningStore, harness: Harness, call: str) -> None:
        other = await new_rollout(store)
        await new_rollout(store, RolloutConfig(timeout_seconds=10), "w")
        await harness.advance(11)
        await CALLS[call](store, other.rollout_id)
        assert (await get_worker(store, "w")).status == "unknown"

    async def test_the_call_itself_sees_the_effect(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, retrying("timeout", timeout_seconds=10))
        await harness.advance(11)
        # The watchdog's timer may lock the rollout at this moment, and a claim skips locked rows.
        claimed = await store.dequeue_rollout() or await claim(store)
        assert (claimed.rollout_id, claimed.attempt.sequence_id) == (started.rollout_id, 2)

    async def test_many_overdue_attempts_at_once(self, store: LightningStore, harness: Harness) -> None:
        for _ in range(30):
            await new_rollout(store, RolloutConfig(timeout_seconds=10))
        await harness.advance(11)
        assert {rollout.status for rollout in await store.query_rollouts()} == {"failed"}


class TestTimeout(Contract):
    """`timeout_seconds` counts from the attempt's start, regardless of heartbeats."""

    async def test_not_before_its_time(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=1000))
        await harness.advance(500)
        assert (await latest(store, started.rollout_id)).status == "preparing"
        assert (await get_rollout(store, started.rollout_id)).status == "preparing"

    @pytest.mark.parametrize("running", [True, False])
    async def test_ends_attempt_and_rollout(
        self, store: LightningStore, harness: Harness, running: bool
    ) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=10))
        if running:
            await store.add_span(make_span(started))
        await harness.advance(11)
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout.status == "failed"
        assert rollout.end_time is not None
        attempt = await latest(store, started.rollout_id)
        assert (attempt.status, attempt.end_time) == ("timeout", None)

    async def test_spans_do_not_put_it_off(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=100))
        await harness.advance(60)
        await store.add_span(make_span(started))
        await harness.advance(60)
        assert (await latest(store, started.rollout_id)).status == "timeout"

    async def test_comes_before_silence(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=10, unresponsive_seconds=5))
        await harness.advance(11)
        assert (await latest(store, started.rollout_id)).status == "timeout"

    async def test_no_limit_by_default(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store)
        await harness.advance(10_000_000)
        assert (await latest(store, started.rollout_id)).status == "preparing"

    async def test_waiting_in_the_queue_does_not_count(self, store: LightningStore, harness: Harness) -> None:
        queued = await store.enqueue_rollout("task", config=RolloutConfig(timeout_seconds=10))
        await harness.advance(100)
        assert (await get_rollout(store, queued.rollout_id)).status == "queuing"
        await claim(store)
        await harness.advance(5)
        assert (await latest(store, queued.rollout_id)).status == "preparing"
        await harness.advance(6)
        assert (await latest(store, queued.rollout_id)).status == "timeout"

    async def test_each_attempt_has_its_own_time(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=100))
        await harness.advance(60)
        await store.start_attempt(started.rollout_id)
        await harness.advance(60)
        assert (await latest(store, started.rollout_id)).status == "preparing"
        await harness.advance(50)
        assert (await latest(store, started.rollout_id)).status == "timeout"

    async def test_finished_attempts_are_left_alone(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=10, unresponsive_seconds=10))
        await finish(store, started)
        await harness.advance(100)
        assert (await latest(store, started.rollout_id)).status == "succeeded"
        assert (await get_rollout(store, started.rollout_id)).status == "succeeded"

    async def test_older_attempts_are_left_alone(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=10))
        await store.add_span(make_span(started))
        await store.start_attempt(started.rollout_id)
        await harness.advance(11)
        assert [one.status for one in await list_attempts(store, started.rollout_id)] == [
            "running",
            "timeout",
        ]

    async def test_a_config_set_later_counts(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store)
        await store.update_rollout(started.rollout_id, config=RolloutConfig(timeout_seconds=10))
        await harness.advance(11)
        assert (await latest(store, started.rollout_id)).status == "timeout"

    async def test_a_config_taken_away_counts_too(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(timeout_seconds=100))
        await store.update_rollout(started.rollout_id, config=RolloutConfig(timeout_seconds=1000))
        await harness.advance(200)
        assert (await latest(store, started.rollout_id)).status == "preparing"

    async def test_worker_becomes_unknown(self, store: LightningStore, harness: Harness) -> None:
        await new_rollout(store, RolloutConfig(timeout_seconds=10), "w")
        await harness.advance(11)
        await store.query_rollouts()
        worker = await get_worker(store, "w")
        assert (worker.status, worker.current_rollout_id, worker.current_attempt_id) == (
            "unknown",
            None,
            None,
        )
        assert worker.last_idle_time is not None


class TestSilence(Contract):
    """`unresponsive_seconds` counts from the last sign of life."""

    @pytest.mark.parametrize("spoke", [True, False])
    async def test_ends_attempt_and_rollout(
        self, store: LightningStore, harness: Harness, spoke: bool
    ) -> None:
        started = await new_rollout(store, RolloutConfig(unresponsive_seconds=10), "w")
        if spoke:
            await store.add_span(make_span(started))
        await harness.advance(11)
        assert (await get_rollout(store, started.rollout_id)).status == "failed"
        attempt = await latest(store, started.rollout_id)
        assert (attempt.status, attempt.end_time) == ("unresponsive", None)
        assert (await get_worker(store, "w")).status == "unknown"

    async def test_spans_put_it_off(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(unresponsive_seconds=100))
        for _ in range(4):
            await harness.advance(60)
            await store.add_span(make_span(started))
        assert (await latest(store, started.rollout_id)).status == "running"
        await harness.advance(101)
        assert (await latest(store, started.rollout_id)).status == "unresponsive"

    async def test_a_reported_heartbeat_puts_it_off(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(unresponsive_seconds=100))
        await harness.advance(60)
        begun = (await latest(store, started.rollout_id)).start_time
        await store.update_attempt(started.rollout_id, "latest", last_heartbeat_time=begun + 60)
        await harness.advance(60)
        assert (await latest(store, started.rollout_id)).status == "preparing"
        await harness.advance(50)
        assert (await latest(store, started.rollout_id)).status == "unresponsive"

    async def test_worker_heartbeats_do_not_count(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store, RolloutConfig(unresponsive_seconds=100), "w")
        await harness.advance(60)
        await store.update_worker("w")
        await harness.advance(60)
        assert (await latest(store, started.rollout_id)).status == "unresponsive"

    async def test_a_long_but_talkative_attempt_times_out(
        self, store: LightningStore, harness: Harness
    ) -> None:
        config = RolloutConfig(timeout_seconds=150, unresponsive_seconds=100)
        started = await new_rollout(store, config)
        await harness.advance(80)
        await store.add_span(make_span(started))
        await harness.advance(80)
        assert (await latest(store, started.rollout_id)).status == "timeout"


class TestWatchdogRetries(Contract):
    """Attempts that the watchdog ends are retried like others."""

    @pytest.mark.parametrize("status", ["timeout", "unresponsive"])
    async def test_until_the_attempts_are_used_up(
        self, store: LightningStore, harness: Harness, status: Any
    ) -> None:
        limits = {f"{status}_seconds": 10.0}
        queued = await store.enqueue_rollout("task", config=retrying(status, max_attempts=2, **limits))
        await claim(store)
        await harness.advance(11)
        assert (await get_rollout(store, queued.rollout_id)).status == "requeuing"
        second = await claim(store)
        assert second.attempt.sequence_id == 2
        await harness.advance(11)
        assert (await get_rollout(store, queued.rollout_id)).status == "failed"
        assert [one.status for one in await list_attempts(store, queued.rollout_id)] == [status, status]
        assert await drain(store) == []

    @pytest.mark.parametrize("condition", ["failed", "unresponsive"])
    async def test_only_if_the_condition_names_it(
        self, store: LightningStore, harness: Harness, condition: Any
    ) -> None:
        started = await new_rollout(store, retrying(condition, timeout_seconds=10))
        await harness.advance(11)
        assert (await get_rollout(store, started.rollout_id)).status == "failed"

    @pytest.mark.parametrize("status", ["queuing", "requeuing", "succeeded", "failed", "cancelled"])
    async def test_moves_a_rollout_only_while_it_runs(
        self, store: LightningStore, harness: Harness, status: RolloutStatus
    ) -> None:
        started = await new_rollout(store, retrying("timeout", timeout_seconds=10))
        before = await store.update_rollout(started.rollout_id, status=status)
        await harness.advance(11)
        rollout = await get_rollout(store, started.rollout_id)
        assert rollout.status == status
        assert (rollout.end_time is None) == (before.end_time is None)
        assert await drain(store) == ([started.rollout_id] if status in ("queuing", "requeuing") else [])
