"""Spans with the same attributes store their names once, and are returned unchanged."""

from __future__ import annotations

import enum
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.rollouts.attributes import CHAT
from tests.rollouts.test_traces import span, started

from perdure import Perdure
from perdure.agents.records import RecordedSpan
from perdure.kernel.errors import NotADatabase
from perdure.spans.encoding import new_span, recorded_span, spans_from
from perdure.spans.forms import FORM, JSON, MOST_BYTES, MOST_FORMS, USED_FROM, Forms
from perdure.spans.records import OtelResource, Span, TraceStatus
from perdure.spans.rows import NewSpan, PartRow, SpanRecordRow
from perdure.worker.tracing import SpanQueue

VALUES: tuple[Any, ...] = ("", "ü\n", 0, -(2**63), 2**64 - 1, 0.1, 1e300, True, [], [1, "a", False, 2.5])
ODD: tuple[Any, ...] = (None, float("nan"), float("-inf"), "\ud800", {"deep": [{}]}, [[1]])


class Key(enum.StrEnum):
    FIRST = "first"


@pytest.fixture
def forms() -> Forms:
    return Forms()


@pytest.fixture
async def perdure(shared_engine_url: str) -> AsyncIterator[Perdure]:
    namespace = f"forms-{random.randrange(10**12)}"
    async with Perdure(shared_engine_url, namespace=namespace) as opened:
        yield opened


def plain(number: int, attributes: Any, **more: Any) -> Span:
    fields: dict[str, Any] = {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "sequence_id": number,
        "trace_id": "1" * 32,
        "span_id": f"{number:016x}",
        "parent_id": None,
        "name": "work",
        "status": TraceStatus(status_code="OK"),
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": 1.5,
        "end_time": None,
        "context": None,
        "parent": None,
        "resource": OtelResource(attributes={}, schema_url=""),
    }
    return Span(**{**fields, **more})


def read_back(new: NewSpan, parts: dict[str, bytes]) -> Span:
    row = SpanRecordRow(
        new.rollout_id,
        new.attempt_id,
        new.sequence_id or 0,
        new.trace_id,
        new.span_id,
        new.parent_id,
        new.name,
        new.resource_hash,
        new.scope_hash,
        new.format,
        new.body,
        new.start_ns,
        new.end_ns,
        status_code=new.status_code,
    )
    return spans_from([row], parts)[0]


async def test_spans_before_and_after_their_form_is_known_come_back_alike(perdure: Perdure) -> None:
    rollout = await started(perdure)
    model = {**CHAT, "gen_ai.request.model": "gpt-4o", "note": "a"}
    given = [
        span(rollout, number, attributes={**model, "note": value}) for number, value in enumerate(VALUES)
    ]
    odd = [
        span(rollout, len(VALUES) + number, attributes={**model, "note": value})
        for number, value in enumerate(ODD)
        if value == value and value != "\ud800"
    ]
    await perdure.store.add_many_spans(given)
    await perdure.store.add_many_spans(odd)
    found = await perdure.store.query_spans(rollout.rollout_id, limit=-1)
    assert list(found) == [*given, *odd]
    assert all(list(one.attributes) == list(model) for one in found)
    steps = (await perdure.services.traces.steps(given[0].trace_id)).items
    assert [(one.model, one.input_tokens) for one in steps] == [("gpt-4o", 10)] * len(found)
    (figures,) = await perdure.services.rollouts.figures(rollout_id=[rollout.rollout_id])
    assert figures.input_tokens == 10 * len(found)


async def test_each_namespace_has_the_names(shared_engine_url: str) -> None:
    attributes = {"a": 1, "b": 2}
    for _ in range(2):
        async with Perdure(shared_engine_url, namespace=f"forms-{random.randrange(10**12)}") as perdure:
            rollout = await started(perdure)
            given = [span(rollout, number, attributes=attributes) for number in range(USED_FROM)]
            for one in given:
                await perdure.store.add_span(one)
            assert list(await perdure.store.query_spans(rollout.rollout_id)) == given


async def test_what_agents_record_comes_back_with_its_kind(perdure: Perdure) -> None:
    rollout = await started(perdure)
    queue = SpanQueue(perdure.store, "w-1", perdure.services.rollouts)
    for number in range(1, 9):
        kind = "CLIENT" if number % 2 else "INTERNAL"
        queue.put(
            rollout.rollout_id,
            rollout.attempt.attempt_id,
            RecordedSpan(
                name="step",
                start_time=1.0,
                end_time=2.0 + number,
                trace_id="ab" * 16,
                span_id=f"{number:016x}",
                number=number,
                kind=kind,  # type: ignore[arg-type]
                status="ERROR" if number == 8 else "UNSET",
                attributes={"number": number},
            ),
        )
    await queue.flush()
    found = list(await perdure.store.query_spans(rollout.rollout_id))
    kinds = [(one.attributes["number"], one.model_extra["kind"]) for one in found]
    assert kinds == [(number, "CLIENT" if number % 2 else "INTERNAL") for number in range(1, 9)]
    assert [one.status.status_code for one in found] == ["UNSET"] * 7 + ["ERROR"]
    assert [one.end_time for one in found] == [2.0 + number for number in range(1, 9)]


def test_a_form_holds_values_alone_from_the_third_span_on(forms: Forms) -> None:
    made = [new_span(plain(number, {"a": number, Key.FIRST: "x"}), None, forms) for number in range(5)]
    assert [one.format for one in made] == [JSON] * (USED_FROM - 1) + [FORM] * (6 - USED_FROM)
    assert made[4].body == b'[4,"x"]'
    parts = forms.parts_of(one.scope_hash for one in made)
    assert list(parts.values()) == [b'{"attributes":["a","first"]}']
    for one in made:
        assert read_back(one, parts).attributes == {"a": one.sequence_id, "first": "x"}
    # The order of attributes and the kind of recorded spans are parts of the form.
    assert new_span(plain(9, {"first": "x", "a": 1}), None, forms).format == JSON
    recorded = RecordedSpan(name="n", start_time=1.0, end_time=2.0, attributes={"a": 1, "first": "x"})
    assert recorded_span(recorded, "ro-1", "at-1", PartRow("h", b"{}"), forms).format == JSON


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_what_no_list_of_scalars_holds_is_stored_with_its_names(value: Any, forms: Forms) -> None:
    for number in range(USED_FROM + 2):
        new_span(plain(number, {"a": 1}), None, forms)
    made = new_span(plain(9, {"a": value}), None, forms)
    assert (made.format, made.scope_hash) == (JSON, None)


def test_a_span_with_more_than_attributes_has_no_form(forms: Forms) -> None:
    more: tuple[dict[str, Any], ...] = (
        {"status": TraceStatus(status_code="ERROR", description="why")},
        {"status": TraceStatus(status_code="OK", other=1)},
        {"events": [{"name": "e", "attributes": {}}]},
        {"start_time": 1e-12},
        {"other": 1},
    )
    for changes in more:
        for number in range(USED_FROM + 2):
            given = plain(number, {"a": 1}, **changes)
            made = new_span(given, None, forms)
            assert made.format == JSON
            assert read_back(made, {}) == given


def test_names_that_are_many_large_or_no_text_are_not_kept(forms: Forms) -> None:
    for names in (["x" * MOST_BYTES], ["\ud800"], [1], [None]):
        for _ in range(USED_FROM + 2):
            assert forms.of(dict.fromkeys(names, 1)) is None  # type: ignore[arg-type]
    for number in range(MOST_FORMS + 10):
        found = [forms.of({f"name-{number}": 1}) for _ in range(USED_FROM)]
        assert found[:-1] == [None] * (USED_FROM - 1)
        assert (found[-1] is None) == (number >= MOST_FORMS)
    for number in range(10_000):
        assert forms.of({f"once-{number}": 1}) is None
    assert len(forms._seen) <= 4096


def test_a_body_that_does_not_fit_its_names_is_damage(forms: Forms) -> None:
    made = [new_span(plain(number, {"a": 1, "b": 2}), None, forms) for number in range(USED_FROM)][-1]
    parts = forms.parts_of([made.scope_hash])
    made.body = b"[1]"
    with pytest.raises(NotADatabase):
        read_back(made, parts)
    with pytest.raises(NotADatabase):
        read_back(made, {})
