"""Codex: `codex exec --json`, and its stored sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.sessions.records import Message, Usage
from perdure.sessions.transcripts.values import (
    blocks,
    count,
    joined,
    mapping,
    shown,
    summaries,
    text_of,
    time_of,
    tool_call,
)

STREAMED = ("thread.", "turn.", "item.")
STORED = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_TOOLS = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})


def recognises(kind: str, record: Mapping[str, Any]) -> bool:
    return kind.startswith(STREAMED) or (kind in STORED and "payload" in record)


def messages(record: Mapping[str, Any]) -> list[Message]:
    kind = str(record.get("type"))
    return _stored(kind, record) if kind in STORED else _streamed(kind, record)


def _usage(value: Any) -> Usage | None:
    """Codex counts what was cached among the input."""
    told = mapping(value)
    cached = count(told.get("cached_input_tokens"))
    usage = Usage(
        max(0, count(told.get("input_tokens")) - cached),
        count(told.get("output_tokens")),
        cached,
        count(told.get("cache_write_input_tokens")),
    )
    return usage or None


# --- codex exec --json ------------------------------------------------------------------------------------


def _streamed(kind: str, record: Mapping[str, Any]) -> list[Message]:
    if kind == "turn.completed":
        return [Message(role="result", kind=kind, usage=_usage(record.get("usage")))]
    if kind in ("turn.failed", "error"):
        failure = mapping(record.get("error"))
        text = shown(failure.get("message") or record.get("message"))
        return [Message(role="system", kind=kind, text=text, is_error=True)]
    if kind == "item.completed":
        return _item(mapping(record.get("item")))
    return [Message(role="event", kind=kind, session_id=text_of(record.get("thread_id")))]


def _item(item: Mapping[str, Any]) -> list[Message]:
    kind, id = text_of(item.get("type")) or "item", text_of(item.get("id"))
    text = shown(item.get("text"))
    if kind == "agent_message":
        return [Message(role="assistant", text=text)]
    if kind == "reasoning":
        return [Message(role="assistant", reasoning=[text] if text else [])]
    if kind == "error":
        return [Message(role="system", text=shown(item.get("message")), is_error=True)]
    if kind not in _TOOLS:
        return [Message(role="event", kind=kind, text=text or shown(item.get("items")))]
    left_out = ("id", "type", "status", "aggregated_output", "result", "exit_code")
    given = {name: value for name, value in item.items() if name not in left_out}
    call = tool_call(id, text_of(item.get("tool")) or kind, given)
    failed = item.get("status") == "failed" or item.get("exit_code") not in (None, 0)
    output = shown(item.get("aggregated_output") or item.get("result"))
    return [
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", text=output, tool_call_id=id, is_error=failed),
    ]


# --- stored sessions --------------------------------------------------------------------------------------


def _stored(kind: str, record: Mapping[str, Any]) -> list[Message]:
    payload = mapping(record.get("payload"))
    time = time_of(record.get("timestamp"))
    if kind == "response_item":
        return [_response(payload, time)]
    if kind == "session_meta":
        session_id, cwd = text_of(payload.get("id")), text_of(payload.get("cwd"))
        return [Message(role="event", kind=kind, time=time, session_id=session_id, cwd=cwd)]
    if kind == "turn_context":
        model, cwd = text_of(payload.get("model")), text_of(payload.get("cwd"))
        return [Message(role="event", kind=kind, time=time, model=model, cwd=cwd)]
    if kind == "event_msg" and payload.get("type") == "token_count":
        total = mapping(mapping(payload.get("info")).get("total_token_usage"))
        return [Message(role="event", kind="token_count", time=time, usage=_usage(total), cumulative=True)]
    # Messages are told twice, here and as response items.
    return [Message(role="event", kind=text_of(payload.get("type")) or kind, time=time)]


def _response(payload: Mapping[str, Any], time: float | None) -> Message:
    kind = text_of(payload.get("type")) or "response_item"
    if kind == "message":
        text = joined(each.get("text") for each in blocks(payload.get("content")))
        role = text_of(payload.get("role"))
        if role in ("user", "assistant"):
            return Message(role="user" if role == "user" else "assistant", text=text, time=time)
        return Message(role="event", kind=role, text=text, time=time)
    if kind == "reasoning":
        summary = summaries(payload.get("summary"))
        return Message(role="assistant" if summary else "event", kind=kind, reasoning=summary, time=time)
    if kind in ("function_call", "custom_tool_call", "local_shell_call"):
        given = payload.get("arguments", payload.get("input", payload.get("action")))
        call = tool_call(payload.get("call_id") or payload.get("id"), payload.get("name") or kind, given)
        return Message(role="assistant", tool_calls=[call], time=time)
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = payload.get("output")
        inner = mapping(output)
        told = shown(inner.get("output", inner.get("content", output)))
        failed = mapping(inner.get("metadata")).get("exit_code") not in (None, 0)
        failed = failed or inner.get("success") is False
        return Message(
            role="tool", text=told, tool_call_id=text_of(payload.get("call_id")), is_error=failed, time=time
        )
    return Message(role="event", kind=kind, time=time)
