"""The gRPC interface of memory: made of its source, with the field numbers of the original."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2
from tests.server.grpc.original import MESSAGES as ORIGINAL
from tests.server.grpc.original import METHODS, kind

from perdure.memory import message_records as wire
from perdure.memory import messages as m
from perdure.memory.messages import FILE
from perdure.memory.records import Citation, MemoryEvent, NewMemoryEvent, SearchHit

Field = descriptor_pb2.FieldDescriptorProto
SOURCE = files("perdure.memory").joinpath("memory.proto").read_text()
BLOCK = re.compile(r"^(message|enum|service) (\w+) \{(\}|.*?^\})", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\s+(repeated |optional )?([\w.]+|map<string, string>) (\w+) = (\d+);", re.MULTILINE)
VALUE = re.compile(r"^\s+([A-Z0-9_]+) = (\d+);", re.MULTILINE)
METHOD = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
TYPES = {getattr(Field, name): name.removeprefix("TYPE_").lower() for name in Field.Type.keys()}  # noqa: SIM118


def _shape(field: Any, message: Any) -> tuple[str, str, str, int]:
    maps = {f".memory.{message.name}.{nested.name}" for nested in message.nested_type}
    kind = "map<string, string>" if field.type_name in maps else field.type_name.removeprefix(".memory.")
    kind = kind or TYPES[field.type]
    repeated = field.label == Field.LABEL_REPEATED and not kind.startswith("map")
    label = "repeated " if repeated else "optional " if field.proto3_optional else ""
    return label, kind, field.name, field.number


def test_the_description_is_that_of_the_source() -> None:
    blocks = {(found[1], found[2]): found[3] for found in BLOCK.finditer(SOURCE)}
    fields = {
        message.name: [_shape(field, message) for field in message.field] for message in FILE.message_type
    }
    assert fields == {
        name: [(label or "", kind, field, int(number)) for label, kind, field, number in FIELD.findall(text)]
        for (block, name), text in blocks.items()
        if block == "message"
    }
    values = {enum.name: [(each.name, each.number) for each in enum.value] for enum in FILE.enum_type}
    assert values == {
        name: [(value, int(number)) for value, number in VALUE.findall(text)]
        for (block, name), text in blocks.items()
        if block == "enum"
    }
    (service,) = FILE.service
    methods = [
        (each.name, each.client_streaming, each.input_type, each.server_streaming, each.output_type)
        for each in service.method
    ]
    assert methods == [
        (name, bool(stream), f".memory.{request}", bool(streams), f".memory.{answer}")
        for name, stream, request, streams, answer in METHOD.findall(blocks["service", service.name])
    ]


def test_all_that_the_original_has_is_here_with_the_same_numbers() -> None:
    for name in ORIGINAL:
        theirs, ours = kind(name).DESCRIPTOR, m.message_class(name).DESCRIPTOR
        for field in theirs.fields:
            found = ours.fields_by_name[field.name]
            assert (found.number, found.is_repeated, found.has_presence) == (
                field.number,
                field.is_repeated,
                field.has_presence,
            ), (name, field.name)
            if found.enum_type is None:
                assert found.type == field.type, (name, field.name)
        added = {field.name for field in ours.fields} - {field.name for field in theirs.fields}
        assert all(ours.fields_by_name[each].number > 1000 for each in added)
    (service,) = FILE.service
    assert set(METHODS) <= {method.name for method in service.method}


def test_records_come_back_from_messages() -> None:
    new = NewMemoryEvent(
        event_id="01HMZ0KQ6V9B4T5Z7N2C8XJ3PD",
        session_id="s",
        timestamp_ms=5,
        event_type="tool_result",
        role="tool",
        text="é",
        metadata={"a": "b"},
        agent="x",
    )
    assert wire.message_to_new_event(wire.event_message(new)) == new
    event = MemoryEvent(**{name: getattr(new, name) for name in new.__struct_fields__})
    assert wire.message_to_event(wire.event_message(event)) == event
    cited = Citation(event_id="e", session_id="s", timestamp_ms=5)
    for each in ("event", "node", "grip"):
        hit = SearchHit(kind=each, id="i", score=0.5, text="t", timestamp_ms=5, agent=None, events=[cited])
        assert wire.message_to_hit(wire.match_message(hit)) == hit
        assert wire.parse_kinds(wire.teleport_result(hit).doc_type) == [each]
    assert wire.parse_kinds(0) == wire.parse_kinds(3) == ["node", "grip"]
    assert wire.parse_kinds(wire.ALL_KINDS) == [None]
