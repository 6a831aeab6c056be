"""The times of a span are stored only in columns, and are returned exactly."""

from __future__ import annotations

import random
from typing import Any

from perdure.kernel.codec import decode_json
from perdure.spans.encoding import new_span, spans_from
from perdure.spans.forms import FORM, Forms
from perdure.spans.records import OtelResource, Span, TraceStatus
from perdure.spans.rows import SpanRecordRow


def _span(start: float | None, end: float | None) -> Span:
    return Span(
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=1,
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id=None,
        name="work",
        status=TraceStatus(status_code="OK"),
        attributes={"answer": 42},
        events=[],
        links=[],
        start_time=start,
        end_time=end,
        context=None,
        parent=None,
        resource=OtelResource(attributes={}, schema_url=""),
    )


def _read_back(span: Span, forms: Forms) -> tuple[Span, Any]:
    new = new_span(span, None, forms)
    row = SpanRecordRow(
        new.rollout_id,
        new.attempt_id,
        1,
        new.trace_id,
        new.span_id,
        new.parent_id,
        new.name,
        None,
        new.scope_hash,
        new.format,
        new.body,
        new.start_ns,
        new.end_ns,
        status_code=new.status_code,
    )
    (found,) = spans_from([row], forms.parts_of([new.scope_hash]))
    return found, decode_json(new.body)


def test_times_of_today_are_stored_once_and_exactly() -> None:
    chance, forms = random.Random(7), Forms()
    for _ in range(2_000):
        start = 1_700_000_000 + chance.random() * 2e8
        span = _span(start, start + chance.random())
        found, body = _read_back(span, forms)
        assert found == span
        assert body == [42] or set(body) == {"status", "attributes"}


def test_times_that_the_columns_cannot_hold_stand_in_the_body() -> None:
    forms = Forms()
    for start, end in ((None, None), (1e-12, 0.1234567890123456), (-5.5, 1e18)):
        span = _span(start, end)
        assert _read_back(span, forms)[0] == span
    assert all(new_span(_span(1e-12, None), None, forms).format != FORM for _ in range(5))
