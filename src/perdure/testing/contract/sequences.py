"""Span sequence ids: one counter a rollout, never the same number twice."""

from __future__ import annotations

import asyncio

import pytest

from perdure import LightningStore

from .support import Contract, make_span, new_rollout, otel_span

__all__ = ["TestSequenceIds", "TestSequencesInParallel"]


class TestSequenceIds(Contract):
    """Numbers that the store assigns, and numbers that spans bring along."""

    async def test_counts_from_one(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        assert [await store.get_next_span_sequence_id(*ids) for _ in range(4)] == [1, 2, 3, 4]

    async def test_each_rollout_has_its_own_counter(self, store: LightningStore) -> None:
        for started in (await new_rollout(store), await new_rollout(store)):
            ids = (started.rollout_id, started.attempt.attempt_id)
            assert await store.get_next_span_sequence_id(*ids) == 1

    async def test_attempts_share_their_rollouts_counter(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        attempts = (started.attempt.attempt_id, again.attempt.attempt_id, "at-missing")
        numbers = [await store.get_next_span_sequence_id(started.rollout_id, one) for one in attempts]
        assert numbers == [1, 2, 3]

    async def test_asking_changes_no_status(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.get_next_span_sequence_id(started.rollout_id, started.attempt.attempt_id)
        assert await store.get_rollout_by_id(started.rollout_id) == started

    async def test_many_in_the_order_asked(self, store: LightningStore) -> None:
        a, b = await new_rollout(store), await new_rollout(store)
        again = await store.start_attempt(a.rollout_id)
        pairs = [
            (a.rollout_id, a.attempt.attempt_id),
            (b.rollout_id, b.attempt.attempt_id),
            (a.rollout_id, again.attempt.attempt_id),
            (a.rollout_id, a.attempt.attempt_id),
        ]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [1, 1, 2, 3]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [4, 2, 5, 6]

    async def test_many_of_nothing_is_nothing(self, store: LightningStore) -> None:
        assert list(await store.get_many_span_sequence_ids([])) == []

    async def test_many_and_single_share_the_counter(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        await store.get_many_span_sequence_ids([ids] * 5)
        assert await store.get_next_span_sequence_id(*ids) == 6

    @pytest.mark.parametrize(("given", "following"), [(0, 1), (1, 2), (100, 101), (2**40, 2**40 + 1)])
    async def test_a_spans_own_number_moves_the_counter(
        self, store: LightningStore, given: int, following: int
    ) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started, given))
        ids = (started.rollout_id, started.attempt.attempt_id)
        assert await store.get_next_span_sequence_id(*ids) == following
        assert [span.sequence_id for span in await store.query_spans(started.rollout_id)] == [given]

    async def test_the_counter_never_goes_back(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started, 100))
        await store.add_span(make_span(started, 5))
        ids = (started.rollout_id, started.attempt.attempt_id)
        assert await store.get_next_span_sequence_id(*ids) == 101

    async def test_a_batch_moves_each_rollouts_counter_to_its_highest(self, store: LightningStore) -> None:
        a, b = await new_rollout(store), await new_rollout(store)
        await store.add_many_spans([make_span(a, 3), make_span(b, 50), make_span(a, 9), make_span(a, 2)])
        pairs = [(one.rollout_id, one.attempt.attempt_id) for one in (a, b)]
        assert list(await store.get_many_span_sequence_ids(pairs)) == [10, 51]

    async def test_allocated_otel_spans_follow_explicit_ones(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started, 10))
        span = await store.add_otel_span(started.rollout_id, started.attempt.attempt_id, otel_span())
        assert span is not None
        assert span.sequence_id == 11


class TestSequencesInParallel(Contract):
    """The same number is never assigned twice."""

    async def test_single_requests(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        numbers = await asyncio.gather(*(store.get_next_span_sequence_id(*ids) for _ in range(50)))
        assert sorted(numbers) == list(range(1, 51))

    async def test_batched_requests(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        batches = await asyncio.gather(*(store.get_many_span_sequence_ids([ids] * 5) for _ in range(10)))
        assert sorted(number for batch in batches for number in batch) == list(range(1, 51))
        assert all(list(batch) == sorted(batch) for batch in batches)

    async def test_otel_spans(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        await asyncio.gather(*(store.add_otel_span(*ids, otel_span()) for _ in range(30)))
        spans = await store.query_spans(started.rollout_id)
        assert [span.sequence_id for span in spans] == list(range(1, 31))
