"""Events of the hooks of coding agents: one JSON object per line, as Claude Code sends them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.ids import derived_ulid
from perdure.memory.model import LATEST_MS, MAX_METADATA_TEXT, storable
from perdure.memory.records import EventRole, EventType, NewMemoryEvent

EVENTS: Final[Mapping[str, tuple[EventType, EventRole]]] = {
    "SessionStart": ("session_start", "system"),
    "UserPromptSubmit": ("user_message", "user"),
    "AssistantResponse": ("assistant_message", "assistant"),
    "PreToolUse": ("tool_result", "tool"),
    "PostToolUse": ("tool_result", "tool"),
    "Stop": ("session_end", "system"),
    "SessionEnd": ("session_end", "system"),
    "SubagentStart": ("subagent_start", "system"),
    "SubagentStop": ("subagent_stop", "system"),
}
"""The event of each hook; any other hook is a message of the user."""
RETRY_MS: Final = 60_000
"""Equal hooks without a time are stored once if they come in the same minute."""
MESSAGES: Final = ("message", "prompt", "tool_response", "tool_input")
METADATA: Final = ("tool_name", "cwd")
CUT: Final = "\n[cut]"
MAX_HOOK_TEXT: Final = 256 << 10
"""Limit of the text of a hook in UTF-8 bytes; the rest is cut off."""


def hook_to_event(hook: Any, now_ms: int) -> NewMemoryEvent:
    """Build the event of a hook. Its id is derived from its content, so that a repeated hook adds nothing."""
    if not isinstance(hook, Mapping):
        raise InvalidInput("a hook is a JSON object")
    name = str(hook.get("hook_event_name") or "")
    session_id = str(hook.get("session_id") or "")
    if not session_id:
        raise InvalidInput("session_id is required")
    event_type, role = EVENTS.get(name, ("user_message", "user"))
    text = _get_text(hook)
    hook_time = _parse_time(hook.get("timestamp"))
    time = now_ms if hook_time is None else hook_time
    # A repeated hook without a time must get the same id.
    stamp = hook_time if hook_time is not None else now_ms // RETRY_MS * RETRY_MS
    metadata = {key: _cut(str(hook[key]), MAX_METADATA_TEXT) for key in METADATA if hook.get(key)}
    content = [name, text, *metadata.values(), str(hook.get("tool_use_id") or "")]
    agent = hook.get("agent")
    return NewMemoryEvent(
        event_id=derived_ulid(stamp, session_id, *content),
        session_id=session_id,
        timestamp_ms=time,
        event_type=event_type,
        role=role,
        text=_cut(text, MAX_HOOK_TEXT),
        metadata={**metadata, **({"hook": name[:64]} if name else {})},
        agent=str(agent) if agent else None,
    )


def _get_text(hook: Mapping[str, Any]) -> str:
    """Return the message of a hook, otherwise the input of the tool as JSON."""
    for key in MESSAGES:
        value = hook.get(key)
        if value:
            return value if isinstance(value, str) else encode_json(value, what=key)
    return ""


def _parse_time(value: Any) -> int | None:
    """Parse ISO 8601 text, or seconds or milliseconds since 1970; None if the value is not a time."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return _check_range(int(aware.timestamp() * 1000))
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return _check_range(int(value if value > 10**11 else value * 1000)) if abs(value) < 10**16 else None


def _check_range(ms: int) -> int | None:
    return ms if 0 <= ms <= LATEST_MS else None


def _cut(text: str, most: int) -> str:
    """Return a text of at most `most` bytes, with a mark if it was cut."""
    whole = storable(text)
    data = whole.encode()
    if len(data) <= most:
        return whole
    return data[: most - len(CUT)].decode("utf-8", "ignore") + CUT
