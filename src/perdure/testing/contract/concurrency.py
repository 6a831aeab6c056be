"""Many callers at once, in one loop and in several threads."""

from __future__ import annotations

import asyncio
from collections import Counter

from perdure import EnqueueRolloutRequest, LightningStore, LightningStoreThreaded

from .support import (
    Contract,
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

__all__ = ["TestManyCallers", "TestManyThreads"]


class TestManyCallers(Contract):
    """One event loop, many tasks."""

    async def test_thirty_claims_of_twenty(self, store: LightningStore) -> None:
        ids = {(await store.enqueue_rollout(i)).rollout_id for i in range(20)}
        claims = await asyncio.gather(*(store.dequeue_rollout(f"w-{i}") for i in range(30)))
        taken = [claimed.rollout_id for claimed in claims if claimed is not None]
        assert (len(taken), set(taken)) == (20, ids)
        for rollout_id in ids:
            assert len(await list_attempts(store, rollout_id)) == 1

    async def test_batches_of_claims_do_not_overlap(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(50)])
        batches = await asyncio.gather(*(store.dequeue_many_rollouts(limit=7) for _ in range(10)))
        taken = [claimed.rollout_id for batch in batches for claimed in batch]
        assert len(taken) == len(set(taken)) == 50

    async def test_enqueues_are_all_kept(self, store: LightningStore) -> None:
        queued = await asyncio.gather(*(store.enqueue_rollout(i) for i in range(60)))
        assert len({rollout.rollout_id for rollout in queued}) == 60
        assert set(await drain(store)) == {rollout.rollout_id for rollout in queued}

    async def test_producers_and_consumers(self, store: LightningStore) -> None:
        async def produce(start: int) -> None:
            for i in range(start, start + 10):
                await store.enqueue_rollout(i)

        async def consume() -> list[int]:
            done: list[int] = []
            while len(seen) < 40:
                claimed = await store.dequeue_rollout()
                if claimed is None:
                    await asyncio.sleep(0)
                    continue
                seen.append(claimed.input)
                await finish(store, claimed)
                done.append(claimed.input)
            return done

        seen: list[int] = []
        producers = [produce(start) for start in (0, 10, 20, 30)]
        results = await soon(asyncio.gather(*(consume() for _ in range(4)), *producers))
        assert sorted(i for done in results[:4] for i in done or []) == list(range(40))
        assert (await store.query_rollouts(status_in=["succeeded"])).total == 40

    async def test_attempts_are_numbered_without_gaps(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await asyncio.gather(*(store.start_attempt(started.rollout_id) for _ in range(15)))
        assert sorted(one.attempt.sequence_id for one in again) == list(range(2, 17))
        assert [one.sequence_id for one in await list_attempts(store, started.rollout_id)] == list(
            range(1, 17)
        )

    async def test_one_end_of_many_reports(self, store: LightningStore) -> None:
        started = await new_rollout(store, retrying("failed", max_attempts=5))
        await asyncio.gather(*(finish(store, started, "failed") for _ in range(10)))
        assert await drain(store) == [started.rollout_id]

    async def test_span_and_metadata_do_not_overwrite_each_other(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        for i in range(10):
            await asyncio.gather(
                store.add_span(make_span(started)), store.update_attempt(*ids, metadata={"round": i})
            )
            attempt = await latest(store, started.rollout_id)
            assert attempt.metadata == {"round": i}
            assert attempt.status == "running"
            assert attempt.last_heartbeat_time is not None

    async def test_the_same_span_many_times_is_stored_once(self, store: LightningStore) -> None:
        span = make_span(await new_rollout(store))
        answers = await asyncio.gather(*(store.add_span(span) for _ in range(10)))
        assert sum(answer is not None for answer in answers) == 1
        assert len(await store.query_spans(span.rollout_id)) == 1

    async def test_spans_of_many_rollouts(self, store: LightningStore) -> None:
        rollouts = [await new_rollout(store) for _ in range(10)]
        spans = [make_span(started, 1 + i) for i in range(10) for started in rollouts]
        await asyncio.gather(*(store.add_span(span) for span in spans))
        for started in rollouts:
            stored = await store.query_spans(started.rollout_id)
            assert [span.sequence_id for span in stored] == list(range(1, 11))

    async def test_overlapping_batches_of_spans(self, store: LightningStore) -> None:
        rollouts = [await new_rollout(store) for _ in range(6)]
        spans = [make_span(started) for started in rollouts for _ in range(5)]
        batches = [spans, spans[::-1], spans[10:], spans[:20]]
        stored = await asyncio.gather(*(store.add_many_spans(batch) for batch in batches))
        counts = Counter(span.span_id for batch in stored for span in batch)
        assert counts == {span.span_id: 1 for span in spans}

    async def test_cancel_against_success(self, store: LightningStore) -> None:
        for _ in range(10):
            started = await new_rollout(store)
            await asyncio.gather(
                finish(store, started), store.update_rollout(started.rollout_id, status="cancelled")
            )
            assert (await get_rollout(store, started.rollout_id)).status == "cancelled"

    async def test_one_worker_of_many_claims_is_busy_with_one(self, store: LightningStore) -> None:
        await store.enqueue_many_rollouts([EnqueueRolloutRequest(input=i) for i in range(10)])
        claims = await asyncio.gather(*(claim(store, "w") for _ in range(10)))
        worker = await get_worker(store, "w")
        held = [one for one in claims if one.attempt.attempt_id == worker.current_attempt_id]
        assert (worker.status, len(held)) == ("busy", 1)
        assert worker.current_rollout_id == held[0].rollout_id

    async def test_heartbeats_of_one_worker(self, store: LightningStore) -> None:
        await asyncio.gather(*(store.update_worker("w", {"n": i}) for i in range(20)))
        assert (await store.query_workers()).total == 1


class TestManyThreads(Contract):
    """A store that claims to be thread-safe is; `LightningStoreThreaded` makes others safe."""

    def shared(self, store: LightningStore) -> LightningStore:
        return store if store.capabilities.get("thread_safe") else LightningStoreThreaded(store)

    async def test_usable_from_a_second_loop(self, store: LightningStore) -> None:
        shared = self.shared(store)
        here = await shared.enqueue_rollout("here")

        async def elsewhere() -> str:
            claimed = await claim(shared, "there")
            await shared.add_span(make_span(claimed))
            await finish(shared, claimed)
            return (await shared.enqueue_rollout("there")).rollout_id

        there = await soon(asyncio.to_thread(asyncio.run, elsewhere()))
        assert (await get_rollout(shared, here.rollout_id)).status == "succeeded"
        assert (await claim(shared)).rollout_id == there

    async def test_woken_from_another_thread(self, store: LightningStore) -> None:
        shared = self.shared(store)
        started = await new_rollout(shared)
        waiting = asyncio.create_task(shared.wait_for_rollouts(rollout_ids=[started.rollout_id]))
        await shared.get_rollout_by_id(started.rollout_id)
        await soon(asyncio.to_thread(asyncio.run, finish(shared, started)))
        assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]

    async def test_waiting_in_another_thread(self, store: LightningStore) -> None:
        shared = self.shared(store)
        started = await new_rollout(shared)
        wait = shared.wait_for_rollouts(rollout_ids=[started.rollout_id])
        waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, wait))
        await finish(shared, started)
        assert [rollout.rollout_id for rollout in await soon(waiting)] == [started.rollout_id]

    async def test_claims_from_many_threads_do_not_overlap(self, store: LightningStore) -> None:
        shared = self.shared(store)
        ids = {(await shared.enqueue_rollout(i)).rollout_id for i in range(30)}
        taken = await soon(asyncio.gather(*(asyncio.to_thread(asyncio.run, drain(shared)) for _ in range(4))))
        claimed = [rollout_id for one in taken for rollout_id in one]
        assert (len(claimed), set(claimed)) == (30, ids)

    async def test_sequence_ids_from_many_threads_are_unique(self, store: LightningStore) -> None:
        shared = self.shared(store)
        started = await new_rollout(shared)
        ids = (started.rollout_id, started.attempt.attempt_id)

        async def take() -> list[int]:
            return [await shared.get_next_span_sequence_id(*ids) for _ in range(10)]

        taken = await soon(asyncio.gather(*(asyncio.to_thread(asyncio.run, take()) for _ in range(4))))
        assert sorted(number for numbers in taken for number in numbers) == list(range(1, 41))
