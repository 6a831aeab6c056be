"""Querying spans."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from perdure import AttemptedRollout, LightningStore, Span

from .paging import PAGES, check_page, check_pages_join, check_sorted
from .support import Contract, make_span, new_rollout

__all__ = ["TestQuerySpans", "TestSpanFilters", "TestSpanOrder"]

SPAN_FIELDS = ["sequence_id", "name", "span_id", "trace_id", "parent_id", "start_time", "end_time"]
FILTERS: list[tuple[dict[str, Any], list[int]]] = [
    ({"trace_id": "a" * 32}, [0, 1]),
    ({"trace_id": "a"}, []),
    ({"trace_id_contains": "bbb"}, [2, 3]),
    ({"trace_id_contains": "BBB"}, []),
    ({"span_id": "00000000000000f3"}, [3]),
    ({"span_id": "f3"}, []),
    ({"span_id_contains": "f"}, [0, 1, 2, 3, 4]),
    ({"span_id_contains": "0f4"}, [4]),
    ({"parent_id": "00000000000000f0"}, [1, 2]),
    ({"parent_id": ""}, []),
    ({"parent_id_contains": "f0"}, [1, 2]),
    ({"parent_id_contains": "f3"}, [4]),
    ({"name": "llm.call"}, [1]),
    ({"name": "LLM.CALL"}, []),
    ({"name_contains": "tool"}, [2, 4]),
    ({"name_contains": "Tool"}, [3]),
    ({"name_contains": "%"}, [3]),
    ({"name_contains": "_"}, [4]),
    ({"name_contains": ""}, [0, 1, 2, 3, 4]),
    ({"name": "nothing"}, []),
]
PAIRS: list[tuple[dict[str, Any], list[int], list[int]]] = [
    ({"name_contains": "tool", "trace_id": "b" * 32}, [2], [2, 3, 4]),
    ({"name": "llm.call", "parent_id": "00000000000000f0"}, [1], [1, 2]),
    ({"name": "root", "name_contains": "tool"}, [], [0, 2, 4]),
    ({"span_id": "00000000000000f1", "span_id_contains": "f3"}, [], [1, 3]),
]


async def mixed_spans(store: LightningStore) -> tuple[AttemptedRollout, list[Span]]:
    """Create an attempt with five spans that differ in every field, in order of their sequence ids."""
    started = await new_rollout(store)
    parent = f"{0xF0:016x}"
    values: list[dict[str, Any]] = [
        {"name": "root", "trace_id": "a" * 32, "start_time": 10.0, "end_time": 50.0},
        {"name": "llm.call", "trace_id": "a" * 32, "parent_id": parent, "start_time": 40.0},
        {"name": "tool-x", "trace_id": "b" * 32, "parent_id": parent, "start_time": 30.0, "end_time": 31.0},
        {"name": "100% Tool", "trace_id": "b" * 32, "end_time": 20.0},
        {"name": "my_tool", "trace_id": "c" * 32, "parent_id": f"{0xF3:016x}", "start_time": 20.0},
    ]
    spans = [make_span(started, 1 + i, span_id=f"{0xF0 + i:016x}", **v) for i, v in enumerate(values)]
    for i in (3, 0, 4, 1, 2):
        await store.add_span(spans[i])
    return started, spans


class TestQuerySpans(Contract):
    """Spans of an attempt, their order and pages."""

    async def test_unknown_rollout_has_none(self, store: LightningStore) -> None:
        for attempt_id in (None, "latest", "at-missing"):
            result = await store.query_spans("ro-missing", attempt_id)
            assert (list(result), result.total) == ([], 0)

    async def test_unknown_attempt_has_none(self, store: LightningStore) -> None:
        started, _ = await mixed_spans(store)
        assert list(await store.query_spans(started.rollout_id, "at-missing")) == []

    async def test_latest_of_a_rollout_without_attempts(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        result = await store.query_spans(queued.rollout_id, "latest", limit=5, offset=1)
        assert (list(result), result.limit, result.offset, result.total) == ([], 5, 1, 0)

    async def test_attempts_are_told_apart(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        old, new = make_span(started, 1), make_span(again, 2)
        await store.add_many_spans([old, new])
        rollout_id = started.rollout_id
        assert list(await store.query_spans(rollout_id)) == [old, new]
        assert list(await store.query_spans(rollout_id, None)) == [old, new]
        assert list(await store.query_spans(rollout_id, "latest")) == [new]
        assert list(await store.query_spans(rollout_id, started.attempt.attempt_id)) == [old]
        assert list(await store.query_spans(rollout_id, again.attempt.attempt_id)) == [new]

    async def test_attempt_of_another_rollout_matches_nothing(self, store: LightningStore) -> None:
        mine, _ = await mixed_spans(store)
        other, _ = await mixed_spans(store)
        assert list(await store.query_spans(mine.rollout_id, other.attempt.attempt_id)) == []

    async def test_by_sequence_id_by_default(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        assert list(await store.query_spans(started.rollout_id)) == spans

    async def test_sorted(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        await check_sorted(partial(store.query_spans, started.rollout_id), spans, SPAN_FIELDS)

    async def test_page(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        for limit, offset in PAGES:
            await check_page(partial(store.query_spans, started.rollout_id), spans, limit, offset)

    async def test_pages_join(self, store: LightningStore) -> None:
        started, _ = await mixed_spans(store)
        await check_pages_join(partial(store.query_spans, started.rollout_id, "latest"), SPAN_FIELDS)

    async def test_newest_first_page(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        query = partial(store.query_spans, started.rollout_id, sort_order="desc")
        await check_page(query, spans[::-1], 2, 1)


class TestSpanFilters(Contract):
    """Filters of spans."""

    async def test_one_filter(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        for filters, expected in FILTERS:
            result = await store.query_spans(started.rollout_id, **filters)
            assert list(result) == [spans[i] for i in expected], filters
            assert result.total == len(expected), filters

    async def test_two_filters(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        for filters, both, either in PAIRS:
            anded = await store.query_spans(started.rollout_id, **filters)
            ored = await store.query_spans(started.rollout_id, filter_logic="or", **filters)
            assert list(anded) == [spans[i] for i in both], filters
            assert list(ored) == [spans[i] for i in either], filters

    async def test_rollout_and_attempt_are_never_ored(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        await mixed_spans(store)
        again = await store.start_attempt(started.rollout_id)
        await store.add_span(make_span(again, name="root"))
        result = await store.query_spans(
            started.rollout_id,
            started.attempt.attempt_id,
            name="root",
            name_contains="llm",
            filter_logic="or",
        )
        assert list(result) == spans[:2]

    async def test_filter_comes_before_the_page(self, store: LightningStore) -> None:
        started, spans = await mixed_spans(store)
        query = partial(store.query_spans, started.rollout_id, name_contains="ool")
        await check_page(query, spans[2:], 1, 1)


class TestSpanOrder(Contract):
    """Spans that share a sequence id are ordered by their times."""

    TIMES = ((5.0, 9.0), (1.0, 9.0), (1.0, 3.0), (None, 4.0), (5.0, None), (1.0, 3.0))
    EXPECTED = (2, 5, 1, 0, 4, 3)

    async def tied_spans(self, store: LightningStore) -> tuple[str, list[Span]]:
        started = await new_rollout(store)
        spans = [make_span(started, 7, start_time=start, end_time=end) for start, end in self.TIMES]
        for span in spans:
            await store.add_span(span)
        return started.rollout_id, [spans[i] for i in self.EXPECTED]

    async def test_start_then_end_then_arrival(self, store: LightningStore) -> None:
        rollout_id, expected = await self.tied_spans(store)
        assert list(await store.query_spans(rollout_id)) == expected

    @pytest.mark.parametrize("size", [1, 2, 4])
    async def test_across_pages(self, store: LightningStore, size: int) -> None:
        rollout_id, expected = await self.tied_spans(store)
        for offset in range(0, len(expected), size):
            await check_page(partial(store.query_spans, rollout_id), expected, size, offset)

    async def test_sequence_id_comes_first(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        late, early = make_span(started, 1, start_time=9.0), make_span(started, 2, start_time=1.0)
        await store.add_many_spans([early, late])
        assert list(await store.query_spans(started.rollout_id)) == [late, early]
