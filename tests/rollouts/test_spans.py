"""Spans and their parts: what is kept, what is checked, and how they are created."""

from __future__ import annotations

import copy
import enum
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict

from perdure.kernel.codec import decode_json, encode_json, encode_wire
from perdure.kernel.errors import InvalidInput, PerdureError
from perdure.kernel.record import OpenRecord, usual_decoder
from perdure.server.http import bodies
from perdure.spans import encoding as span_encoding
from perdure.spans.forms import Forms
from perdure.spans.records import (
    Event,
    Link,
    OtelResource,
    Span,
    SpanContext,
    SpanCoreFields,
    TraceStatus,
    build_record,
    seconds_from,
)

CONTEXT = {
    "trace_id": "0" * 31 + "1",
    "span_id": "0" * 15 + "2",
    "is_remote": False,
    "trace_state": {"v": "1"},
}


class Key(enum.StrEnum):
    TOKENS = "gen_ai.tokens"


def fields(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
        "sequence_id": 1,
        "trace_id": CONTEXT["trace_id"],
        "span_id": CONTEXT["span_id"],
        "parent_id": None,
        "name": "call",
        "status": {"status_code": "OK"},
        "attributes": {"a": 1, "b": [1.5, 2.5], "c": True},
        "events": [{"name": "e", "attributes": {}, "level": "high"}],
        "links": [{"context": CONTEXT, "weight": 3}],
        "start_time": 1.5,
        "end_time": None,
        "context": CONTEXT,
        "parent": None,
        "resource": {"attributes": {"service.name": "s"}, "schema_url": ""},
    }
    return given | changes


def span(**changes: Any) -> Span:
    return Span(**fields(**changes))


EVERY_RECORD = [
    span(parent=CONTEXT, parent_id="7", extra={"deep": [1, None]}),
    SpanContext(**CONTEXT, trace_flags=1),
    TraceStatus(status_code="ERROR", description="no", detail={"x": 1}),
    Event(name="e", attributes={"a": 1}, timestamp=2, other=None),
    Link(context=CONTEXT, attributes=None, other=1),
    OtelResource(attributes={}, schema_url="u", other=1),
    SpanCoreFields(name="n", status={"status_code": "OK"}, attributes={}, start_time=None, end_time=1),
]


@pytest.mark.parametrize("record", EVERY_RECORD, ids=lambda record: type(record).__name__)
def test_every_part_survives_every_passage(record: OpenRecord) -> None:
    kind = type(record)
    assert kind.model_validate(record) is record
    for same in (
        kind.model_validate(record.model_dump()),
        kind.model_validate(MappingProxyType(record.model_dump())),
        kind.model_validate(record.model_dump(mode="json")),
        kind.model_validate_json(record.model_dump_json()),
        kind.model_validate(decode_json(encode_json(record))),
        kind.model_validate(decode_json(encode_json([record]))[0]),
        kind(**record.model_dump()),
        pickle.loads(pickle.dumps(record)),
        copy.copy(record),
        copy.deepcopy(record),
        record.model_copy(),
        record.model_copy(deep=True),
    ):
        assert same == record
        assert same is not record
        assert type(same) is kind
        assert same.model_extra == record.model_extra
        assert list(vars(same)) == list(vars(record))
    assert repr(record).startswith(f"{kind.__name__}(")
    assert record != record.model_dump()


def test_nested_objects_become_records() -> None:
    made = span()
    assert type(made.status) is TraceStatus
    assert type(made.events[0]) is Event
    assert type(made.links[0].context) is SpanContext
    assert type(made.context) is SpanContext
    assert type(made.resource) is OtelResource
    assert made.status.description is None
    assert made.events[0].timestamp is None
    assert made.links[0].attributes is None


def test_unknown_keys_are_attributes_and_are_kept_everywhere() -> None:
    made = span(kind="CLIENT", **{"dotted.key": 1, "self": 2, "_private": 3})
    assert made.kind == "CLIENT"  # type: ignore[attr-defined]
    assert getattr(made, "dotted.key") == 1
    assert made.model_extra == {"kind": "CLIENT", "dotted.key": 1, "self": 2, "_private": 3}
    assert made.events[0].level == "high"  # type: ignore[attr-defined]
    dumped = made.model_dump()
    assert (dumped["kind"], dumped["events"][0]["level"], dumped["links"][0]["weight"]) == (
        "CLIENT",
        "high",
        3,
    )
    assert decode_json(encode_json(made)) == dumped
    made.later = "x"  # type: ignore[attr-defined]
    assert made.model_copy(update={"more": 1}).model_dump()["later"] == "x"
    with pytest.raises(AttributeError):
        _ = made.absent  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key",
    ["model_dump", "model_copy", "from_attributes", "__class__", "__deepcopy__", "__reduce_ex__", "_keep"],
)
def test_a_key_cannot_hide_a_method(key: str) -> None:
    with pytest.raises(InvalidInput, match=f"cannot have a key named {key}"):
        Span.model_validate(fields(**{key: "x"}))


def test_declared_fields_come_first_in_their_order() -> None:
    turned = dict(reversed(fields(extra=1).items()))
    assert list(Span(**turned).model_dump()) == [*fields(), "extra"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sequence_id": 1.0},
        {"start_time": 5, "end_time": 1_700_000_000_250_000_000},
        {"start_time": math.nan},
        {"rollout_id": Key.TOKENS},
        {"attributes": {Key.TOKENS: (1, 2), "set": [1.5, None], "more": {"a": 1}}},
        {"attributes": {"set": {1}}},
        {"attributes": MappingProxyType({"a": 1})},
        {"events": (), "links": ()},
        {"context": MappingProxyType(CONTEXT)},
        {"unknown": 1},
    ],
    ids=str,
)
def test_both_ways_to_make_a_record_give_the_same(changes: dict[str, Any]) -> None:
    plain: dict[str, Any] = {
        "status": TraceStatus(status_code="OK"),
        "resource": OtelResource(attributes={}, schema_url=""),
        "events": [],
        "links": [],
        "context": None,
        "parent": None,
    }
    given = fields(**plain) | changes

    def made(make: Callable[[Span], None]) -> Any:
        span = Span.__new__(Span)
        try:
            make(span)
        except InvalidInput as error:
            return error.message
        return list(vars(span).items())

    quick = made(lambda span: span.__init__(**given))  # type: ignore[misc]
    careful = made(lambda span: span._read(dict(given)))
    assert repr(quick) == repr(careful)


@pytest.mark.parametrize("name", list(fields()))
def test_every_field_of_a_span_is_a_required_key(name: str) -> None:
    given = fields()
    del given[name]
    with pytest.raises(ValueError, match=f"Span.{name} is required"):
        Span(**given)


@pytest.mark.parametrize("name", ["parent_id", "start_time", "end_time", "context", "parent"])
def test_some_fields_may_be_none(name: str) -> None:
    assert getattr(span(**{name: None}), name) is None


@pytest.mark.parametrize(
    "name", sorted(fields().keys() - {"parent_id", "start_time", "end_time", "context", "parent"})
)
def test_others_may_not(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"Span.{name}"):
        span(**{name: None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_id": 5}, r"Span\.rollout_id: expected a string, got int"),
        ({"name": b"x"}, r"Span\.name"),
        ({"sequence_id": "1"}, r"Span\.sequence_id"),
        ({"sequence_id": True}, r"Span\.sequence_id"),
        ({"sequence_id": 2**63}, r"Span\.sequence_id.*64 bits"),
        ({"start_time": "now"}, r"Span\.start_time"),
        ({"start_time": True}, r"Span\.start_time"),
        ({"end_time": math.nan}, r"Span\.end_time"),
        ({"end_time": math.inf}, r"Span\.end_time"),
        ({"end_time": -1e13}, r"Span\.end_time"),
        ({"end_time": 10**400}, r"Span\.end_time"),
        ({"status": "OK"}, r"Span\.status: TraceStatus must be an object, not str"),
        (
            {"status": {"status_code": "ok"}},
            r"Span\.status: TraceStatus\.status_code: expected one of UNSET, OK",
        ),
        ({"status": {}}, r"TraceStatus\.status_code is required"),
        ({"status": {"status_code": []}}, r"TraceStatus\.status_code"),
        ({"attributes": []}, r"Span\.attributes"),
        ({"attributes": {1: 2}}, r"Span\.attributes.*keys"),
        ({"attributes": {"blob": b"x"}}, r"Span\.attributes: 'blob' cannot hold a value of type bytes"),
        ({"attributes": {"o": object()}}, r"Span\.attributes"),
        ({"events": {}}, r"Span\.events: expected a list"),
        ({"events": [{"name": "e"}]}, r"Span\.events: Event\.attributes is required"),
        ({"events": [5]}, r"Span\.events"),
        ({"links": [{}]}, r"Span\.links: Link\.context is required"),
        ({"context": {}}, r"Span\.context: SpanContext\.trace_id is required"),
        ({"context": CONTEXT | {"is_remote": 1}}, r"SpanContext\.is_remote"),
        ({"context": CONTEXT | {"trace_state": {"a": 1}}}, r"SpanContext\.trace_state"),
        ({"context": CONTEXT | {"trace_state": []}}, r"SpanContext\.trace_state"),
        ({"context": {1: 2}}, r"Span\.context"),
        ({"resource": {"attributes": {}}}, r"OtelResource\.schema_url is required"),
    ],
)
def test_wrong_types_are_refused_with_the_name_of_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        span(**changes)
    with pytest.raises(InvalidInput, match=message):
        Span.model_validate(fields(**changes))


@pytest.mark.parametrize("obj", [None, 5, [], "x"])
def test_what_is_no_object_is_refused(obj: Any) -> None:
    with pytest.raises(InvalidInput, match="Span must be an object"):
        Span.model_validate(obj)


def test_attributes_take_every_json_value_and_belong_to_the_span() -> None:
    given = {Key.TOKENS: 5, "none": None, "map": {"a": [1]}, "tuple": ("a",), "enum": Key.TOKENS}
    made = span(attributes=given)
    given["later"] = 1
    assert "later" not in made.attributes
    assert decode_json(encode_json(made))["attributes"] == {
        "gen_ai.tokens": 5,
        "none": None,
        "map": {"a": [1]},
        "tuple": ["a"],
        "enum": "gen_ai.tokens",
    }
    events = [Event(name="e", attributes={})]
    other = span(events=events)
    events.clear()
    assert len(other.events) == 1


def test_attributes_may_be_nan() -> None:
    made = span(attributes={"score": math.nan})
    back = Span.model_validate(decode_json(encode_json(made, nan="keep")))
    assert math.isnan(back.attributes["score"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="span cannot be stored"):
        encode_json(made, what="span")


def test_times_are_in_seconds() -> None:
    made = span(start_time=3, end_time=1_700_000_000_500_000_000)
    assert (made.start_time, made.end_time) == (3.0, 1_700_000_000.5)
    assert isinstance(made.start_time, float)
    assert (seconds_from(1e12), seconds_from(2e12)) == (1e12, 2000.0)


def test_records_are_mutable() -> None:
    made = span()
    made.name = "other"
    made.attributes["x"] = 1
    assert made != span()
    assert made.model_dump()["name"] == "other"


def test_dumping_chooses_fields() -> None:
    made = span(extra=None)
    assert made.model_dump(include={"name", "extra"}) == {"name": "call", "extra": None}
    slim = made.model_dump(exclude_none=True)
    assert {"parent_id", "extra", "end_time"}.isdisjoint(slim)
    assert "description" not in slim["status"]


def test_a_span_of_attributes_alone() -> None:
    made = Span.from_attributes(attributes={"a": 1})
    assert (made.rollout_id, made.attempt_id, made.sequence_id) == ("", "", 0)
    assert made.name == "agentlightning.virtual"
    assert (len(made.trace_id), len(made.span_id)) == (32, 16)
    assert int(made.trace_id, 16)
    assert made.status == TraceStatus(status_code="OK")
    assert made.context == SpanContext(
        trace_id=made.trace_id, span_id=made.span_id, is_remote=False, trace_state={}
    )
    assert (made.parent, made.parent_id, made.start_time, made.end_time) == (None, None, None, None)
    assert made.resource == OtelResource(attributes={}, schema_url="")
    assert (made.events, made.links) == ([], [])
    assert made.trace_id != Span.from_attributes(attributes={}).trace_id


def test_a_span_of_attributes_and_all_the_rest() -> None:
    resource = OtelResource(attributes={"r": 1}, schema_url="u")
    made = Span.from_attributes(
        attributes={},
        rollout_id="ro",
        attempt_id="at",
        sequence_id=4,
        name="n",
        trace_id="t",
        span_id="s",
        parent_id="p",
        start_time=1.0,
        end_time=2.0,
        resource=resource,
        status=TraceStatus(status_code="ERROR"),
    )
    assert made.parent == SpanContext(trace_id="t", span_id="p", is_remote=False, trace_state={})
    assert made.resource is resource
    assert (made.sequence_id, made.status.status_code, made.start_time) == (4, "ERROR", 1.0)


def test_a_span_of_core_fields() -> None:
    core = SpanCoreFields(
        name="n", status=TraceStatus(status_code="UNSET"), attributes={"a": 1}, start_time=5.0, end_time=None
    )
    made = Span.from_core_fields(core, rollout_id="ro", attempt_id="at", sequence_id=2)
    assert (made.name, made.status.status_code, made.start_time, made.end_time) == ("n", "UNSET", 5.0, None)
    assert (made.rollout_id, made.attempt_id, made.sequence_id) == ("ro", "at", 2)
    core.start_time = None
    assert (Span.from_core_fields(core).start_time or 0) > 1.7e9
    with pytest.raises(InvalidInput, match=r"SpanCoreFields\.end_time is required"):
        SpanCoreFields(name="n", status={"status_code": "OK"}, attributes={}, start_time=None)


def test_spans_load_no_opentelemetry() -> None:
    script = "import sys, perdure.spans.records; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


PLAIN: dict[str, Any] = {
    "rollout_id": "ro-1",
    "attempt_id": "at-1",
    "sequence_id": 3,
    "trace_id": "t" * 32,
    "span_id": "s" * 16,
    "parent_id": None,
    "name": "step",
    "status": {"status_code": "OK", "description": None},
    "attributes": {"a": 1, "b": [1, 2], "c": {"d": None}},
    "events": [],
    "links": [],
    "start_time": 1_700_000_000.25,
    "end_time": None,
    "context": None,
    "parent": {"trace_id": "t", "span_id": "s", "is_remote": False, "trace_state": {"a": "b"}},
    "resource": {"attributes": {"service.name": "x"}, "schema_url": ""},
}
ODD: tuple[dict[str, Any], ...] = (
    {},
    {"unknown": {"kept": 1}},
    {"status": {"status_code": "ERROR"}},
    {"status": {"status_code": "OK", "description": "x", "more": 1}},
    {"status": {"status_code": "FINE"}},
    {"sequence_id": 2**63},
    {"sequence_id": 1.0},
    {"sequence_id": True},
    {"start_time": 1_700_000_000},
    {"start_time": 1_700_000_000_250_000_000},
    {"start_time": "now"},
    {"events": [{"name": "e", "attributes": {}}]},
    {"links": [{"context": None}]},
    {"parent": {"trace_id": "t"}},
    {"resource": {"attributes": {}, "schema_url": "", "more": 1}},
    {"attributes": []},
    {"attributes": {"e": "\ud800"}},
    {"name": None},
    {"model_dump": 1},
)


STORED: tuple[dict[str, Any], ...] = (
    {"parent": None},
    {"parent": None, "status": {"status_code": "OK", "description": None}},
    {"parent": None, "attributes": {}},
    {
        "parent": None,
        "attributes": {"a": None, "b": [1, None], "c": {"d": [{}]}, "e": [0.5, 1e300], "f": 1e22},
    },
    {"parent": None, "start_time": 1_700_000_000.123_456_789, "end_time": 0.1},
    {"parent": None, "start_time": None},
    {"parent": None, "start_time": -0.5, "end_time": 1e12},
)


@pytest.mark.parametrize("odd", [*ODD, *STORED], ids=str)
def test_the_usual_form_is_stored_as_its_record(odd: dict[str, Any]) -> None:
    forms = Forms()
    usual = usual_decoder(Span)
    assert usual is not None
    try:
        read = usual(json.dumps({**PLAIN, **odd}).encode())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    part = span_encoding.resource_part(asdict(read.resource))
    assert span_encoding.resource_part(vars(build_record(read).resource)) == part
    made = span_encoding.new_span(read, part, forms)
    assert span_encoding.new_span(build_record(read), part, forms) == made
    # The short and the long encoding leave out the same fields.
    times = (made.start_ns, made.end_ns)
    assert decode_json(span_encoding._body(build_record(read), times)) == decode_json(made.body)


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("listed", [False, True])
def test_the_usual_form_is_read_as_any_other(
    odd: dict[str, Any], listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = list[Span] if listed else Span
    span = {**PLAIN, **odd}
    data = json.dumps([span, PLAIN] if listed else span).encode()

    def read() -> Any:
        try:
            found = bodies.decode_body(data, kind, optional=False)
        except PerdureError as error:
            return type(error), error.message
        return [build_record(each) for each in found] if listed else build_record(found)

    found = read()
    monkeypatch.setattr(bodies, "usual_decoder", lambda kind: None)
    expected = read()
    assert found == expected
    assert repr(found) == repr(expected)


def test_the_usual_form_has_the_fields_of_the_record() -> None:
    usual = usual_decoder(Span)
    assert usual is not None
    read = usual(json.dumps({**PLAIN, "attributes": {}}).encode())
    assert build_record(read) == Span(**{**PLAIN, "attributes": {}})
    assert list(vars(build_record(read))) == [field.name for field in Span._declared]
    assert decode_json(encode_wire(read)) == {**PLAIN, "attributes": {}}
    with pytest.raises(msgspec.ValidationError):
        usual(json.dumps({**PLAIN, "unknown": 1}).encode())
