"""Read values from untrusted records of other tools: nothing raises, nothing is trusted."""

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
    """Return a value that is an object, or an object encoded as JSON; otherwise an empty object."""
    if isinstance(value, str) and value.startswith("{"):
        value = parsed(value)
    return value if isinstance(value, Mapping) else NOTHING


def parsed(text: str) -> Any:
    """Return a text decoded as JSON, or the text itself."""
    try:
        return decode_json(text)
    except InvalidInput:
        return text


def parse_text(value: Any) -> str | None:
    """Return a string that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def blocks(content: Any) -> list[Mapping[str, Any]]:
    """Return the blocks of a content; the content may be a text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if isinstance(content, Mapping):
        return [content]
    if isinstance(content, Iterable):
        return [
            block if isinstance(block, Mapping) else {"type": "text", "text": shown(block)}
            for block in content
        ]
    return []


def thoughts(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the reasoning in blocks of type `thinking`."""
    return [
        text
        for part in parts
        if part.get("type") == "thinking" and (text := parse_text(part.get("thinking")))
    ]


def summaries(value: Any) -> list[str]:
    """Return the texts of the summary of a reasoning."""
    return [text for block in blocks(value) if (text := parse_text(block.get("text")))]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def joined(parts: Iterable[Any]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str) and part)


def shown(value: Any) -> str:
    """Convert a value to text: strings unchanged, blocks to their text, other values to JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(block, Mapping) and "text" in block for block in value):
        return joined(block["text"] for block in value)
    try:
        return encode_json(value)
    except InvalidInput:
        return repr(value)


def tool_call(id: Any, name: Any, input: Any) -> ToolCall:
    given = parsed(input) if isinstance(input, str) else input
    return ToolCall(parse_text(id) or "", parse_text(name) or "", given)


def parse_time(value: Any) -> float | None:
    """Parse a time in ISO 8601, seconds or milliseconds to epoch seconds."""
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
    """Return a number of tokens; 0 for any other value."""
    return max(0, int(value)) if is_number(value) else 0


def cost(value: Any) -> float | None:
    return max(0.0, float(value)) if is_number(value) else None


def parse_usage(value: Any, *, cost_usd: Any = None) -> Usage | None:
    """Parse usage in the spelling of Anthropic and most other tools. Return None if there is none."""
    stated = mapping(value)
    usage = Usage(
        count(stated.get("input_tokens", stated.get("input"))),
        count(stated.get("output_tokens", stated.get("output"))),
        count(stated.get("cache_read_input_tokens", stated.get("cacheRead"))),
        count(stated.get("cache_creation_input_tokens", stated.get("cacheWrite"))),
        cost(cost_usd),
    )
    return usage or None
