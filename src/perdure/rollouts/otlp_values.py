"""The values of OTLP as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def attributes_of(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes by their names."""
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def some_attributes(attributes: Iterable[KeyValue], wanted: Collection[str]) -> dict[str, Any]:
    """Those attributes of a span that are wanted. Texts and whole numbers, the usual ones, are quick."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        key = attribute.key
        if key in wanted:
            value = attribute.value
            found[key] = value.string_value or value.int_value or _value(value)
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "bytes_value":
        return value.bytes_value.hex()
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)
