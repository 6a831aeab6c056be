"""Reading values out of records that anybody may have written: nothing raises, nothing is trusted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from perdure.kernel.codec import decode_json, encode_json
from perdure.kernel.errors import InvalidInput
from perdure.sessions.records import ToolCall, Usage

NOTHING: Mapping[str, Any] = {}


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, or an object that is written as JSON; else an empty one."""
    if isinstance(value, str) and value.startswith("{"):
        value = parsed(value)
    return value if isinstance(value, Mapping) else NOTHING


def parsed(text: str) -> Any:
    """What a text says as JSON, or the text itself."""
    try:
        return decode_json(text)
    except InvalidInput:
        return text


def parse_text(value: Any) -> str | None:
    """A string with something in it, or None."""
    return value if isinstance(value, str) and value else None


def blocks(content: Any) -> list[Mapping[str, Any]]:
    """The blocks of a content, which may be a text."""
    if isinstance(content, str):
        return [_text_block(content)] if content else []
    if isinstance(content, Mapping):
        return [content]
    if isinstance(content, Iterable):
        return [
            each if isinstance(each, Mapping) else {"type": "text", "text": shown(each)} for each in content
        ]
    return []


def _text_block(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}


def thoughts(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The reasoning in blocks of type `thinking`."""
    return [
        text
        for each in parts
        if each.get("type") == "thinking" and (text := parse_text(each.get("thinking")))
    ]


def summaries(value: Any) -> list[str]:
    """The texts of the summary of a reasoning."""
    return [text for each in blocks(value) if (text := parse_text(each.get("text")))]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def joined(parts: Iterable[Any]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def shown(value: Any) -> str:
    """A value as text: strings as they are, blocks by their text, all else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(each, Mapping) and "text" in each for each in value):
        return joined(each["text"] for each in value)
    try:
        return encode_json(value)
    except InvalidInput:
        return repr(value)


def tool_call(id: Any, name: Any, input: Any) -> ToolCall:
    given = parsed(input) if isinstance(input, str) else input
    return ToolCall(parse_text(id) or "", parse_text(name) or "", given)


def parse_time(value: Any) -> float | None:
    """A time in epoch seconds, from ISO-8601 or from a number of seconds or milliseconds."""
    if isinstance(value, str):
        try:
            read = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= 0
    ):
        return None
    return value / 1000 if value > 1e11 else float(value)


def count(value: Any) -> int:
    """A number of tokens; 0 for anything else."""
    return max(0, int(value)) if is_number(value) else 0


def cost(value: Any) -> float | None:
    return max(0.0, float(value)) if is_number(value) else None


def parse_usage(value: Any, *, cost_usd: Any = None) -> Usage | None:
    """Usage as Anthropic and most others spell it; None if nothing is told."""
    told = mapping(value)
    usage = Usage(
        count(told.get("input_tokens", told.get("input"))),
        count(told.get("output_tokens", told.get("output"))),
        count(told.get("cache_read_input_tokens", told.get("cacheRead"))),
        count(told.get("cache_creation_input_tokens", told.get("cacheWrite"))),
        cost(cost_usd),
    )
    return usage or None
