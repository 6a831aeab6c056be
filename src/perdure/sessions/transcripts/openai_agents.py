"""The OpenAI Agents SDK: items of its sessions, and the objects of its tracing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.sessions.transcripts.lines import (
    SessionLine,
    TranscriptState,
    assistant_line,
    event_line,
    known_figures,
    text_block,
    thinking_blocks,
    tool_result_line,
    tool_use_block,
    user_line,
)
from perdure.sessions.transcripts.values import (
    blocks,
    joined,
    mapping,
    parse_text,
    parse_usage,
    parsed,
    shown,
    summaries,
)

ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
OBJECTS = frozenset({"trace", "trace.span"})


def recognises(kind: str, record: Mapping[str, Any]) -> bool:
    return kind in ITEMS or _is_trace(record) or ("role" in record and "content" in record)


def lines(record: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    """Return the lines of a record; none for a record without content."""
    return _span(record) if _is_trace(record) else _item(record, transcript)


def _is_trace(record: Mapping[str, Any]) -> bool:
    return parse_text(record.get("object")) in OBJECTS


def _item(record: Mapping[str, Any], transcript: TranscriptState) -> list[SessionLine]:
    kind = parse_text(record.get("type")) or "message"
    if kind == "function_call":
        given = record.get("arguments")
        input = parsed(given) if isinstance(given, str) else given
        id, name = parse_text(record.get("call_id")) or "", parse_text(record.get("name")) or ""
        return [assistant_line([tool_use_block(id, name, input)])]
    if kind == "function_call_output":
        call_id = parse_text(record.get("call_id"))
        return [tool_result_line(call_id, shown(record.get("output")), is_error=False)]
    if kind == "reasoning":
        thoughts = thinking_blocks(transcript, summaries(record.get("summary")))
        return [assistant_line(thoughts)] if thoughts else [event_line(kind)]
    text = joined(block.get("text") for block in blocks(record.get("content")))
    match record.get("role"):
        case "user":
            return [user_line(text)]
        case "assistant":
            return [assistant_line([text_block(text)] if text else [], id=parse_text(record.get("id")))]
        case "system" | "developer":
            return [event_line("message", content=text)]
        case _:
            return [event_line(kind, detail=text or None)]


def _span(record: Mapping[str, Any]) -> list[SessionLine]:
    data = mapping(record.get("span_data"))
    kind = parse_text(data.get("type")) or parse_text(record.get("object")) or "trace"
    id = parse_text(record.get("id"))
    failure = mapping(record.get("error"))
    if kind == "generation":
        text = joined(shown(block.get("content")) for block in blocks(data.get("output")))
        usage = known_figures(parse_usage(data.get("usage")))
        content = [text_block(text)] if text else []
        return [assistant_line(content, model=parse_text(data.get("model")), usage=usage, id=id)]
    if kind == "function":
        failed = record.get("error") is not None
        return [tool_result_line(id, shown(data.get("output")), is_error=failed)]
    detail = parse_text(shown(failure.get("message")))
    return [event_line(kind, detail=detail, is_error=True if failure else None)]
