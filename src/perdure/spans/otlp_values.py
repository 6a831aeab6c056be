"""Decodes OTLP values to plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def decode_attributes(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes by their names."""
    return {attribute.key: decode_value(attribute.value) for attribute in attributes}


def decode_value(value: AnyValue) -> Any:
    """Return a value as a Python object; bytes become hexadecimal digits."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "bytes_value":
        return value.bytes_value.hex()
    if kind == "array_value":
        return [decode_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return decode_attributes(value.kvlist_value.values)
    return getattr(value, kind)
