"""Spans on their way to the store: in batches, bounded, and never lost without a log line."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import InMemoryLightningStore, Span
from perdure.agents.records import RecordedSpan
from perdure.kernel.errors import InvalidInput, StorageUnavailable
from perdure.worker.tracing import SpanQueue


class FlakyStore(InMemoryLightningStore):
    """Store that fails on demand, and counts its calls."""

    error: Exception | None = None
    hangs = False

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.calls: list[int] = []
        write = self.rollouts.store_span_batch

        async def store_span_batch(spans: Any, parts: Any) -> Any:
            self.calls.append(len(spans))
            self.begun.set()
            if self.hangs:
                await asyncio.Event().wait()
            if self.error is not None:
                raise self.error
            return await write(spans, parts)

        self.rollouts.store_span_batch = store_span_batch  # type: ignore[method-assign]


def span(number: int, **more: Any) -> RecordedSpan:
    return RecordedSpan(
        name=f"span {number}",
        start_time=1.0,
        end_time=2.0,
        trace_id="ab" * 16,
        span_id=f"{number:016x}",
        number=number,
        **more,
    )


async def started(store: InMemoryLightningStore) -> tuple[str, str]:
    rollout = await store.start_rollout({"a": 1})
    return rollout.rollout_id, rollout.attempt.attempt_id


async def stored(store: InMemoryLightningStore, rollout_id: str) -> Sequence[Span]:
    return list(await store.query_spans(rollout_id))


async def test_spans_of_many_runs_are_one_batch() -> None:
    store = FlakyStore()
    queue = SpanQueue(store, "w", store.rollouts)
    ids = [await started(store) for _ in range(20)]
    for number, each in enumerate(ids, 1):
        queue.put(*each, span(number, attributes={"text": "null \ud800", "list": [1, 2]}))
    await queue.flush()
    assert store.calls == [20]
    for rollout_id, _ in ids:
        (found,) = await stored(store, rollout_id)
        assert found.attributes == {"text": "null \ufffd", "list": [1, 2]}
        assert found.resource.attributes["service.instance.id"] == "w"
    await store.close()


async def test_a_failing_store_is_asked_again_and_nothing_doubles(caplog: pytest.LogCaptureFixture) -> None:
    store = FlakyStore()
    queue, ids = SpanQueue(store, "w", store.rollouts), await started(store)
    for number in range(1, 4):
        queue.put(*ids, span(number))
    store.error = StorageUnavailable("away")
    await queue.flush()
    assert "3 spans wait, because the store fails: away" in caplog.text
    store.error, store.hangs = None, True
    flushing = asyncio.create_task(queue.flush())
    store.begun.clear()
    await store.begun.wait()
    flushing.cancel()
    await asyncio.wait([flushing])
    store.hangs = False
    await queue.close(5)
    assert [each.name for each in await stored(store, ids[0])] == ["span 1", "span 2", "span 3"]
    assert queue.dropped == 0
    await store.close()


async def test_what_comes_too_fast_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    store = FlakyStore()
    ids = await started(store)
    for options in ({"max_spans": 2}, {"max_bytes": 1_499}):
        queue = SpanQueue(store, "w", store.rollouts, **options)
        for number in range(1, 6):
            queue.put(*ids, span(number))
        await queue.flush()
        assert queue.dropped == 3, options
    assert "3 spans were dropped" in caplog.text
    assert len(await stored(store, ids[0])) == 2
    await store.close()


async def test_a_refused_span_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    store = FlakyStore()
    queue, ids = SpanQueue(store, "w", store.rollouts), await started(store)
    queue.put("ro-unknown", "at-unknown", span(1))
    queue.put(*ids, span(2, attributes={"odd": object()}))
    queue.put(*ids, span(3))
    await queue.flush()
    assert [each.name for each in await stored(store, ids[0])] == ["span 3"]
    assert queue.dropped == 2
    assert "a span was refused: Rollout ro-unknown not found" in caplog.text
    await store.close()


async def test_a_store_that_hangs_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    store = FlakyStore()
    queue, ids = SpanQueue(store, "w", store.rollouts), await started(store)
    queue.put(*ids, span(1))
    store.hangs = True
    await queue.close(0.05)
    assert queue.dropped == 1
    assert "did not take the last spans" in caplog.text
    await store.close()


async def test_another_store_gets_records() -> None:
    class Other(InMemoryLightningStore):
        pass

    inner = Other()

    class Remote:
        async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
            if any("bad" in each.name for each in spans):
                raise InvalidInput("bad")
            return await inner.add_many_spans(spans)

    ids = await started(inner)
    queue = SpanQueue(Remote(), "w")  # type: ignore[arg-type]
    queue.put(*ids, span(1, attributes={"a": 1}, status="ERROR", description="late"))
    await queue.flush()
    (found,) = await stored(inner, ids[0])
    assert (found.status.status_code, found.status.description) == ("ERROR", "late")
    assert found.attributes == {"a": 1}
    assert found.model_extra == {"kind": "INTERNAL"}
    await inner.close()
