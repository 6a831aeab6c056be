"""The OpenAI Agents SDK: items of its sessions, and the objects of its tracing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.sessions.records import Message
from perdure.sessions.transcripts.values import (
    blocks,
    joined,
    mapping,
    shown,
    text_of,
    time_of,
    tool_call,
    usage_of,
)

ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
OBJECTS = frozenset({"trace", "trace.span"})


def recognises(kind: str, record: Mapping[str, Any]) -> bool:
    return kind in ITEMS or _is_trace(record) or ("role" in record and "content" in record)


def messages(record: Mapping[str, Any]) -> list[Message]:
    return [_span(record) if _is_trace(record) else _item(record)]


def _is_trace(record: Mapping[str, Any]) -> bool:
    return text_of(record.get("object")) in OBJECTS


def _item(record: Mapping[str, Any]) -> Message:
    kind = record.get("type", "message")
    time = time_of(record.get("timestamp"))
    if kind == "function_call":
        call = tool_call(record.get("call_id"), record.get("name"), record.get("arguments"))
        return Message(role="assistant", tool_calls=[call], time=time)
    if kind == "function_call_output":
        call_id = text_of(record.get("call_id"))
        return Message(role="tool", text=shown(record.get("output")), tool_call_id=call_id, time=time)
    if kind == "reasoning":
        thoughts = [text for each in blocks(record.get("summary")) if (text := text_of(each.get("text")))]
        return Message(
            role="assistant" if thoughts else "event", kind="reasoning", reasoning=thoughts, time=time
        )
    role = record.get("role")
    text = joined(each.get("text") for each in blocks(record.get("content")))
    if role == "user":
        return Message(role="user", text=text, time=time)
    if role == "assistant":
        return Message(role="assistant", text=text, message_id=text_of(record.get("id")), time=time)
    return Message(role="system" if role in ("system", "developer") else "event", text=text, time=time)


def _span(record: Mapping[str, Any]) -> Message:
    data = mapping(record.get("span_data"))
    kind = text_of(data.get("type")) or text_of(record.get("object"))
    common: dict[str, Any] = {
        "kind": kind,
        "time": time_of(record.get("started_at")),
        "parent_id": text_of(record.get("parent_id")),
    }
    if kind == "generation":
        return Message(
            role="assistant",
            text=joined(shown(each.get("content")) for each in blocks(data.get("output"))),
            model=text_of(data.get("model")),
            usage=usage_of(data.get("usage")),
            message_id=text_of(record.get("id")),
            **common,
        )
    if kind == "function":
        failed = record.get("error") is not None
        return Message(role="tool", text=shown(data.get("output")), is_error=failed, **common)
    failure = mapping(record.get("error"))
    return Message(role="event", text=shown(failure.get("message")), is_error=bool(failure), **common)
