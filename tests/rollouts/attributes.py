"""Attributes of spans in OTLP's form."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 4}
REWARD = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}


def put(told: AnyValue, value: Any) -> None:
    """Write a value in OTLP's form; None becomes a value without a kind."""
    if isinstance(value, list):
        told.array_value.SetInParent()
        for each in value:
            put(told.array_value.values.add(), each)
    elif isinstance(value, dict):
        told.kvlist_value.SetInParent()
        for key, each in value.items():
            put(told.kvlist_value.values.add(key=key).value, each)
    elif value is not None:
        kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
        setattr(told, kinds[type(value)], value)
