"""pi: `pi --mode json`, and its stored sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.sessions.records import Message
from perdure.sessions.transcripts.values import (
    blocks,
    cost,
    joined,
    mapping,
    shown,
    text_of,
    thoughts,
    time_of,
    tool_call,
    usage_of,
)

STREAMED = frozenset(
    {
        "session",
        "agent_start",
        "agent_end",
        "agent_settled",
        "turn_start",
        "turn_end",
        "message_start",
        "message_update",
        "message_end",
        "tool_execution_start",
        "tool_execution_update",
        "tool_execution_end",
        "usage_snapshot",
        "sandbox_status",
        "extension_status",
        "skills_status",
        "auto_retry_start",
        "auto_retry_end",
        "fatal_error",
    }
)
STORED = frozenset(
    {"message", "model_change", "thinking_level_change", "compaction", "branch_summary", "custom"}
)


def recognises(kind: str, record: Mapping[str, Any]) -> bool:
    if kind == "message":
        return "message" in record
    return kind in STREAMED or (kind in STORED and "id" in record)


def messages(record: Mapping[str, Any]) -> list[Message]:
    kind = str(record.get("type"))
    common: dict[str, Any] = {
        "time": time_of(record.get("timestamp")),
        "session_id": text_of(record.get("sessionId")),
    }
    if kind == "session":
        common["session_id"] = text_of(record.get("id"))
        return [Message(role="event", kind=kind, cwd=text_of(record.get("cwd")), **common)]
    if kind == "message_end":
        # The results of tools come with their own events.
        message = mapping(record.get("message"))
        return [] if message.get("role") == "toolResult" else _message(message, common)
    if kind == "message":
        common["parent_id"] = text_of(record.get("parentId"))
        return _message(mapping(record.get("message")), common)
    if kind == "tool_execution_end":
        return [
            Message(
                role="tool",
                text=_result(record.get("result", record.get("output"))),
                tool_call_id=text_of(record.get("toolCallId")),
                is_error=bool(record.get("isError")),
                **common,
            )
        ]
    if kind == "usage_snapshot":
        stats = mapping(record.get("stats"))
        usage = usage_of(stats.get("tokens"), cost_usd=stats.get("cost"))
        return [Message(role="event", kind=kind, usage=usage, cumulative=True, **common)]
    if kind == "fatal_error":
        text = shown(record.get("error", record.get("message")))
        return [Message(role="system", kind=kind, text=text, is_error=True, **common)]
    if kind == "model_change":
        return [Message(role="event", kind=kind, model=text_of(record.get("modelId")), **common)]
    return [Message(role="event", kind=kind, text=shown(record.get("summary")), **common)]


def _result(value: Any) -> str:
    """The text of a tool's result, whose content may be blocks."""
    content = mapping(value).get("content")
    return shown(value) if content is None else joined(each.get("text") for each in blocks(content))


def _message(message: Mapping[str, Any], common: dict[str, Any]) -> list[Message]:
    parts = blocks(message.get("content"))
    text = joined(each.get("text") for each in parts if each.get("type") == "text")
    common = {**common, "time": common["time"] or time_of(message.get("timestamp"))}
    role = message.get("role")
    if role == "user":
        return [Message(role="user", text=text, **common)]
    if role == "toolResult":
        call_id = text_of(message.get("toolCallId"))
        return [
            Message(
                role="tool", text=text, tool_call_id=call_id, is_error=bool(message.get("isError")), **common
            )
        ]
    if role != "assistant":
        return [
            Message(role="event", kind=text_of(role), text=text or shown(message.get("output")), **common)
        ]
    told = mapping(message.get("usage"))
    calls = [
        tool_call(each.get("id"), each.get("name"), each.get("arguments"))
        for each in parts
        if each.get("type") == "toolCall"
    ]
    usage = usage_of(told)
    total = cost(mapping(told.get("cost")).get("total"))
    if usage is not None and total is not None:
        usage = msgspec.structs.replace(usage, cost_usd=total)
    failed = text_of(message.get("errorMessage"))
    found = Message(
        role="assistant",
        text=text,
        reasoning=thoughts(parts),
        tool_calls=calls,
        model=text_of(message.get("model")),
        usage=usage,
        **common,
    )
    return (
        [found] if failed is None else [found, Message(role="system", text=failed, is_error=True, **common)]
    )
