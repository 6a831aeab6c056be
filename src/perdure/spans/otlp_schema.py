"""Two more schemas of OTLP's messages, so that the parser does work that Python objects would do slowly.

A message is parsed twice, which is faster than parsing it once and encoding each span again. In `Bodies`
each span is its original bytes. In `Traces` the attributes of each span are a map, which on the wire is the
same as a list of keys and values: lookups are by key, and the last of equal keys counts.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

_FILES = (common_pb2, resource_pb2, trace_pb2)
_VALUE = ".opentelemetry.proto.common.v1.AnyValue"
_TRACE = ".opentelemetry.proto.trace.v1"
_PACKAGE = "perdure.otlp"


def _pool() -> DescriptorPool:
    """Build an own pool, because the default pool of the program must not contain these messages."""
    pool = DescriptorPool()
    for file in _FILES:
        pool.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_file().SerializeToString())
    return pool


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(
        name="perdure/otlp.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[module.DESCRIPTOR.name for module in _FILES],
    )
    _add_span(file.message_type.add(name="Span"))
    for prefix, spans in (("", f".{_PACKAGE}.Span"), ("Body", FieldDescriptorProto.TYPE_BYTES)):
        whole = file.message_type.add(name=f"{prefix}Traces")
        _add(whole, "resource_spans", 1, f".{_PACKAGE}.{prefix}Group", many=True)
        group = file.message_type.add(name=f"{prefix}Group")
        _add(group, "scope_spans", 2, f".{_PACKAGE}.{prefix}Scope", many=True)
        scope = file.message_type.add(name=f"{prefix}Scope")
        _add(scope, "spans", 2, spans, many=True)
        if not prefix:
            _add(group, "resource", 1, ".opentelemetry.proto.resource.v1.Resource")
            _add(group, "schema_url", 3, FieldDescriptorProto.TYPE_STRING)
            _add(scope, "scope", 1, ".opentelemetry.proto.common.v1.InstrumentationScope")
            _add(scope, "schema_url", 3, FieldDescriptorProto.TYPE_STRING)
    return file


def _add_span(span: DescriptorProto) -> None:
    """Declare the fields of a span that are read; the parser only checks the others."""
    entry = span.nested_type.add(name="AttributesEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, FieldDescriptorProto.TYPE_STRING)
    _add(entry, "value", 2, _VALUE)
    for name, number, kind, many in (
        ("trace_id", 1, FieldDescriptorProto.TYPE_BYTES, False),
        ("span_id", 2, FieldDescriptorProto.TYPE_BYTES, False),
        ("trace_state", 3, FieldDescriptorProto.TYPE_STRING, False),
        ("parent_span_id", 4, FieldDescriptorProto.TYPE_BYTES, False),
        ("name", 5, FieldDescriptorProto.TYPE_STRING, False),
        ("start_time_unix_nano", 7, FieldDescriptorProto.TYPE_FIXED64, False),
        ("end_time_unix_nano", 8, FieldDescriptorProto.TYPE_FIXED64, False),
        ("attributes", 9, f".{_PACKAGE}.Span.AttributesEntry", True),
        ("events", 11, f"{_TRACE}.Span.Event", True),
        ("links", 13, f"{_TRACE}.Span.Link", True),
        ("status", 15, f"{_TRACE}.Status", False),
    ):
        _add(span, name, number, kind, many=many)


def _add(message: DescriptorProto, name: str, number: int, kind: Any, *, many: bool = False) -> None:
    """Add a field of a simple type, or of the message with a name."""
    label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
    if isinstance(kind, str):
        options = {"type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": kind}
    else:
        options = {"type": kind}
    message.field.add(name=name, number=number, label=label, **options)


_messages = _pool()


def _get_class(name: str) -> Any:
    return GetMessageClass(_messages.FindMessageTypeByName(name))


Traces = _get_class(f"{_PACKAGE}.Traces")
Bodies = _get_class(f"{_PACKAGE}.BodyTraces")
Span = _get_class(f"{_PACKAGE}.Span")
ResourcePart = _get_class("opentelemetry.proto.trace.v1.ResourceSpans")
ScopePart = _get_class("opentelemetry.proto.trace.v1.ScopeSpans")
"""Stored parts that spans share."""
