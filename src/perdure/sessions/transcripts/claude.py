"""Claude Code and the Claude Agent SDK: stored transcripts and `stream-json`; also perdure's envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.sessions.records import TURNS, USAGE_FIELDS, Message, Usage
from perdure.sessions.transcripts.values import (
    blocks,
    count,
    is_number,
    joined,
    mapping,
    parse_text,
    parse_time,
    parse_usage,
    shown,
    thoughts,
    tool_call,
)

TYPES = frozenset(
    {
        "user",
        "assistant",
        "system",
        "result",
        "summary",
        "stream_event",
        "file-history-snapshot",
        "queue-operation",
        "progress",
        "attachment",
        "pr-link",
        "agent-name",
        "custom-title",
        "ai-title",
        "last-prompt",
        "permission-mode",
        "agent-setting",
        "bridge-session",
        "worktree-state",
    }
)


def recognises(kind: str, record: Mapping[str, Any]) -> bool:
    return kind in TYPES


def messages(record: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a line; a line of another type is an event."""
    common = _common(record)
    kind = record.get("type")
    if kind == "result":
        return [_result(record, common)]
    if kind == "system":
        return [_system(record, common)]
    if kind in ("user", "assistant"):
        message = mapping(record.get("message"))
        if record.get("isApiErrorMessage") or (kind == "assistant" and record.get("error")):
            text = _texts(message.get("content")) or shown(record.get("error"))
            return [Message(role="system", text=text, is_error=True, **common)]
        return _assistant(message, common) if kind == "assistant" else _user(record, message, common)
    return [Message(role="event", kind=str(kind), text=shown(record.get("summary")), **common)]


def _common(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time": parse_time(record.get("timestamp")),
        "parent_id": parse_text(record.get("parentUuid")) or parse_text(record.get("parent_tool_use_id")),
        "agent_id": parse_text(record.get("agentId")),
        "session_id": parse_text(record.get("sessionId")) or parse_text(record.get("session_id")),
        "cwd": parse_text(record.get("cwd")),
        "run_id": parse_text(record.get("runId")),
        "attempt": count(record.get("attempt")) or None,
    }


def _texts(content: Any) -> str:
    return joined(block.get("text") for block in blocks(content) if block.get("type") == "text")


def _assistant(message: Mapping[str, Any], common: dict[str, Any]) -> list[Message]:
    parts = blocks(message.get("content"))
    usage = mapping(message.get("usage"))
    return [
        Message(
            role="assistant",
            text=_texts(parts),
            reasoning=thoughts(parts),
            tool_calls=[
                tool_call(part.get("id"), part.get("name"), part.get("input"))
                for part in parts
                if part.get("type") == "tool_use"
            ],
            model=parse_text(message.get("model")),
            usage=parse_usage(usage, cost_usd=usage.get("cost_usd")),
            message_id=parse_text(message.get("id")),
            **common,
        )
    ]


def _user(record: Mapping[str, Any], message: Mapping[str, Any], common: dict[str, Any]) -> list[Message]:
    """Return the messages of a user's line: the results of tools, each a message, and the text."""
    parts = blocks(message.get("content", record.get("content")))
    messages = [
        Message(
            role="tool",
            text=shown(part.get("content")),
            tool_call_id=parse_text(part.get("tool_use_id")),
            is_error=bool(part.get("is_error")),
            blob=parse_text(part.get("blob")),
            **common,
        )
        for part in parts
        if part.get("type") == "tool_result"
    ]
    text = _texts(parts)
    if text or not messages:
        hidden = bool(record.get("isMeta"))
        kind = "meta" if hidden else None
        messages.append(Message(role="event" if hidden else "user", kind=kind, text=text, **common))
    return messages


def _system(record: Mapping[str, Any], common: dict[str, Any]) -> Message:
    """Return the message of a system line; the first of a stream has the session, model and directory."""
    text = shown(record.get("content"))
    return Message(
        role="system" if text else "event",
        kind=parse_text(record.get("subtype")),
        text=text or shown(record.get("detail")),
        model=parse_text(record.get("model")),
        is_error=bool(record.get("is_error")),
        **common,
    )


def _result(record: Mapping[str, Any], common: dict[str, Any]) -> Message:
    totals = read_totals(record)
    # The `usage` of Claude Code covers its main loop. The loop's messages state the same usage.
    usage = parse_usage(record.get("usage")) or parse_usage(totals) or Usage()
    return Message(
        role="result",
        text=shown(record.get("result")),
        kind=parse_text(record.get("subtype")),
        is_error=bool(record.get("is_error")),
        usage=msgspec.structs.replace(usage, cost_usd=totals.get("cost_usd")),
        cumulative=True,
        totals=totals,
        **common,
    )


def read_totals(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the totals that a result line states."""
    stated: dict[str, Any] = {name: record.get(f"total_{name}") for name in USAGE_FIELDS}
    stated[TURNS] = record.get("num_turns")
    totals = {name: value for name, value in stated.items() if is_number(value) and value >= 0}
    return {name: value if name == "cost_usd" else int(value) for name, value in totals.items()}
