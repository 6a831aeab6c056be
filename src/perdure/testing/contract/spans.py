"""Adding spans: stored and refused spans, and the effect of a span on its attempt."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Event, LightningStore, Link, OtelResource, Span, SpanContext, TraceStatus
from perdure.testing.grids import every

from .support import (
    Contract,
    Harness,
    claim,
    get_rollout,
    latest,
    list_attempts,
    make_span,
    new_rollout,
    otel_span,
)

__all__ = ["TestAddManySpans", "TestAddOtelSpan", "TestAddSpan", "TestSpanHeartbeat", "TestSpanRoundTrip"]

CONTEXT = SpanContext(trace_id="a" * 32, span_id="b" * 16, is_remote=True, trace_state={"vendor": "x"})
BODIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "attributes": {
        "attributes": {
            "s": "x",
            "b": True,
            "i": -3,
            "f": 0.25,
            "ls": ["a"],
            "li": [1, 2],
            "lb": [False],
            "e": [],
        }
    },
    "times": {"start_time": 1700000000.123456, "end_time": 1700000001.5},
    "parent": {"parent_id": "c" * 16, "parent": CONTEXT, "context": CONTEXT},
    "error": {"status": TraceStatus(status_code="ERROR", description="it broke")},
    "unset": {"status": TraceStatus(status_code="UNSET")},
    "events": {
        "events": [Event(name="e", attributes={"k": 1}, timestamp=1.5), Event(name="f", attributes={})]
    },
    "links": {"links": [Link(context=CONTEXT, attributes={"k": "v"}), Link(context=CONTEXT)]},
    "resource": {"resource": OtelResource(attributes={"service.name": "agent"}, schema_url="https://schema")},
    "unicode": {"name": "Grüße 世界 👋", "attributes": {"é": "\x00 stays"}},
    "large": {"attributes": {"prompt": "x" * 200_000}},
    "unknown": {"kind": "CLIENT", "instrumentation": {"name": "lib", "nested": [1, {"deep": None}]}},
}


class TestAddSpan(Contract):
    """One span at a time."""

    async def test_returns_the_very_object(self, store: LightningStore) -> None:
        span = make_span(await new_rollout(store))
        assert await store.add_span(span) is span

    async def test_can_be_queried(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        span = make_span(started)
        await store.add_span(span)
        assert list(await store.query_spans(started.rollout_id)) == [span]

    async def test_unknown_rollout(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        with pytest.raises(ValueError, match="Rollout ro-missing not found"):
            await store.add_span(make_span(started, rollout_id="ro-missing"))

    async def test_unknown_attempt(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        message = f"Attempt at-missing not found for rollout {started.rollout_id}"
        with pytest.raises(ValueError, match=message):
            await store.add_span(make_span(started, attempt_id="at-missing"))

    async def test_attempt_of_another_rollout_is_unknown(self, store: LightningStore) -> None:
        mine, other = await new_rollout(store), await new_rollout(store)
        with pytest.raises(ValueError, match="not found for rollout"):
            await store.add_span(make_span(mine, attempt_id=other.attempt.attempt_id))

    async def test_rollout_without_attempts(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("task")
        started = await new_rollout(store)
        with pytest.raises(ValueError, match="not found for rollout"):
            await store.add_span(make_span(started, rollout_id=queued.rollout_id))

    async def test_duplicate_is_none_and_the_first_stays(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        first = make_span(started, name="first")
        await store.add_span(first)
        assert await store.add_span(make_span(started, span_id=first.span_id, name="second")) is None
        assert [span.name for span in await store.query_spans(started.rollout_id)] == ["first"]

    async def test_duplicate_is_logged(self, store: LightningStore, caplog: pytest.LogCaptureFixture) -> None:
        span = make_span(await new_rollout(store))
        await store.add_span(span)
        with caplog.at_level(logging.ERROR):
            await store.add_span(span)
        assert "Duplicated span added" in caplog.text

    async def test_same_span_id_in_another_attempt_is_another_span(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        for one in (started, again):
            assert await store.add_span(make_span(one, span_id="f" * 16)) is not None
        assert len(await store.query_spans(started.rollout_id)) == 2

    async def test_same_span_id_in_another_rollout_is_another_span(self, store: LightningStore) -> None:
        for started in (await new_rollout(store), await new_rollout(store)):
            assert await store.add_span(make_span(started, span_id="f" * 16)) is not None
            assert len(await store.query_spans(started.rollout_id)) == 1

    async def test_same_sequence_id_may_repeat(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        for _ in range(3):
            assert await store.add_span(make_span(started, 7)) is not None
        assert [span.sequence_id for span in await store.query_spans(started.rollout_id)] == [7, 7, 7]


class TestSpanRoundTrip(Contract):
    """Every field of a span is returned."""

    @every("body", BODIES)
    async def test_body_comes_back_as_it_was_given(self, store: LightningStore, body: str) -> None:
        started = await new_rollout(store)
        span = make_span(started, 3, **BODIES[body])
        await store.add_span(span)
        (stored,) = await store.query_spans(started.rollout_id)
        assert type(stored) is Span
        assert stored.model_dump() == span.model_dump()

    @every("body", BODIES)
    async def test_in_a_batch_too(self, store: LightningStore, body: str) -> None:
        started = await new_rollout(store)
        span = make_span(started, 3, **BODIES[body])
        await store.add_many_spans([make_span(started, 1), span])
        assert (await store.query_spans(started.rollout_id))[1].model_dump() == span.model_dump()

    @every("part", ["status", "context", "events", "links"])
    async def test_unknown_keys_of_the_parts_survive(self, store: LightningStore, part: str) -> None:
        started = await new_rollout(store)
        context = {"trace_id": "a" * 32, "span_id": "b" * 16, "is_remote": False, "trace_state": {}}
        parts: dict[str, Any] = {
            "status": {"status_code": "OK", "unknown": 1},
            "context": {**context, "unknown": 1},
            "events": [{"name": "e", "attributes": {}, "unknown": 1}],
            "links": [{"context": context, "unknown": 1}],
        }
        values = {**make_span(started).model_dump(), part: parts[part]}
        await store.add_span(Span.model_validate(values))
        (stored,) = await store.query_spans(started.rollout_id)
        kept = stored.model_dump()[part]
        assert (kept[0] if isinstance(kept, list) else kept)["unknown"] == 1


class TestSpanHeartbeat(Contract):
    """A span is a sign of life."""

    async def test_first_span_makes_attempt_and_rollout_running(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started))
        attempt = await latest(store, started.rollout_id)
        assert attempt.status == "running"
        assert attempt.last_heartbeat_time is not None
        assert attempt.last_heartbeat_time >= attempt.start_time
        assert (await get_rollout(store, started.rollout_id)).status == "running"

    async def test_later_spans_move_the_heartbeat(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store)
        await store.add_span(make_span(started))
        await harness.advance(5)
        before = await latest(store, started.rollout_id)
        await store.add_span(make_span(started))
        after = await latest(store, started.rollout_id)
        assert before.last_heartbeat_time is not None
        assert after.last_heartbeat_time is not None
        assert after.last_heartbeat_time - before.last_heartbeat_time >= 4.9

    async def test_duplicate_is_no_heartbeat(self, store: LightningStore, harness: Harness) -> None:
        started = await new_rollout(store)
        span = make_span(started)
        await store.add_span(span)
        await harness.advance(5)
        before = await latest(store, started.rollout_id)
        await store.add_span(span)
        assert await latest(store, started.rollout_id) == before

    async def test_refused_span_is_no_heartbeat(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        with pytest.raises(ValueError, match="not found"):
            await store.add_span(make_span(started, attempt_id="at-missing"))
        assert await latest(store, started.rollout_id) == started.attempt

    async def test_a_batch_is_a_heartbeat_for_each_of_its_attempts(self, store: LightningStore) -> None:
        one, two = await new_rollout(store), await new_rollout(store)
        await store.add_many_spans([make_span(one), make_span(two), make_span(one)])
        for started in (one, two):
            assert (await latest(store, started.rollout_id)).status == "running"
            assert (await get_rollout(store, started.rollout_id)).status == "running"

    async def test_a_batch_of_duplicates_is_no_heartbeat(
        self, store: LightningStore, harness: Harness
    ) -> None:
        started = await new_rollout(store)
        spans = [make_span(started), make_span(started)]
        await store.add_many_spans(spans)
        await harness.advance(5)
        before = await latest(store, started.rollout_id)
        assert list(await store.add_many_spans(spans)) == []
        assert await latest(store, started.rollout_id) == before

    async def test_span_leaves_end_and_metadata_of_the_attempt_alone(self, store: LightningStore) -> None:
        started = await new_rollout(store, worker_id="w")
        await store.update_attempt(started.rollout_id, "latest", metadata={"k": 1})
        await store.add_span(make_span(started))
        attempt = await latest(store, started.rollout_id)
        assert (attempt.metadata, attempt.worker_id, attempt.end_time) == ({"k": 1}, "w", None)

    async def test_other_attempts_feel_nothing(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        again = await store.start_attempt(started.rollout_id)
        await store.add_span(make_span(again))
        first, second = await list_attempts(store, started.rollout_id)
        assert first == started.attempt
        assert second.status == "running"


class TestAddManySpans(Contract):
    """A batch."""

    async def test_nothing_is_nothing(self, store: LightningStore) -> None:
        assert list(await store.add_many_spans([])) == []

    async def test_all_are_stored(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        spans = [make_span(started, i) for i in range(1, 51)]
        assert list(await store.add_many_spans(spans)) == spans
        assert list(await store.query_spans(started.rollout_id)) == spans

    async def test_mixed_rollouts_and_attempts(self, store: LightningStore) -> None:
        one, two = await new_rollout(store), await new_rollout(store)
        again = await store.start_attempt(one.rollout_id)
        spans = [
            make_span(one, 1),
            make_span(two, 1),
            make_span(again, 2),
            make_span(two, 2),
            make_span(one, 3),
        ]
        stored = await store.add_many_spans(spans)
        assert {span.span_id for span in stored} == {span.span_id for span in spans}
        assert [span.sequence_id for span in await store.query_spans(one.rollout_id)] == [1, 2, 3]
        assert [span.sequence_id for span in await store.query_spans(two.rollout_id)] == [1, 2]
        assert len(await store.query_spans(one.rollout_id, again.attempt.attempt_id)) == 1

    async def test_known_spans_are_skipped(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        spans = [make_span(started, i) for i in range(1, 6)]
        await store.add_many_spans(spans[:2])
        assert list(await store.add_many_spans(spans)) == spans[2:]
        assert list(await store.query_spans(started.rollout_id)) == spans

    async def test_duplicates_within_the_batch_are_skipped(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        span = make_span(started)
        twin = make_span(started, span_id=span.span_id, name="twin")
        assert list(await store.add_many_spans([span, twin])) == [span]

    async def test_unknown_rollout_is_an_error(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        with pytest.raises(ValueError, match="Rollout ro-missing not found"):
            await store.add_many_spans([make_span(started), make_span(started, rollout_id="ro-missing")])

    async def test_unknown_attempt_is_an_error(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        with pytest.raises(ValueError, match="Attempt at-missing not found"):
            await store.add_many_spans([make_span(started, attempt_id="at-missing")])


class TestAddOtelSpan(Contract):
    """Spans straight from the OpenTelemetry SDK."""

    async def test_is_converted_and_stored(self, store: LightningStore) -> None:
        await store.enqueue_rollout("task")
        claimed = await claim(store)
        readable = otel_span("llm.call", model="m", tokens=12)
        span = await store.add_otel_span(claimed.rollout_id, claimed.attempt.attempt_id, readable)
        assert span is not None
        context = readable.get_span_context()
        assert context is not None
        assert (span.trace_id, span.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
        assert (span.name, span.attributes) == ("llm.call", {"model": "m", "tokens": 12})
        assert span.status.status_code == "UNSET"
        assert [event.name for event in span.events] == ["halfway"]
        (stored,) = await store.query_spans(claimed.rollout_id)
        assert stored.model_dump() == span.model_dump()

    async def test_times_are_seconds(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        readable = otel_span()
        span = await store.add_otel_span(started.rollout_id, started.attempt.attempt_id, readable)
        assert span is not None
        assert readable.start_time is not None
        assert span.start_time == pytest.approx(readable.start_time / 1e9)

    async def test_numbers_itself(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        for expected in (1, 2, 3):
            span = await store.add_otel_span(started.rollout_id, started.attempt.attempt_id, otel_span())
            assert span is not None
            assert span.sequence_id == expected

    async def test_explicit_number_moves_the_counter(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids = (started.rollout_id, started.attempt.attempt_id)
        span = await store.add_otel_span(*ids, otel_span(), 41)
        assert span is not None
        assert span.sequence_id == 41
        assert await store.get_next_span_sequence_id(*ids) == 42

    async def test_is_a_heartbeat(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        await store.add_otel_span(started.rollout_id, started.attempt.attempt_id, otel_span())
        assert (await latest(store, started.rollout_id)).status == "running"

    async def test_duplicate_is_none(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        ids, readable = (started.rollout_id, started.attempt.attempt_id), otel_span()
        assert await store.add_otel_span(*ids, readable) is not None
        assert await store.add_otel_span(*ids, readable) is None
        assert len(await store.query_spans(started.rollout_id)) == 1

    async def test_unknown_ids(self, store: LightningStore) -> None:
        started = await new_rollout(store)
        with pytest.raises(ValueError, match="Rollout ro-missing not found"):
            await store.add_otel_span("ro-missing", started.attempt.attempt_id, otel_span())
        with pytest.raises(ValueError, match="Attempt at-missing not found"):
            await store.add_otel_span(started.rollout_id, "at-missing", otel_span())
