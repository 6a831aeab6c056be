"""Spans from OTLP read back like the SDK's own, and can be queried like others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from tests.server.otlp_support import ENGINES, START, Batch, Home, begun, field, opened, recording, spans_of

from perdure import InMemoryLightningStore, Span
from perdure.kernel.errors import InvalidInput, NotFound
from perdure.rollouts.store import DatabaseLightningStore
from perdure.spans.otlp import BAD_ID, NO_ROLLOUT, TOO_MANY, parse, receive
from perdure.spans.otlp_reader import records


@pytest_asyncio.fixture(params=ENGINES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DatabaseLightningStore]:
    async with opened(request.param, request, tmp_path) as store:
        yield store


async def put(store: DatabaseLightningStore, data: bytes) -> list[Any]:
    received = receive(parse(data))
    return list(await store.rollouts.store_new_spans(received.spans, received.parts))


def exported(spans: list[ReadableSpan]) -> bytes:
    """Encode the spans like an exporter that sends their flags."""
    request = encode_spans(spans)
    messages = [span for group in request.resource_spans for one in group.scope_spans for span in one.spans]
    for made, span in zip(spans, messages, strict=True):
        context = made.get_span_context()
        span.flags |= int(context.trace_flags) if context else 0
        for link in span.links:
            link.flags |= 1
            link.trace_state = "vendor=value,other=2"
    data: bytes = request.SerializeToString()
    return data


def on_the_wire(span: Span, attempt_id: str) -> Span:
    """Return the span as it reads back: OTLP carries neither the trace state nor the flags of a parent."""
    wanted = span.model_copy(deep=True)
    wanted.attempt_id = attempt_id
    if wanted.parent is not None:
        wanted.parent.trace_state = {}
        del wanted.parent.trace_flags  # type: ignore[attr-defined]
    return wanted


async def test_a_span_reads_back_as_the_sdk_has_it(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    other = (await store.start_attempt(home.rollout_id)).attempt.attempt_id
    with recording(resource=home.attributes) as recorder:
        made = [recorder.rich_span(), recorder.plain_span()]
    for number, span in enumerate(made, 1):
        await store.add_otel_span(home.rollout_id, other, span, sequence_id=number)
    assert await put(store, exported(made)) == [3, 4]
    wanted = await spans_of(store, Home(home.rollout_id, other))
    found = await spans_of(store, home)
    assert [span.sequence_id for span in found] == [3, 4]
    for was, is_now in zip(wanted, found, strict=True):
        was.sequence_id = is_now.sequence_id
        assert vars(is_now) == vars(on_the_wire(was, home.attempt_id))


async def test_nothing_of_a_span_is_lost(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    with recording(resource=home.attributes) as recorder:
        await put(store, exported([recorder.rich_span()]))
    (span,) = await spans_of(store, home)
    assert span.attributes["bytes"] == "00ff"
    attributes: dict[str, object] = dict(span.attributes)
    assert (attributes["map"], attributes["none"]) == ({"in": [1, "02"]}, None)
    assert span.model_extra == {
        "kind": "CLIENT",
        "instrumentation_scope": {
            "name": "lib",
            "version": "1.2",
            "schema_url": "https://schema/scope",
            "attributes": {"scope.key": "v"},
            "dropped_attributes": 0,
        },
        "start_time_unix_nano": START,
        "end_time_unix_nano": START + 1_000_000_007,
        "dropped_attributes": 1,
        "dropped_events": 1,
        "dropped_links": 1,
    }
    assert span.context is not None
    assert span.context.trace_state == {"vendor": "value", "other": "2"}
    assert span.context.model_extra == {"trace_flags": 1}
    assert span.parent is not None
    assert span.parent.is_remote is True
    assert span.resource.schema_url == "https://schema/r"
    assert span.resource.attributes["ids"] == ["a", "b"]
    assert span.events[0].model_extra == {"timestamp_unix_nano": START + 5, "dropped_attributes": 1}
    assert (span.status.status_code, span.status.description) == ("ERROR", "broken")


async def test_what_the_sdk_never_sends_is_kept_too(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    batch.group.resource.dropped_attributes_count = 2
    batch.group.resource.entity_refs.add(type="service", id_keys=["service.name"], schema_url="https://s")
    span = batch.add("odd")
    span.kind = 17  # type: ignore[assignment]
    span.status.code = 9  # type: ignore[assignment]
    span.flags, span.trace_state = 0x8001, "a=1,b"
    await put(store, batch.bytes())
    (found,) = await spans_of(store, home)
    assert found.model_extra["kind"] == 17
    assert found.model_extra["flags"] == 0x8001
    assert found.status.model_extra == {"code": 9}
    assert found.context is not None
    assert found.context.model_extra["trace_state_text"] == "a=1,b"
    assert found.resource.model_extra["dropped_attributes"] == 2
    assert found.resource.model_extra["entity_refs"][0]["type"] == "service"


async def test_they_are_found_filtered_and_sorted_among_others(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    for name in ("beta", "alpha"):
        batch.add(name)
    await put(store, batch.bytes())
    own = Span.from_attributes(
        attributes={}, name="gamma", rollout_id=home.rollout_id, attempt_id=home.attempt_id, sequence_id=3
    )
    await store.add_span(own)
    by_name = await store.query_spans(home.rollout_id, sort_by="name")
    assert [span.name for span in by_name.items] == ["alpha", "beta", "gamma"]
    found = await store.query_spans(home.rollout_id, name_contains="alph", trace_id=batch.trace_id.hex())
    assert [span.name for span in found.items] == ["alpha"]
    page = await store.query_spans(home.rollout_id, limit=1, offset=1)
    assert ([span.name for span in page.items], page.total) == (["alpha"], 3)


async def test_a_batch_sent_twice_is_stored_once_and_takes_no_numbers(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    for _ in range(20):
        batch.add()
    assert await put(store, batch.bytes()) == list(range(1, 21))
    assert await put(store, batch.bytes()) == [None] * 20
    assert await store.get_next_span_sequence_id(home.rollout_id, home.attempt_id) == 21
    assert len(await spans_of(store, home)) == 20


async def test_a_resource_that_first_came_with_a_known_span_is_written(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    batch.add()
    await put(store, batch.bytes())
    batch.group.resource.attributes.add(key="later").value.bool_value = True
    assert await put(store, batch.bytes()) == [None]
    batch.add()
    assert await put(store, batch.bytes()) == [None, 2]
    assert (await spans_of(store, home))[1].resource.attributes["later"] is True


async def test_one_unknown_attempt_keeps_no_other_back(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    batch.add("good")
    batch.add("lost", rollout_id="ro-nobody")
    batch.add("lost too", attempt_id="at-nobody")
    batch.add("good as well")
    answers = await put(store, batch.bytes())
    assert (answers[0], answers[3]) == (1, 2)
    assert [type(answer) for answer in answers[1:3]] == [NotFound, NotFound]
    assert [answer.message for answer in answers[1:3]] == [
        "Rollout ro-nobody not found",
        f"Attempt at-nobody not found for rollout {home.rollout_id}",
    ]
    assert [span.name for span in await spans_of(store, home)] == ["good", "good as well"]


async def test_spans_of_another_namespace_are_out_of_reach(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    batch.add()
    (answer,) = await put(store.in_namespace("elsewhere"), batch.bytes())
    assert isinstance(answer, NotFound)
    assert await spans_of(store, home) == []


async def test_many_spans_are_numbered_in_their_order(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    for number in range(2500):
        batch.add(str(number))
    assert await put(store, batch.bytes()) == list(range(1, 2501))
    assert [span.name for span in await spans_of(store, home)] == [str(number) for number in range(2500)]


async def test_numbers_that_come_along_are_kept(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    batch.add("int", span_sequence_id=7)
    batch.add("text", span_sequence_id="12")
    batch.add("wrong", span_sequence_id="twelve")
    batch.add("negative", span_sequence_id=-3)
    assert await put(store, batch.bytes()) == [7, 12, 13, 14]


def test_what_a_span_says_wins_over_its_resource() -> None:
    batch = Batch(Home("ro-1", "at-1"))
    batch.group.resource.attributes.add(key="agentlightning.span_sequence_id").value.int_value = 5
    batch.add()
    batch.add(rollout_id="ro-2", attempt_id=3, span_sequence_id=6)
    homes = [(s.rollout_id, s.attempt_id, s.sequence_id) for s in receive(parse(batch.bytes())).spans]
    assert homes == [("ro-1", "at-1", 5), ("ro-2", "3", 6)]


def test_ids_are_filled_up_and_wrong_ones_refused() -> None:
    batch = Batch(Home("ro-1", "at-1"))
    for span_id, parent_id in (
        (b"\x01", b""),
        (b"", b""),
        (b"\0" * 8, b""),
        (b"x" * 9, b""),
        (b"y", b"z" * 99),
    ):
        span = batch.add()
        span.span_id, span.parent_span_id = span_id, parent_id
    batch.add().parent_span_id = b"\0" * 8
    received = receive(parse(batch.bytes()))
    assert received.refused == {BAD_ID: 4}
    assert received.spans[0].span_id == "0000000000000001"
    assert [span.parent_id for span in received.spans] == [None, None]


def test_odd_names_and_times_fit_their_columns() -> None:
    batch = Batch(Home("ro-1", "at-1"))
    long, null = batch.add("ä" * 9000), batch.add("a\0b")
    long.start_time_unix_nano, long.end_time_unix_nano = 0, 2**64 - 1
    received = receive(parse(batch.bytes()))
    first, second = received.spans
    assert len(first.name.encode()) <= 8192
    assert (first.start_ns, first.end_ns) == (None, 2**63 - 1)
    assert second.name == "a\ufffdb"
    assert [span.name for span in records(received.spans, received.parts)] == [long.name, null.name]


async def test_odd_names_and_times_survive_the_store(store: DatabaseLightningStore) -> None:
    home = await begun(store)
    batch = Batch(home)
    span = batch.add("a\0b" + "ä" * 9000)
    span.end_time_unix_nano = 2**64 - 1
    await put(store, batch.bytes())
    (found,) = await spans_of(store, home)
    assert found.name == span.name
    assert found.model_extra["end_time_unix_nano"] == 2**64 - 1


def test_spans_without_a_home_are_told_apart() -> None:
    batch = Batch()
    batch.add()
    batch.add(rollout_id="ro-1")
    received = receive(parse(batch.bytes()))
    assert (len(received.spans), len(received.unattributed)) == (0, 2)
    assert "agentlightning.rollout_id" in NO_ROLLOUT


@pytest.mark.parametrize("part", ["attributes", "events", "links"])
def test_a_span_of_too_many_parts_is_refused_also_if_they_are_equal(part: str) -> None:
    batch = Batch(Home("ro-1", "at-1"))
    fine, large = batch.add(), batch.add()
    for span, count in ((fine, 10_000), (large, 10_001)):
        for _ in range(count):
            getattr(span, part).add()
    text = batch.add()
    text.attributes.add(key="JZj").value.string_value = "JZj" * 20_000
    received = receive(parse(batch.bytes()))
    assert received.refused == {TOO_MANY: 1}
    assert [span.span_id for span in received.spans] == [fine.span_id.hex(), text.span_id.hex()]


def test_a_span_is_kept_as_it_came() -> None:
    """It has a number in an unusual form, and a field of a later release."""
    body = Batch().add().SerializeToString() + b"\x30\x80\x80\x00" + b"\xf8\x07\x01"
    (found,) = receive(parse(field(1, field(2, field(2, body))))).unattributed
    assert found.body == body


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Unable to parse OTLP traces payload"):
        parse(b"\xff\xff\xff")


async def test_spans_count_against_the_memory() -> None:
    async with InMemoryLightningStore(eviction_memory_threshold=5_000, safe_memory_threshold=1_000) as store:
        for _ in range(10):
            home = await begun(store)
            batch = Batch(home)
            batch.add("x" * 1500)
            await put(store, batch.bytes())
        assert (await store.statistics())["total_span_bytes"] <= 5_000


def test_protobuf_is_loaded_when_it_is_needed() -> None:
    program = (
        "import sys, perdure, perdure.runtime.stores, perdure.rollouts.store; "
        "print(sorted({'google.protobuf', 'opentelemetry', 'grpc'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
