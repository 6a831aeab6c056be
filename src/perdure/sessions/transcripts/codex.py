"""Codex: `codex exec --json`, and its stored sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.sessions.records import Usage
from perdure.sessions.transcripts.lines import (
    SessionLine,
    TranscriptState,
    assistant_line,
    error_line,
    event_line,
    result_line,
    text_block,
    thinking_blocks,
    tool_result_line,
    tool_use_block,
    user_line,
)
from perdure.sessions.transcripts.values import (
    blocks,
    count,
    joined,
    mapping,
    parse_text,
    parsed,
    shown,
    summaries,
)

STREAMED = ("thread.", "turn.", "item.")
STORED = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_TOOLS = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})
_OUTCOME = ("id", "type", "status", "aggregated_output", "result", "exit_code")


def recognises(kind: str, record: Mapping[str, Any]) -> bool:
    return kind.startswith(STREAMED) or (kind in STORED and "payload" in record)


def lines(record: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    """Return the lines of a record; none for a record without content."""
    kind = str(record.get("type"))
    if kind in STORED:
        return _stored(kind, mapping(record.get("payload")), transcript)
    return _streamed(kind, record, transcript)


def _totals(value: Any) -> list[SessionLine]:
    """Return the totals of a session. Codex includes cached tokens in the input tokens."""
    stated = mapping(value)
    cached = count(stated.get("cached_input_tokens"))
    usage = Usage(
        max(0, count(stated.get("input_tokens")) - cached),
        count(stated.get("output_tokens")),
        cached,
        count(stated.get("cache_write_input_tokens")),
    )
    figures = msgspec.structs.asdict(usage)
    return [result_line(figures)] if stated else []


def _said(transcript: TranscriptState, text: str) -> list[SessionLine]:
    return [assistant_line([text_block(text)], model=transcript.model)] if text else []


def _thought(transcript: TranscriptState, thoughts: list[str]) -> list[SessionLine]:
    content = thinking_blocks(transcript, thoughts)
    return [assistant_line(content, model=transcript.model)] if content else []


def _call(transcript: TranscriptState, id: str, name: str, input: Any) -> SessionLine:
    given = parsed(input) if isinstance(input, str) else input
    return assistant_line([tool_use_block(id, name, given)], model=transcript.model)


# --- codex exec --json ------------------------------------------------------------------------------------


def _streamed(kind: str, record: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    match kind:
        case "thread.started":
            transcript.session_id = parse_text(record.get("thread_id"))
            return []
        case "turn.completed":
            # The usage is the total of the whole thread, not of the turn.
            return _totals(record.get("usage"))
        case "turn.failed" | "error":
            failure = mapping(record.get("error"))
            return [error_line(shown(failure.get("message") or record.get("message")) or kind)]
        case "item.completed":
            return _item(mapping(record.get("item")), transcript)
        case _:
            return []


def _item(item: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    kind, id = parse_text(item.get("type")) or "item", parse_text(item.get("id")) or ""
    text = shown(item.get("text"))
    if kind == "agent_message":
        return _said(transcript, text)
    if kind == "reasoning":
        return _thought(transcript, [text] if text else []) or [event_line(kind)]
    if kind == "error":
        return [error_line(shown(item.get("message")) or kind)]
    if kind not in _TOOLS:
        return [event_line(kind, detail=text or shown(item.get("items")) or None)]
    given = {name: value for name, value in item.items() if name not in _OUTCOME}
    failed = item.get("status") == "failed" or item.get("exit_code") not in (None, 0)
    output = shown(item.get("aggregated_output") or item.get("result"))
    return [
        _call(transcript, id, parse_text(item.get("tool")) or kind, given),
        tool_result_line(id, output, is_error=failed),
    ]


# --- stored sessions --------------------------------------------------------------------------------------


def _stored(kind: str, payload: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    inner = parse_text(payload.get("type"))
    match kind:
        case "response_item":
            return _response(payload, inner or kind, transcript)
        case "session_meta":
            transcript.session_id = parse_text(payload.get("id"))
            return [event_line(kind, cwd=parse_text(payload.get("cwd")))]
        case "turn_context":
            transcript.model = parse_text(payload.get("model")) or transcript.model
            return [event_line(kind, model=transcript.model, cwd=parse_text(payload.get("cwd")))]
        case "event_msg" if inner == "token_count":
            totals = _totals(mapping(payload.get("info")).get("total_token_usage"))
            return totals or [event_line(inner)]
        case _:
            # Messages are stored twice: as events and as response items.
            return [event_line(inner or kind)]


def _response(payload: Mapping[str, Any], kind: str, transcript: TranscriptState) -> list[SessionLine]:
    if kind == "message":
        text = joined(block.get("text") for block in blocks(payload.get("content")))
        role = parse_text(payload.get("role"))
        if role == "user":
            return [user_line(text)]
        if role == "assistant":
            return _said(transcript, text)
        return [event_line(role or kind, detail=text or None)]
    if kind == "reasoning":
        return _thought(transcript, summaries(payload.get("summary"))) or [event_line(kind)]
    if kind in ("function_call", "custom_tool_call", "local_shell_call"):
        given = payload.get("arguments", payload.get("input", payload.get("action")))
        id = parse_text(payload.get("call_id")) or parse_text(payload.get("id")) or ""
        return [_call(transcript, id, parse_text(payload.get("name")) or kind, given)]
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = payload.get("output")
        inner = mapping(output)
        text = shown(inner.get("output", inner.get("content", output)))
        failed = mapping(inner.get("metadata")).get("exit_code") not in (None, 0)
        failed = failed or inner.get("success") is False
        return [tool_result_line(parse_text(payload.get("call_id")), text, is_error=failed)]
    return [event_line(kind)]
