"""Lines of a session in the envelope of Claude Code, built from records of other tools. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from perdure.sessions.records import Usage
from perdure.sessions.transcripts.values import parse_time

SessionLine = dict[str, Any]
Blocks = Sequence[Mapping[str, Any]]
MAX_SUBTYPE: Final = 200


class TranscriptState(msgspec.Struct):
    """Values of earlier lines of a transcript that later lines need."""

    session_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    time: str | None = None
    thinking: bool = False
    """Whether thoughts are kept; stored lines of a session have none."""


def user_line(content: Any) -> SessionLine:
    """Build the line of a user's message."""
    return {"type": "user", "message": {"role": "user", "content": content}}


def assistant_line(
    content: Blocks,
    *,
    model: str | None = None,
    usage: Mapping[str, Any] | None = None,
    id: str | None = None,
) -> SessionLine:
    """Build the line of an assistant's message, with its tool calls."""
    message: SessionLine = {"role": "assistant", "content": [*content]}
    more = {"id": id, "model": model, "usage": usage}
    return {"type": "assistant", "message": message | {name: value for name, value in more.items() if value}}


def text_block(text: str) -> SessionLine:
    return {"type": "text", "text": text}


def thinking_blocks(transcript: TranscriptState, thoughts: Sequence[str]) -> list[SessionLine]:
    """Build blocks of thoughts, if they are kept."""
    return [{"type": "thinking", "thinking": thought} for thought in thoughts] if transcript.thinking else []


def tool_use_block(id: str, name: str, input: Any) -> SessionLine:
    return {"type": "tool_use", "id": id, "name": name, "input": {} if input is None else input}


def tool_result_line(id: str | None, content: Any, *, is_error: bool) -> SessionLine:
    """Build the line of a tool's result."""
    block: SessionLine = {"type": "tool_result", "tool_use_id": id or "", "content": content}
    return user_line([block | {"is_error": True} if is_error else block])


def error_line(error: str) -> SessionLine:
    """Build the line of an error, in the form of a message of the assistant."""
    body = {"role": "assistant", "content": [text_block(error)]}
    return {"type": "assistant", "isApiErrorMessage": True, "error": error, "message": body}


def result_line(
    usage: Mapping[str, Any], *, turns: int | None = None, stop_reason: str | None = None
) -> SessionLine:
    """Build the line of the totals that a tool states."""
    stated = {"num_turns": turns, **{f"total_{name}": value for name, value in usage.items()}}
    stated["stop_reason"] = stop_reason
    totals = {name: value for name, value in stated.items() if value is not None}
    return {"type": "result", "subtype": "success", **totals}


def event_line(kind: str, **more: Any) -> SessionLine:
    """Build a line that is no message; the stored original has the details."""
    fields = {name: value for name, value in more.items() if value is not None}
    return {"type": "system", "subtype": kind[:MAX_SUBTYPE], **fields}


def known_figures(usage: Usage | None) -> dict[str, Any]:
    """Return the figures of a usage that are not zero."""
    figures = {} if usage is None else msgspec.structs.asdict(usage)
    return {name: value for name, value in figures.items() if value}


def iso_time(value: Any) -> str | None:
    """Convert a time of another tool to ISO 8601 in UTC. Return None if it is not a time."""
    seconds = parse_time(value)
    if seconds is None:
        return None
    try:
        time = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
