"""Converts spans between records and rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.agents.records import RecordedSpan
from perdure.kernel.checks import check_text, optional_text
from perdure.kernel.codec import decode_json, encode_json, encode_scalar_values, encode_scalars
from perdure.kernel.errors import InvalidInput
from perdure.kernel.storage.rows import stored
from perdure.spans.figures import (
    SESSIONS,
    SpanFigures,
    figures_if_any,
    figures_in,
    label_in,
    may_have_figures,
)
from perdure.spans.forms import FORM, JSON, OTLP, Form, Forms, SharedForm, shared_in
from perdure.spans.records import AnySpan, OtelResource, Span, TraceStatus, build_record
from perdure.spans.rows import ModelCallRow, NewSpan, PartRow, SpanRecordRow, part_hash

MAX_SPAN_BYTES = 64 << 20
MAX_SERVICE = 250
_INT64 = 2**63
_MOST_SECONDS = _INT64 // 1_000_000_000
_SPAN_FIELDS, _STATUS_FIELDS = len(Span._declared), len(TraceStatus._declared)
_no_resource = OtelResource(attributes={}, schema_url="")
_IN_COLUMNS = frozenset(
    {"rollout_id", "attempt_id", "sequence_id", "trace_id", "span_id", "parent_id", "name", "resource"}
)
_EMPTY_FIELDS = {
    "events": (),
    "links": (),
    "start_time": None,
    "end_time": None,
    "context": None,
    "parent": None,
}
_TIMES = ("start_time", "end_time")
Times = tuple[int | None, int | None]
"""Start and end of a span in nanoseconds."""
_PLAIN, _RECORDED_FIELDS = 2, 3
"""Number of fields in a body besides the times: status and attributes; a recorded span also has its kind."""
_PLAIN_FIELDS = frozenset({"status", "attributes", "start_time", "end_time"})

Part = PartRow
"""A part that spans share, with its hash."""


def new_span(
    span: AnySpan, part: Part | None, forms: Forms, *, numbered: bool = True, size: int | None = None
) -> NewSpan:
    """Build a span ready to store; its resource is `part`, or the empty resource."""
    times = (_nanos(span.start_time), _nanos(span.end_time))
    form, body = _plain_body(span, times, forms) or (None, _body(build_record(span), times))
    if len(body) > MAX_SPAN_BYTES:
        raise InvalidInput(f"span {span.span_id} is larger than {MAX_SPAN_BYTES} bytes")
    if not 0 <= span.sequence_id < _INT64:
        raise InvalidInput(f"span {span.span_id}: sequence_id must be a whole number from 0 on")
    return NewSpan(
        span.rollout_id,
        span.attempt_id,
        check_text(span.span_id, "span_id"),
        span.sequence_id if numbered else None,
        check_text(span.trace_id, "trace_id"),
        optional_text(span.parent_id, "parent_id"),
        check_text(span.name, "name", max_length=8192),
        *times,
        span.status.status_code,
        len(body) if size is None else size,
        part.hash if part else None,
        form.part.hash if form else None,
        FORM if form else JSON,
        body,
        _figures(form, body, span.name, span.attributes),
        "",
        label_in(span.attributes, SESSIONS),
    )


def recorded_span(span: RecordedSpan, rollout_id: str, attempt_id: str, part: Part, forms: Forms) -> NewSpan:
    """Build a span ready to store from a recorded span."""
    times = (_nanos(span.start_time), _nanos(span.end_time))
    form, body = _recorded_body(span, times, forms)
    return NewSpan(
        rollout_id,
        attempt_id,
        span.span_id,
        span.number,
        span.trace_id,
        span.parent_id,
        check_text(span.name, "name", max_length=8192),
        *times,
        span.status,
        len(body),
        part.hash,
        form.part.hash if form else None,
        FORM if form else JSON,
        body,
        _figures(form, body, span.name, span.attributes),
        "",
        label_in(span.attributes, SESSIONS),
    )


def _figures(form: Form | None, body: bytes, name: str, attributes: Mapping[str, Any]) -> SpanFigures | None:
    if form is None:
        return figures_in(body, name, attributes)
    if not form.counts:
        return None
    if form.plan is None:
        return figures_if_any(name, attributes)
    return form.plan.figures(name, list(attributes.values()), attributes)


def _recorded_body(span: RecordedSpan, times: Times, forms: Forms) -> tuple[Form | None, bytes]:
    fields = _recorded_fields(span)
    _leave_out_times(fields, times)
    if span.description is None:
        fields["status"] = span.status
    if not (span.events or span.extra):
        if span.description is None and len(fields) == _RECORDED_FIELDS:
            formed = _formed(forms, span.attributes, span.kind)
            if formed is not None:
                return formed
        body = encode_scalars(fields, span.attributes)
        if body is not None:
            return None, body
    return None, encode_json(fields, what="span", nan="keep").encode()


def build_span(span: RecordedSpan, rollout_id: str, attempt_id: str, service: OtelResource) -> Span:
    """Convert a recorded span to a record; `service` is its producer."""
    return Span(
        **{**_EMPTY_FIELDS, **_recorded_fields(span)},
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=span.number,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        name=span.name,
        resource=service,
    )


def _recorded_fields(span: RecordedSpan) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "status": {"status_code": span.status, "description": span.description},
        "attributes": span.attributes,
        "start_time": span.start_time,
        "end_time": span.end_time,
        "kind": span.kind,
    }
    if span.events:
        fields["events"] = msgspec.to_builtins(span.events)
    return {**fields, **span.extra}


def _plain_body(span: AnySpan, times: Times, forms: Forms) -> tuple[Form | None, bytes] | None:
    """Encode a span that has only status, attributes and times, as most have; None for others."""
    if span.events or span.links or span.context or span.parent or span.status.description is not None:
        return None
    if type(span) is Span and (len(vars(span)) > _SPAN_FIELDS or len(vars(span.status)) > _STATUS_FIELDS):
        return None
    fields: dict[str, Any] = {"status": span.status.status_code, "attributes": span.attributes}
    start, end = times
    if start is not None and _seconds(start) != span.start_time:
        fields["start_time"] = span.start_time
    if end is not None and _seconds(end) != span.end_time:
        fields["end_time"] = span.end_time
    formed = _formed(forms, span.attributes) if len(fields) == _PLAIN else None
    if formed is not None:
        return formed
    body = encode_scalars(fields, span.attributes)
    return None if body is None else (None, body)


def _formed(
    forms: Forms, attributes: Mapping[str, Any], kind: str | None = None
) -> tuple[Form, bytes] | None:
    """Encode the values of a span's attributes if it has a form."""
    form = forms.of(attributes, kind)
    body = None if form is None else encode_scalar_values(list(attributes.values()))
    return None if form is None or body is None else (form, body)


def _body(span: Span, times: Times) -> bytes:
    """Encode the fields that are not in columns. Empty fields are left out."""
    fields = {
        name: value
        for name, value in vars(span).items()
        if name not in _IN_COLUMNS and not ((value is None or value == []) and name in _EMPTY_FIELDS)
    }
    _leave_out_times(fields, times)
    status = vars(span.status)
    if len(status) == 2 and status["description"] is None:
        fields["status"] = status["status_code"]
    if _PLAIN_FIELDS.issuperset(fields):
        body = encode_scalars(fields, fields["attributes"])
        if body is not None:
            return body
    try:
        return encode_json(fields, what="span", nan="keep").encode()
    except InvalidInput as error:
        raise InvalidInput(f"span {span.span_id}: {error}") from error


def _leave_out_times(fields: dict[str, Any], times: Times) -> None:
    """Leave out the times that equal the nanoseconds in columns."""
    for name, nanos in zip(_TIMES, times, strict=True):
        seconds = fields.get(name)
        if type(seconds) is float and _seconds(nanos) == seconds:
            del fields[name]


def resource_part(resource: Mapping[str, Any]) -> Part | None:
    """Encode the fields of a resource; return the part, or None for an empty resource."""
    if resource == vars(_no_resource):
        return None
    body = encode_json(resource, what="resource", nan="keep").encode()
    return PartRow(part_hash(body), body)


def decode_service(part: bytes) -> str | None:
    """Return the service name in a stored resource of either format."""
    if part.startswith(b"{"):
        attributes = decode_json(part).get("attributes") or {}
    else:
        from perdure.spans.otlp_reader import resource_in

        attributes = resource_in(part)["attributes"]
    name = attributes.get("service.name")
    return str(name)[:MAX_SERVICE].replace("\0", "\ufffd") if name else None


def _nanos(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    # In two parts, because the product of a current time with a billion is off by up to 128.
    if 0 <= seconds < _MOST_SECONDS:
        whole = int(seconds)
        return whole * 1_000_000_000 + round((seconds - whole) * 1e9)
    floor, part = divmod(seconds, 1)
    return min(max(int(floor) * 1_000_000_000 + round(part * 1e9), -_INT64), _INT64 - 1)


def _seconds(nanos: int | None) -> float | None:
    # Both are whole numbers, so the quotient is exact to the last bit.
    return None if nanos is None else nanos / 1_000_000_000


@stored
def spans_from(rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes]) -> list[Span]:
    """Convert rows to spans, with the parts that they share."""
    ours = [row for row in rows if row.format != OTLP]
    used = {row.resource_hash for row in ours if row.resource_hash is not None}
    resources: dict[str | None, OtelResource] = {None: _no_resource}
    for name in used:
        resources[name] = OtelResource.model_validate(decode_json(parts[name]))
    shared = _shared_by(ours, parts)
    spans = [
        _formed_span(row, shared[row.scope_hash], resources[row.resource_hash])
        if row.format == FORM
        else _span(row, resources[row.resource_hash])
        for row in ours
    ]
    if len(ours) == len(rows):
        return spans
    from perdure.spans.otlp_reader import OtlpSpanReader

    read, left = OtlpSpanReader(parts).read, iter(spans)
    return [read(row) if row.format == OTLP else next(left) for row in rows]


def _shared_by(rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes]) -> dict[str | None, SharedForm]:
    """Decode the forms of stored spans, by the hash of the form."""
    used = {row.scope_hash for row in rows if row.format == FORM and row.scope_hash is not None}
    return {name: shared_in(parts[name]) for name in used}


@stored
def figures_from(rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes]) -> list[SpanFigures | None]:
    """Compute the figures of stored spans; None for a span without figures."""
    shared = _shared_by(rows, parts)
    return [_figures_from(row, shared) for row in rows]


def spans_with_names(
    rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes], names: Iterable[str]
) -> list[SpanRecordRow]:
    """Return the spans whose encoded form contains all these attribute names, or cannot be checked for
    the names."""
    plain = [name.encode() for name in names if name.isascii() and name.isprintable() and '"' not in name]
    plain = [name for name in plain if b"\\" not in name and b"/" not in name]
    return [row for row in rows if all(name in _names_in(row, parts) for name in plain)]


def _names_in(row: SpanRecordRow, parts: Mapping[str, bytes]) -> bytes:
    """Return the bytes that contain the names of a span's attributes."""
    return parts[row.scope_hash] if row.format == FORM and row.scope_hash else bytes(row.body)


def calls_in(rows: Sequence[SpanRecordRow], parts: Mapping[str, bytes]) -> list[ModelCallRow]:
    """Return the model calls among spans."""
    pairs = zip(rows, figures_from(rows, parts), strict=True)
    return [call for row, figures in pairs if (call := call_row(row, figures)) is not None]


def _figures_from(row: SpanRecordRow, shared: Mapping[str | None, SharedForm]) -> SpanFigures | None:
    body = bytes(row.body)
    if row.format == FORM:
        return figures_if_any(row.name, shared[row.scope_hash].attributes_of(body))
    if row.format == JSON:
        return figures_if_any(row.name, decode_json(body)["attributes"]) if may_have_figures(body) else None
    from perdure.spans.otlp import figures_of_body

    return figures_of_body(body)


def _formed_span(row: SpanRecordRow, form: SharedForm, resource: OtelResource) -> Span:
    """Convert the row of a span with a form. Its values are a list of JSON: there is nothing to check."""
    return Span._of_checked(
        {
            **_in_columns(row),
            "status": TraceStatus._of_checked({"status_code": row.status_code, "description": None}),
            "attributes": form.attributes_of(bytes(row.body)),
            "events": [],
            "links": [],
            "start_time": _seconds(row.start_ns),
            "end_time": _seconds(row.end_ns),
            "context": None,
            "parent": None,
            "resource": _copied(resource),
            **form.fields,
        }
    )


def _in_columns(row: SpanRecordRow) -> dict[str, Any]:
    """Return the fields that every span has in columns."""
    return {
        "rollout_id": row.rollout_id,
        "attempt_id": row.attempt_id,
        "sequence_id": row.sequence_id,
        "trace_id": row.trace_id,
        "span_id": row.span_id,
        "parent_id": row.parent_id,
        "name": row.name,
    }


def _copied(resource: OtelResource) -> OtelResource:
    """Return a copy of a resource, so that each span has its own."""
    return OtelResource._of_checked({**vars(resource), "attributes": dict(resource.attributes)})


def _span(row: SpanRecordRow, resource: OtelResource) -> Span:
    body = decode_json(bytes(row.body))
    if type(body["status"]) is str:
        body["status"] = {"status_code": body["status"]}
    return Span.model_validate(
        {
            **_EMPTY_FIELDS,
            "start_time": _seconds(row.start_ns),
            "end_time": _seconds(row.end_ns),
            **body,
            **_in_columns(row),
            "resource": _copied(resource),
        }
    )


def call_row(span: NewSpan | SpanRecordRow, figures: SpanFigures | None) -> ModelCallRow | None:
    """Build the row of a model call that counts; None for any other span."""
    if figures is None or not (figures.input_tokens or figures.output_tokens or figures.cost):
        return None
    start = span.start_ns or span.end_ns or 0
    return ModelCallRow(
        span.rollout_id,
        span.attempt_id,
        span.span_id,
        span.parent_id,
        start,
        max(start, span.end_ns or 0),
        figures.response_id,
    )
