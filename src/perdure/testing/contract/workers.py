"""Workers: their status follows from the attempts they hold, their heartbeats are their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from perdure import LightningStore, Worker

from .paging import PAGES, check_page, check_pages_join, check_sorted
from .support import (
    ATTEMPT_STATUSES,
    AttemptStatus,
    Contract,
    Harness,
    WorkerStatus,
    claim,
    finish,
    get_worker,
    make_span,
    new_rollout,
)

__all__ = ["TestQueryWorkers", "TestWorkerHeartbeat", "TestWorkerHolds", "TestWorkerStatus"]

AFTER: dict[AttemptStatus, WorkerStatus] = {
    "preparing": "busy",
    "running": "busy",
    "succeeded": "idle",
    "failed": "idle",
    "timeout": "unknown",
    "unresponsive": "unknown",
}
FIELDS = [
    "worker_id",
    "status",
    "last_heartbeat_time",
    "last_dequeue_time",
    "last_busy_time",
    "last_idle_time",
    "current_rollout_id",
    "current_attempt_id",
]


def holding(worker: Worker) -> tuple[str | None, str | None]:
    return worker.current_rollout_id, worker.current_attempt_id


class TestWorkerHeartbeat(Contract):
    """`update_worker` records a sign of life, and nothing else."""

    async def test_unknown_worker_is_none(self, store: LightningStore) -> None:
        assert await store.get_worker_by_id("nobody") is None

    async def test_creates_the_worker(self, store: LightningStore) -> None:
        worker = await store.update_worker("w")
        assert type(worker) is Worker
        assert (worker.worker_id, worker.status, worker.heartbeat_stats) == ("w", "unknown", None)
        assert worker.last_heartbeat_time is not None
        assert await store.get_worker_by_id("w") == worker

    async def test_stats_are_kept(self, store: LightningStore) -> None:
        stats = {"cpu": 0.5, "nested": {"list": [1, None]}}
        worker = await store.update_worker("w", stats)
        assert worker.heartbeat_stats == stats
        assert (await get_worker(store, "w")).heartbeat_stats == stats

    async def test_stats_are_replaced_not_merged(self, store: LightningStore) -> None:
        await store.update_worker("w", {"a": 1, "b": 2})
        assert (await store.update_worker("w", {"b": 3})).heartbeat_stats == {"b": 3}

    async def test_without_stats_the_old_ones_stay(self, store: LightningStore) -> None:
        await store.update_worker("w", {"a": 1})
        assert (await store.update_worker("w")).heartbeat_stats == {"a": 1}

    async def test_stats_are_copied(self, store: LightningStore) -> None:
        stats = {"a": 1}
        await store.update_worker("w", stats)
        stats["a"] = 2
        assert (await get_worker(store, "w")).heartbeat_stats == {"a": 1}

    async def test_time_moves_on(self, store: LightningStore) -> None:
        first = await store.update_worker("w")
        second = await store.update_worker("w")
        assert first.last_heartbeat_time is not None
        assert second.last_heartbeat_time is not None
        assert second.last_heartbeat_time >= first.last_heartbeat_time

    async def test_status_is_not_touched(self, store: LightningStore) -> None:
        await new_rollout(store, worker_id="w")
        before = await get_worker(store, "w")
        after = await store.update_worker("w", {"a": 1})
        assert (after.status, holding(after)) == ("busy", holding(before))
        assert after.last_busy_time == before.last_busy_time

    async def test_work_does_not_touch_the_heartbeat(self, store: LightningStore) -> None:
        before = await store.update_worker("w", {"a": 1})
        await finish(store, await new_rollout(store, worker_id="w"))
        await store.dequeue_rollout("w")
        after = await get_worker(store, "w")
        assert after.heartbeat_stats == {"a": 1}
        assert after.last_heartbeat_time == before.last_heartbeat_time


class TestWorkerStatus(Contract):
    """Busy, idle, unknown."""

    @pytest.mark.parametrize("how", ["start_rollout", "dequeue_rollout", "start_attempt", "update_attempt"])
    async def test_taking_an_attempt_makes_it_busy(self, store: LightningStore, how: str) -> None:
        if how == "start_rollout":
            held = await new_rollout(store, worker_id="w")
        elif how == "dequeue_rollout":
            await store.enqueue_rollout("task")
            held = await claim(store, "w")
        else:
            held = await new_rollout(store)
            if how == "start_attempt":
                held = await store.start_attempt(held.rollout_id, "w")
            else:
                await store.update_attempt(held.rollout_id, "latest", worker_id="w")
        worker = await get_worker(store, "w")
        assert worker.status == "busy"
        assert holding(worker) == (held.rollout_id, held.attempt.attempt_id)
        assert worker.last_busy_time is not None
        assert (worker.last_dequeue_time is not None) == (how == "dequeue_rollout")

    @pytest.mark.parametrize("status", ATTEMPT_STATUSES)
    async def test_follows_its_attempt(self, store: LightningStore, status: AttemptStatus) -> None:
        held = await new_rollout(store, worker_id="w")
        await finish(store, held, status)
        worker = await get_worker(store, "w")
        busy = AFTER[status] == "busy"
        assert worker.status == AFTER[status]
        assert holding(worker) == ((held.rollout_id, held.attempt.attempt_id) if busy else (None, None))
        assert (worker.last_idle_time is None) == busy

    @pytest.mark.parametrize("status", ATTEMPT_STATUSES)
    async def test_follows_an_attempt_it_is_named_with(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        started = await new_rollout(store)
        await store.update_attempt(started.rollout_id, "latest", status=status, worker_id="w")
        assert (await get_worker(store, "w")).status == AFTER[status]

    async def test_empty_queue_makes_it_idle(self, store: LightningStore) -> None:
        assert await store.dequeue_rollout("w") is None
        worker = await get_worker(store, "w")
        assert worker.status == "idle"
        assert worker.last_dequeue_time is not None
        assert worker.last_idle_time is not None
        assert worker.last_busy_time is None

    async def test_asking_again_moves_only_the_dequeue_time(
        self, store: LightningStore, harness: Harness
    ) -> None:
        await store.dequeue_rollout("w")
        before = await get_worker(store, "w")
        await harness.advance(5)
        await store.dequeue_many_rollouts(limit=2, worker_id="w")
        after = await get_worker(store, "w")
        assert (after.status, after.last_idle_time) == ("idle", before.last_idle_time)
        assert before.last_dequeue_time is not None
        assert after.last_dequeue_time is not None
        assert after.last_dequeue_time > before.last_dequeue_time

    async def test_dequeue_without_a_name_makes_no_worker(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        await claim(store)
        await store.dequeue_rollout()
        assert list(await store.query_workers()) == []

    async def test_metadata_report_leaves_the_worker_alone(self, store: LightningStore) -> None:
        held = await new_rollout(store, worker_id="w")
        before = await get_worker(store, "w")
        await store.update_attempt(held.rollout_id, "latest", metadata={"k": 1})
        assert await get_worker(store, "w") == before

    async def test_spans_leave_the_worker_alone(self, store: LightningStore) -> None:
        held = await new_rollout(store, worker_id="w")
        before = await get_worker(store, "w")
        await store.add_span(make_span(held))
        assert await get_worker(store, "w") == before

    async def test_many_cycles(self, store: LightningStore) -> None:
        for _ in range(3):
            await store.enqueue_rollout("task")
            held = await claim(store, "w")
            assert (await get_worker(store, "w")).status == "busy"
            await finish(store, held)
            assert (await get_worker(store, "w")).status == "idle"


class TestWorkerHolds(Contract):
    """The end of an attempt frees a worker only from that attempt."""

    @pytest.mark.parametrize("status", ["succeeded", "failed", "timeout", "unresponsive"])
    async def test_end_of_an_attempt_it_no_longer_holds(
        self, store: LightningStore, status: AttemptStatus
    ) -> None:
        old = await new_rollout(store, worker_id="w")
        held = await new_rollout(store, worker_id="w")
        await finish(store, old, status)
        worker = await get_worker(store, "w")
        assert worker.status == "busy"
        assert holding(worker) == (held.rollout_id, held.attempt.attempt_id)

    async def test_end_of_an_attempt_while_it_holds_none(self, store: LightningStore) -> None:
        old = await new_rollout(store, worker_id="w")
        held = await new_rollout(store, worker_id="w")
        await finish(store, held)
        await finish(store, old, "timeout")
        worker = await get_worker(store, "w")
        assert (worker.status, holding(worker)) == ("unknown", (None, None))

    async def test_attempt_handed_to_another_worker(self, store: LightningStore) -> None:
        held = await new_rollout(store, worker_id="first")
        await store.update_attempt(held.rollout_id, "latest", worker_id="second")
        await finish(store, held)
        assert (await get_worker(store, "second")).status == "idle"


async def mixed_workers(store: LightningStore, harness: Harness) -> list[Worker]:
    """Create five workers that differ in every field, in order."""
    await store.update_worker("b-2", {"a": 1})
    await store.dequeue_rollout("a-1")
    await new_rollout(store, worker_id="C-3")
    await harness.advance(1)
    await store.enqueue_rollout("task")
    await claim(store, "b-10")
    await finish(store, await new_rollout(store, worker_id="d_4"))
    await store.update_worker("d_4")
    return [await get_worker(store, worker_id) for worker_id in ("b-2", "a-1", "C-3", "b-10", "d_4")]


class TestQueryWorkers(Contract):
    """Lists of workers."""

    async def test_empty_store(self, store: LightningStore) -> None:
        result = await store.query_workers()
        assert (list(result), result.total) == ([], 0)

    async def test_all_of_them(self, store: LightningStore, harness: Harness) -> None:
        workers = await mixed_workers(store, harness)
        result = await store.query_workers(sort_by="worker_id")
        assert list(result) == sorted(workers, key=lambda worker: worker.worker_id)

    async def test_sorted(self, store: LightningStore, harness: Harness) -> None:
        await check_sorted(store.query_workers, await mixed_workers(store, harness), FIELDS)

    async def test_page(self, store: LightningStore, harness: Harness) -> None:
        workers = sorted(await mixed_workers(store, harness), key=lambda worker: worker.worker_id)
        for limit, offset in PAGES:
            await check_page(store.query_workers, workers, limit, offset, sort_by="worker_id")

    async def test_pages_join(self, store: LightningStore, harness: Harness) -> None:
        await mixed_workers(store, harness)
        await check_pages_join(store.query_workers, [None, *FIELDS])

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({"status_in": ["busy"]}, ["C-3", "b-10"]),
            ({"status_in": ["idle", "unknown"]}, ["a-1", "b-2", "d_4"]),
            ({"status_in": []}, []),
            ({"worker_id_contains": "b-"}, ["b-10", "b-2"]),
            ({"worker_id_contains": "c"}, []),
            ({"worker_id_contains": "_"}, ["d_4"]),
            ({"worker_id_contains": "%"}, []),
            ({"worker_id_contains": "b-", "status_in": ["busy"]}, ["b-10"]),
            (
                {"worker_id_contains": "b-", "status_in": ["busy"], "filter_logic": "or"},
                ["C-3", "b-10", "b-2"],
            ),
            ({"filter_logic": "or"}, ["C-3", "a-1", "b-10", "b-2", "d_4"]),
        ],
        ids=str,
    )
    async def test_filters(
        self, store: LightningStore, harness: Harness, filters: dict[str, Any], expected: list[str]
    ) -> None:
        await mixed_workers(store, harness)
        result = await store.query_workers(sort_by="worker_id", **filters)
        assert [worker.worker_id for worker in result] == expected
        assert result.total == len(expected)

    async def test_filter_comes_before_the_page(self, store: LightningStore, harness: Harness) -> None:
        _, _, big, _, _ = await mixed_workers(store, harness)
        query = partial(store.query_workers, status_in=["busy"], sort_by="worker_id", sort_order="desc")
        result = await query(limit=1, offset=1)
        assert (list(result), result.total) == ([big], 2)
