"""The values of OTLP as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def attributes_of(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Attributes by their names."""
    return {attribute.key: value_of(attribute.value) for attribute in attributes}


def value_of(value: AnyValue) -> Any:
    """A value as Python has it; bytes are hexadecimal digits."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "bytes_value":
        return value.bytes_value.hex()
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, kind)
