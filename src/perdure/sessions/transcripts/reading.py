"""Lines of any known transcript as messages. Each line is recognised by its own shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.eventlog.port import Line
from perdure.sessions.records import Message
from perdure.sessions.transcripts import claude, codex, openai_agents, pi
from perdure.sessions.transcripts.values import text_of

Reader = tuple[str, Callable[[str, Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], list[Message]]]

READERS: tuple[Reader, ...] = (
    ("codex", codex.recognises, codex.messages),
    ("claude", claude.recognises, claude.messages),
    ("pi", pi.recognises, pi.messages),
    ("openai-agents", openai_agents.recognises, openai_agents.messages),
)
"""The most specific first; what OpenAI stores has few marks of its own."""

MAX_TORN = 200
DELTAS = frozenset({"stream_event", "message_update", "tool_execution_update", "item.updated"})
"""Lines that repeat a part of what a later line tells as a whole."""


def format_of(record: Mapping[str, Any]) -> str | None:
    """The name of the format that a line is in, or None."""
    kind = _kind(record)
    return next((name for name, recognises, _ in READERS if recognises(kind, record)), None)


def _kind(record: Mapping[str, Any]) -> str:
    return text_of(record.get("type")) or ""


def messages_of(body: bytes | str) -> list[Message]:
    """The messages of one line. What is not understood is an event, and nothing raises."""
    try:
        record = decode_json(body)
    except InvalidInput:
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        return [Message(role="event", kind="unreadable", text=text[:MAX_TORN], is_error=True)]
    if not isinstance(record, Mapping):
        return [Message(role="event", kind="unknown")]
    return messages_of_record(record)


def messages_of_record(record: Mapping[str, Any]) -> list[Message]:
    """The messages of a line that is decoded already."""
    kind = _kind(record)
    for _, recognises, messages in READERS:
        if recognises(kind, record):
            return messages(record)
    return [Message(role="event", kind=kind[:MAX_TORN] or "unknown")]


def messages_in(lines: Iterable[Line]) -> Iterator[Message]:
    """The messages of lines, each with the place of its line."""
    for line in lines:
        for message in messages_of(line.body):
            message.position, message.after = line.position, line.after
            yield message
