"""Lines of a session in the envelope of Claude Code and its SDK. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.kernel.checks import check_choice, check_name, check_number, check_text
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.sessions.transcripts.values import is_number

ROLES: Final = ("user", "assistant", "system")
TOKENS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
Envelope = dict[str, Any]


def message(
    role: object, content: object, *, model: str | None = None, usage: Mapping[str, Any] | None = None
) -> Envelope | None:
    """Build a message of a user, the assistant or the system; None for an empty message of the assistant."""
    role = check_choice(role, ROLES, "role (use tool_result for results of tools)")
    given = _content(content)
    if role == "system":
        return {"type": "system", "subtype": "message", "content": given}
    if role == "user":
        return {"type": "user", "message": {"role": "user", "content": given}}
    blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
    blocks = [block for block in blocks if block.get("text") != ""]
    if not blocks and not usage:
        return None
    body: Envelope = {"role": "assistant", "content": blocks}
    if model is not None:
        body["model"] = check_text(model, "model")
    if usage is not None:
        body["usage"] = _tokens(usage)
    return {"type": "assistant", "message": body}


def tool_result(id: object, content: object, *, is_error: bool = False) -> Envelope:
    """Build the result of a tool. Content that is neither text nor blocks is written as JSON."""
    if not isinstance(content, str) and not _are_blocks(content):
        content = encode_json(content, what="the content of a tool result")
    block: Envelope = {
        "type": "tool_result",
        "tool_use_id": check_name(id, "the id of a tool result"),
        "content": content,
    }
    if is_error:
        block["is_error"] = True
    return {"type": "user", "message": {"role": "user", "content": [block]}}


def result(
    *,
    cost_usd: float | None = None,
    turns: int | None = None,
    duration_ms: int | None = None,
    api_duration_ms: int | None = None,
    stop_reason: str | None = None,
    **tokens: int | None,
) -> Envelope:
    """Build the usage of an attempt so far. A later one of the same attempt replaces it."""
    unknown = sorted(set(tokens) - set(TOKENS))
    if unknown:
        raise InvalidInput(f"usage has no {unknown[0]!r}; it has cost_usd, {', '.join(TOKENS)}")
    if cost_usd is not None and (not is_number(cost_usd) or cost_usd < 0):
        raise InvalidInput("cost_usd must be a number that is not negative")
    figures: Envelope = {
        "num_turns": turns,
        "duration_ms": duration_ms,
        "duration_api_ms": api_duration_ms,
        **{f"total_{name}": tokens.get(name) for name in TOKENS},
    }
    for name, count in figures.items():
        if count is not None:
            check_number(count, name.removeprefix("total_"))
    figures["total_cost_usd"] = cost_usd
    figures["stop_reason"] = None if stop_reason is None else check_text(stop_reason, "stop_reason")
    given = {name: value for name, value in figures.items() if value is not None}
    if not given:
        raise InvalidInput("usage needs at least one figure, such as cost_usd or input_tokens")
    return {"type": "result", "subtype": "success", **given}


def without_content(line: Envelope) -> Envelope:
    """Return a line without texts, arguments and results; roles, tool names and usage are kept."""
    if line["type"] == "result":
        return {name: value for name, value in line.items() if name != "result"}
    if "error" in line:
        line = {**line, "error": ""}
    elif "message" not in line:
        line = {**line, "content": ""}
    if "message" not in line:
        return line
    body = line["message"]
    content = body["content"]
    kept = "" if isinstance(content, str) else [_without_content(block) for block in content]
    return {**line, "message": {**body, "content": kept}}


_KEPT = ("type", "id", "name", "tool_use_id", "is_error")
_EMPTY: Mapping[str, Envelope] = {
    "text": {"text": ""},
    "tool_use": {"input": {}},
    "tool_result": {"content": ""},
}


def _without_content(block: Mapping[str, Any]) -> Envelope:
    kept = {name: block[name] for name in _KEPT if name in block}
    return {**kept, **_EMPTY.get(str(block.get("type")), {})}


def _content(content: object) -> Any:
    if isinstance(content, str) or _are_blocks(content):
        return content
    raise InvalidInput("content must be a string, or a list of blocks that are objects with a type")


def _are_blocks(content: object) -> bool:
    return isinstance(content, Sequence) and all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    )


def _tokens(usage: Mapping[str, Any]) -> Envelope:
    if not isinstance(usage, Mapping):
        raise InvalidInput("usage must be an object with numbers of tokens, such as input_tokens")
    for name in TOKENS:
        if usage.get(name) is not None:
            check_number(usage[name], name)
    return dict(usage)
