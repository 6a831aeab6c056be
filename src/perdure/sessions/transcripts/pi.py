"""pi and agentic-pi: `pi --mode json`, and its stored sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.sessions.transcripts.lines import (
    SessionLine,
    TranscriptState,
    assistant_line,
    error_line,
    event_line,
    known_figures,
    result_line,
    text_block,
    thinking_blocks,
    tool_result_line,
    tool_use_block,
    user_line,
)
from perdure.sessions.transcripts.values import (
    blocks,
    cost,
    count,
    joined,
    mapping,
    parse_text,
    parse_usage,
    parsed,
    shown,
    thoughts,
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


def lines(record: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    """Return the lines of an event; none for an event without content."""
    kind = str(record.get("type"))
    message = mapping(record.get("message"))
    match kind:
        case "session":
            transcript.session_id = parse_text(record.get("id"))
            return [event_line(kind, cwd=parse_text(record.get("cwd")))]
        case "message_end":
            # A result of a tool has its own event.
            return [] if message.get("role") == "toolResult" else _message(message, transcript)
        case "message":
            parent = parse_text(record.get("parentId"))
            more = {} if parent is None else {"parentUuid": parent}
            return [line | more for line in _message(message, transcript)]
        case "tool_execution_end":
            outcome = next((record[name] for name in ("result", "output", "error") if name in record), None)
            failed = bool(record.get("isError"))
            return [tool_result_line(parse_text(record.get("toolCallId")), _result(outcome), is_error=failed)]
        case "usage_snapshot":
            return [_snapshot(mapping(record.get("stats")), transcript)]
        case "fatal_error":
            failure = record.get("error", record.get("message"))
            named = mapping(failure)
            text = parse_text(named.get("message")) or parse_text(named.get("name")) or shown(failure)
            return [error_line(text or "fatal error")]
        case "model_change":
            transcript.model = parse_text(record.get("modelId"))
            return [event_line(kind, model=transcript.model)]
        case _:
            return [event_line(kind, detail=parse_text(record.get("summary")))]


def _result(value: Any) -> str:
    """Return the text of a tool's result. The content may be blocks."""
    content = mapping(value).get("content")
    return shown(value) if content is None else joined(block.get("text") for block in blocks(content))


def _snapshot(stats: Mapping[str, Any], transcript: TranscriptState) -> SessionLine:
    """Return the totals of a session. pi counts from the last compaction, so a zero is not a total."""
    figures = known_figures(parse_usage(stats.get("tokens"), cost_usd=stats.get("cost")))
    turns = count(stats.get("assistantMessages")) or None
    return result_line(figures, turns=turns, stop_reason=transcript.stop_reason)


def _message(message: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    parts = blocks(message.get("content"))
    text = joined(part.get("text") for part in parts if part.get("type") == "text")
    role = message.get("role")
    if role == "user":
        return [user_line(text)]
    if role == "toolResult":
        failed = bool(message.get("isError"))
        return [tool_result_line(parse_text(message.get("toolCallId")), text, is_error=failed)]
    if role != "assistant":
        detail = text or shown(message.get("output")) or None
        return [event_line(parse_text(role) or "message", detail=detail)]
    transcript.stop_reason = parse_text(message.get("stopReason"))
    failure = parse_text(message.get("errorMessage"))
    content = [*thinking_blocks(transcript, thoughts(parts)), *_blocks(parts)]
    stated = mapping(message.get("usage"))
    usage = known_figures(parse_usage(stated, cost_usd=cost(mapping(stated.get("cost")).get("total"))))
    model = parse_text(message.get("model")) or transcript.model
    messages = [assistant_line(content, model=model, usage=usage)] if content or usage else []
    return messages if failure is None else [*messages, error_line(failure)]


def _blocks(parts: list[Mapping[str, Any]]) -> list[SessionLine]:
    """Return the texts and the tool calls of a message, in order."""
    content: list[SessionLine] = []
    for part in parts:
        text = parse_text(part.get("text")) if part.get("type") == "text" else None
        if text is not None:
            content.append(text_block(text))
        elif part.get("type") == "toolCall":
            given = part.get("arguments")
            input = parsed(given) if isinstance(given, str) else given
            id, name = parse_text(part.get("id")) or "", parse_text(part.get("name")) or ""
            content.append(tool_use_block(id, name, input))
    return content
