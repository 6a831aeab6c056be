"""pi and agentic-pi: `pi --mode json`, and its stored sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.sessions.transcripts.lines import (
    SessionLine,
    Transcript,
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
    parsed,
    shown,
    text_of,
    thoughts,
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


def lines(record: Mapping[str, Any], transcript: Transcript) -> list[SessionLine]:
    """Return the lines of an event; none for one that says nothing."""
    kind = str(record.get("type"))
    message = mapping(record.get("message"))
    match kind:
        case "session":
            transcript.session_id = text_of(record.get("id"))
            return [event_line(kind, cwd=text_of(record.get("cwd")))]
        case "message_end":
            # The results of tools have events of their own.
            return [] if message.get("role") == "toolResult" else _message(message, transcript)
        case "message":
            parent = text_of(record.get("parentId"))
            more = {} if parent is None else {"parentUuid": parent}
            return [line | more for line in _message(message, transcript)]
        case "tool_execution_end":
            told = next((record[name] for name in ("result", "output", "error") if name in record), None)
            failed = bool(record.get("isError"))
            return [tool_result_line(text_of(record.get("toolCallId")), _result(told), is_error=failed)]
        case "usage_snapshot":
            return [_snapshot(mapping(record.get("stats")), transcript)]
        case "fatal_error":
            failure = record.get("error", record.get("message"))
            named = mapping(failure)
            told = text_of(named.get("message")) or text_of(named.get("name")) or shown(failure)
            return [error_line(told or "fatal error")]
        case "model_change":
            transcript.model = text_of(record.get("modelId"))
            return [event_line(kind, model=transcript.model)]
        case _:
            return [event_line(kind, detail=text_of(record.get("summary")))]


def _result(value: Any) -> str:
    """The text of a tool's result, whose content may be blocks."""
    content = mapping(value).get("content")
    return shown(value) if content is None else joined(each.get("text") for each in blocks(content))


def _snapshot(stats: Mapping[str, Any], transcript: Transcript) -> SessionLine:
    """The totals of a session. pi counts what is left after a compaction: a zero is not a total."""
    figures = known_figures(usage_of(stats.get("tokens"), cost_usd=stats.get("cost")))
    turns = count(stats.get("assistantMessages")) or None
    return result_line(figures, turns=turns, stop_reason=transcript.stop_reason)


def _message(message: Mapping[str, Any], transcript: Transcript) -> list[SessionLine]:
    parts = blocks(message.get("content"))
    text = joined(each.get("text") for each in parts if each.get("type") == "text")
    role = message.get("role")
    if role == "user":
        return [user_line(text)]
    if role == "toolResult":
        failed = bool(message.get("isError"))
        return [tool_result_line(text_of(message.get("toolCallId")), text, is_error=failed)]
    if role != "assistant":
        detail = text or shown(message.get("output")) or None
        return [event_line(text_of(role) or "message", detail=detail)]
    transcript.stop_reason = text_of(message.get("stopReason"))
    failure = text_of(message.get("errorMessage"))
    content = [*thinking_blocks(transcript, thoughts(parts)), *_said(parts)]
    told = mapping(message.get("usage"))
    usage = known_figures(usage_of(told, cost_usd=cost(mapping(told.get("cost")).get("total"))))
    model = text_of(message.get("model")) or transcript.model
    said = [assistant_line(content, model=model, usage=usage)] if content or usage else []
    return said if failure is None else [*said, error_line(failure)]


def _said(parts: list[Mapping[str, Any]]) -> list[SessionLine]:
    """The texts and the tool calls of a message, in their order."""
    content: list[SessionLine] = []
    for part in parts:
        text = text_of(part.get("text")) if part.get("type") == "text" else None
        if text is not None:
            content.append(text_block(text))
        elif part.get("type") == "toolCall":
            given = part.get("arguments")
            input = parsed(given) if isinstance(given, str) else given
            id, name = text_of(part.get("id")) or "", text_of(part.get("name")) or ""
            content.append(tool_use_block(id, name, input))
    return content
