"""Beyond the contract: namespaces, named queues, priority, not-before times, idempotency keys."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

import pytest

from perdure import EnqueueRolloutRequest, LightningStore, PromptTemplate, errors

from .support import (
    QUEUED,
    Contract,
    Harness,
    RolloutStatus,
    claim,
    drain,
    finish,
    get_rollout,
    list_attempts,
    make_span,
    new_rollout,
    retrying,
    soon,
)

__all__ = [
    "TestIdempotencyKey",
    "TestNamedQueues",
    "TestNamespaces",
    "TestNotBefore",
    "TestPriority",
    "TestRepeatedCalls",
]


async def get_now(store: LightningStore) -> float:
    """Return the store's own time in epoch seconds."""
    return (await new_rollout(store)).start_time


def sibling(store: LightningStore, namespace: str | None = None) -> LightningStore:
    """Return the same database in another namespace, by default a new one."""
    opened: LightningStore = cast(Any, store).in_namespace(namespace or f"other {uuid.uuid4().hex}")
    return opened


class TestNamespaces(Contract):
    """Two namespaces of one database do not see each other."""

    async def test_queues_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        mine, theirs = await store.enqueue_rollout("mine"), await other.enqueue_rollout("theirs")
        assert await drain(other) == [theirs.rollout_id]
        assert await drain(store) == [mine.rollout_id]

    async def test_rollouts_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        started = await new_rollout(store)
        assert await other.get_rollout_by_id(started.rollout_id) is None
        assert await other.get_latest_attempt(started.rollout_id) is None
        assert list(await other.query_rollouts()) == []
        assert list(await other.query_attempts(started.rollout_id)) == []

    async def test_a_foreign_id_is_unknown(self, store: LightningStore) -> None:
        other = sibling(store)
        started = await new_rollout(store)
        calls = [
            other.update_rollout(started.rollout_id, status="cancelled"),
            other.update_attempt(started.rollout_id, "latest", status="failed"),
            other.start_attempt(started.rollout_id),
            other.add_span(make_span(started)),
        ]
        for call in calls:
            with pytest.raises(errors.NotFound):
                await call
        assert await store.get_rollout_by_id(started.rollout_id) == started

    async def test_spans_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        started = await new_rollout(store)
        await store.add_span(make_span(started))
        assert list(await other.query_spans(started.rollout_id)) == []

    async def test_resources_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        await store.add_resources({"p": PromptTemplate(template="x", engine="poml")})
        assert await other.get_latest_resources() is None
        assert (await other.enqueue_rollout("task")).resources_id is None
        await other.update_resources("same", {})
        assert await store.get_resources_by_id("same") is None

    async def test_workers_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        await store.update_worker("w", {"here": True})
        await other.update_worker("w", {"there": True})
        (mine,), (theirs,) = await store.query_workers(), await other.query_workers()
        assert (mine.heartbeat_stats, theirs.heartbeat_stats) == ({"here": True}, {"there": True})

    async def test_waiters_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        started = await new_rollout(store)
        await finish(store, started)
        assert await other.wait_for_rollouts(rollout_ids=[started.rollout_id], timeout=0) == []

    async def test_statistics_are_apart(self, store: LightningStore) -> None:
        other = sibling(store)
        await new_rollout(store)
        mine, theirs = await store.statistics(), await other.statistics()
        assert (mine["total_rollouts"], theirs["total_rollouts"]) == (1, 0)

    async def test_the_same_name_is_the_same_namespace(self, store: LightningStore) -> None:
        queued = await sibling(store, "team").enqueue_rollout("task")
        assert await sibling(store, "team").get_rollout_by_id(queued.rollout_id) == queued

    async def test_watchdog_looks_after_all_of_them(self, store: LightningStore, harness: Harness) -> None:
        other = sibling(store)
        started = await new_rollout(other, retrying(timeout_seconds=10))
        waiting = asyncio.create_task(other.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        await harness.advance(11)
        assert [rollout.status for rollout in await soon(waiting)] == ["failed"]


class TestNamedQueues(Contract):
    """A queue is only a name and needs no creation."""

    async def test_a_claim_takes_from_its_queue_only(self, store: LightningStore) -> None:
        plain = await store.enqueue_rollout("plain")
        gpu = await store.enqueue_rollout("gpu", queue="gpu")
        assert await store.dequeue_rollout(queue="empty") is None
        claimed = await store.dequeue_rollout(queue="gpu")
        assert claimed is not None
        assert claimed.rollout_id == gpu.rollout_id
        assert await drain(store) == [plain.rollout_id]

    async def test_default_is_a_name_like_any_other(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task", queue="default")
        assert (await claim(store)).rollout_id == queued.rollout_id

    async def test_many_at_once(self, store: LightningStore) -> None:
        queued = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=i, queue="odd" if i % 2 else "even") for i in range(6)]
        )
        odd = await store.dequeue_many_rollouts(limit=10, queue="odd")
        even = await store.dequeue_many_rollouts(limit=10, queue="even")
        assert [one.rollout_id for one in odd] == [one.rollout_id for one in queued[1::2]]
        assert [one.rollout_id for one in even] == [one.rollout_id for one in queued[::2]]

    async def test_a_retry_stays_in_its_queue(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task", config=retrying("failed"), queue="gpu")
        first = await store.dequeue_rollout(queue="gpu")
        assert first is not None
        await finish(store, first, "failed")
        assert await store.dequeue_rollout() is None
        again = await store.dequeue_rollout(queue="gpu")
        assert again is not None
        assert again.attempt.sequence_id == 2

    @pytest.mark.parametrize("status", QUEUED)
    async def test_an_explicit_requeue_stays_in_its_queue(
        self, store: LightningStore, status: RolloutStatus
    ) -> None:
        queued = await store.enqueue_rollout("task", queue="gpu")
        await store.dequeue_rollout(queue="gpu")
        await store.update_rollout(queued.rollout_id, status=status)
        assert await store.dequeue_rollout() is None
        assert await store.dequeue_rollout(queue="gpu") is not None


class TestPriority(Contract):
    """Highest priority first; equal priorities are first in, first out."""

    async def test_order(self, store: LightningStore) -> None:
        priorities = [0, 5, -1, 5, 0, 10]
        queued = [await store.enqueue_rollout(p, priority=p) for p in priorities]
        assert await drain(store) == [queued[i].rollout_id for i in (5, 1, 3, 0, 4, 2)]

    async def test_order_within_a_batch(self, store: LightningStore) -> None:
        requests = [EnqueueRolloutRequest(input=p, priority=p) for p in (1, 3, 2)]
        queued = await store.enqueue_many_rollouts(requests)
        assert await drain(store) == [queued[i].rollout_id for i in (1, 2, 0)]

    async def test_batched_claims_too(self, store: LightningStore) -> None:
        for p in (1, 3, 2, 3):
            await store.enqueue_rollout(p, priority=p)
        assert [one.input for one in await store.dequeue_many_rollouts(limit=3)] == [3, 3, 2]

    async def test_a_retry_keeps_it(self, store: LightningStore) -> None:
        urgent = await store.enqueue_rollout("urgent", config=retrying("failed"), priority=9)
        await store.enqueue_rollout("plain")
        await finish(store, await claim(store), "failed")
        assert (await claim(store)).rollout_id == urgent.rollout_id


class TestNotBefore(Contract):
    """A rollout that waits for its time."""

    async def test_is_not_claimed_before(self, store: LightningStore, harness: Harness) -> None:
        now = await get_now(store)
        later = await store.enqueue_rollout("later", not_before=now + 100)
        assert later.status == "queuing"
        assert await store.dequeue_rollout() is None
        await harness.advance(50)
        assert await store.dequeue_rollout() is None
        await harness.advance(51)
        assert (await claim(store)).rollout_id == later.rollout_id

    async def test_others_overtake_it(self, store: LightningStore, harness: Harness) -> None:
        now = await get_now(store)
        later = await store.enqueue_rollout("later", not_before=now + 100)
        first = await store.enqueue_rollout("first")
        assert await drain(store) == [first.rollout_id]
        await harness.advance(101)
        assert await drain(store) == [later.rollout_id]

    async def test_the_past_is_now(self, store: LightningStore) -> None:
        now = await get_now(store)
        queued = await store.enqueue_rollout("task", not_before=now - 100)
        assert await drain(store) == [queued.rollout_id]

    async def test_in_a_batch(self, store: LightningStore, harness: Harness) -> None:
        now = await get_now(store)
        later, first = await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input=1, not_before=now + 100), EnqueueRolloutRequest(input=2)]
        )
        assert await drain(store) == [first.rollout_id]
        await harness.advance(101)
        assert await drain(store) == [later.rollout_id]

    @pytest.mark.parametrize("status", ["cancelled", "failed", "succeeded"])
    async def test_an_end_takes_it_away(
        self, store: LightningStore, harness: Harness, status: RolloutStatus
    ) -> None:
        queued = await store.enqueue_rollout("task", not_before=await get_now(store) + 100)
        await store.update_rollout(queued.rollout_id, status=status)
        await harness.advance(101)
        assert await drain(store) == []

    async def test_start_attempt_does_not_wait(self, store: LightningStore, harness: Harness) -> None:
        queued = await store.enqueue_rollout("task", not_before=await get_now(store) + 100)
        started = await store.start_attempt(queued.rollout_id)
        assert started.status == "preparing"
        await harness.advance(101)
        assert await drain(store) == []


class TestIdempotencyKey(Contract):
    """The same key twice gives one rollout."""

    async def test_second_enqueue_gives_the_first_rollout(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("task", idempotency_key="k")
        second = await store.enqueue_rollout("task", idempotency_key="k")
        assert second.rollout_id == first.rollout_id
        assert await drain(store) == [first.rollout_id]

    async def test_no_key_is_no_bond(self, store: LightningStore) -> None:
        first, second = await store.enqueue_rollout("task"), await store.enqueue_rollout("task")
        assert first.rollout_id != second.rollout_id

    async def test_after_the_end_too(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("task", idempotency_key="k")
        await finish(store, await claim(store))
        again = await store.enqueue_rollout("task", idempotency_key="k")
        assert (again.rollout_id, again.status) == (first.rollout_id, "succeeded")
        assert (await get_rollout(store, first.rollout_id)).status == "succeeded"
        assert await drain(store) == []

    async def test_within_one_batch(self, store: LightningStore) -> None:
        requests = [EnqueueRolloutRequest(input="task", idempotency_key=key) for key in ("a", "b", "a")]
        a, b, same = await store.enqueue_many_rollouts(requests)
        assert a.rollout_id == same.rollout_id != b.rollout_id
        assert await drain(store) == [a.rollout_id, b.rollout_id]

    async def test_across_batches(self, store: LightningStore) -> None:
        first = await store.enqueue_rollout("task", idempotency_key="a")
        requests = [EnqueueRolloutRequest(input="task", idempotency_key=key) for key in ("b", "a")]
        _, same = await store.enqueue_many_rollouts(requests)
        assert same.rollout_id == first.rollout_id
        assert (await store.query_rollouts()).total == 2

    async def test_many_callers_at_once(self, store: LightningStore) -> None:
        calls = (store.enqueue_rollout("task", idempotency_key="k") for _ in range(20))
        assert len({rollout.rollout_id for rollout in await asyncio.gather(*calls)}) == 1
        assert len(await drain(store)) == 1

    async def test_namespaces_are_apart(self, store: LightningStore) -> None:
        mine = await store.enqueue_rollout("task", idempotency_key="k")
        theirs = await sibling(store).enqueue_rollout("task", idempotency_key="k")
        assert mine.rollout_id != theirs.rollout_id


class TestRepeatedCalls(Contract):
    """A call repeated with its key returns the first result again, and changes nothing."""

    async def test_start_rollout(self, store: LightningStore) -> None:
        first = await store.start_rollout("task", worker_id="w", idempotency_key="k")
        assert await store.start_rollout("task", worker_id="w", idempotency_key="k") == first
        assert (await store.query_rollouts()).total == 1

    async def test_dequeue(self, store: LightningStore) -> None:
        queued = [await store.enqueue_rollout(number) for number in range(2)]
        first = await store.dequeue_rollout("w", idempotency_key="k")
        assert first is not None
        assert await store.dequeue_rollout("w", idempotency_key="k") == first
        assert await drain(store) == [queued[1].rollout_id]

    async def test_dequeue_after_the_end(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        first = await store.dequeue_rollout("w", idempotency_key="k")
        assert first is not None
        await finish(store, first)
        assert await store.dequeue_rollout("w", idempotency_key="k") == first
        assert (await get_rollout(store, first.rollout_id)).status == "succeeded"

    async def test_dequeue_many(self, store: LightningStore) -> None:
        queued = [await store.enqueue_rollout(number) for number in range(5)]
        first = await store.dequeue_many_rollouts(limit=3, idempotency_key="k")
        assert [one.rollout_id for one in first] == [one.rollout_id for one in queued[:3]]
        assert list(await store.dequeue_many_rollouts(limit=3, idempotency_key="k")) == list(first)
        assert len(await drain(store)) == 2

    async def test_start_attempt(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        first = await store.start_attempt(started.rollout_id, "w", idempotency_key="k")
        assert await store.start_attempt(started.rollout_id, "w", idempotency_key="k") == first
        assert first.attempt.sequence_id == 2
        assert len(await list_attempts(store, started.rollout_id)) == 2

    async def test_add_resources(self, store: LightningStore) -> None:
        prompt = PromptTemplate(template="x", engine="poml")
        first = await store.add_resources({"p": prompt}, idempotency_key="k")
        assert await store.add_resources({"p": prompt}, idempotency_key="k") == first
        assert (await store.query_resources()).total == 1

    async def test_many_callers_at_once(self, store: LightningStore) -> None:
        calls = (store.start_rollout("task", idempotency_key="k") for _ in range(20))
        assert len({one.attempt.attempt_id for one in await asyncio.gather(*calls)}) == 1
        assert (await store.query_rollouts()).total == 1

    async def test_what_failed_may_be_tried_again(self, store: LightningStore) -> None:
        with pytest.raises(errors.PerdureError):
            await store.start_attempt("ro-unknown", idempotency_key="k")
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id, idempotency_key="k")
        assert again.rollout_id == started.rollout_id
