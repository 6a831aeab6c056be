"""Descriptions of sessions, and search in their messages. Everything here is pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Literal, TypeVar

import msgspec

from perdure.eventlog.port import CHAT_PROJECT, Edges, Line, LogInfo, LogName
from perdure.kernel.clock import to_seconds
from perdure.sessions.records import Message, SessionTotals, Usage
from perdure.sessions.transcripts.reading import messages_in

T = TypeVar("T")

DESCRIBED_LINES = 200
"""Maximum number of lines at each end of a long session that a list reads."""
FEW_BYTES = 4 << 10
"""Bytes that a list first reads at each end of a long session."""
SNIPPET = 160
"""Length of the part of a message that a list or a search shows."""

Scope = Literal["messages", "errors", "all"]
SCOPES: tuple[Scope, ...] = ("messages", "errors", "all")


class SubAgent(msgspec.Struct, kw_only=True):
    """A sub-agent of a session. Its messages are read by `name`."""

    name: str
    size: int
    updated_at: float


class Session(msgspec.Struct, kw_only=True):
    """A session of an agent. Times are in epoch seconds; `messages` is None if a list did not count them."""

    session_id: str
    project: str
    kind: Literal["chat", "agent"]
    size: int
    started_at: float
    updated_at: float
    cwd: str | None = None
    model: str | None = None
    first_message: str | None = None
    last_message: str | None = None
    messages: int | None = None
    tool_calls: int | None = None
    turns: int | None = None
    usage: Usage | None = None
    sub_agents: list[SubAgent] = []


# No `Part` of a list: its `next` is null at the end, but a reader continues there from the position `after`.
class TranscriptPage(msgspec.Struct, Generic[T], kw_only=True):
    """Messages or lines of a session. Continue with `after`; `end` is true if there are no more."""

    items: list[T]
    after: int
    end: bool


class LogPosition(msgspec.Struct, kw_only=True):
    """Position after the appended lines."""

    after: int


class Blob(msgspec.Struct, kw_only=True):
    """Full content of a tool result that is cut in its session."""

    digest: str
    content: str


class MessageMatch(msgspec.Struct, kw_only=True):
    """A message that contains the words of a search."""

    session_id: str
    project: str
    role: str
    text: str
    time: float | None = None
    position: int = 0


class Matches(msgspec.Struct, kw_only=True):
    """Result of a search. `complete` is false if it stopped before it had read everything."""

    items: list[MessageMatch]
    complete: bool


def described(edges: Edges) -> Session:
    """Describe a session in a list, from the beginning and the end of its log."""
    session = _from_log(edges.info)
    if edges.whole:
        _describe(session, list(messages_in((*edges.first, *edges.last))), whole=True)
    else:
        _describe(session, [*_beginning(edges.first), *_ending(edges.last)], whole=False)
    return session


def is_described(session: Session) -> bool:
    """Return whether a session has its first message, last message and model, or was read as a whole."""
    has_edges = session.first_message and session.last_message and session.model
    return session.messages is not None or bool(has_edges)


def _beginning(lines: Sequence[Line]) -> list[Message]:
    """Return the messages from the beginning through the first user message."""
    messages: list[Message] = []
    for message in messages_in(lines[:DESCRIBED_LINES]):
        messages.append(message)
        if message.role == "user" and message.text:
            break
    return messages


def _ending(lines: Sequence[Line]) -> list[Message]:
    """Return the messages from the last assistant message with a model through the end."""
    messages: list[Message] = []
    for line in reversed(lines[-DESCRIBED_LINES:]):
        messages[:0] = messages_in([line])
        if any(message.role == "assistant" and message.text and message.model for message in messages):
            break
    return messages


def _from_log(info: LogInfo) -> Session:
    return Session(
        session_id=info.name.session_id,
        project=info.name.project,
        kind="chat" if info.name.project == CHAT_PROJECT else "agent",
        size=info.size,
        started_at=to_seconds(info.created_at),
        updated_at=to_seconds(info.updated_at),
    )


def _describe(session: Session, messages: Sequence[Message], *, whole: bool) -> None:
    times = [message.time for message in messages if message.time is not None]
    if times:
        session.started_at, session.updated_at = min(times), max(times)
    users = (message.text for message in messages if message.role == "user" and message.text)
    session.first_message = snippet(next(users, ""))
    spoken = (message.text for message in reversed(messages) if message.role == "assistant" and message.text)
    session.last_message = snippet(next(spoken, ""))
    session.cwd = next((message.cwd for message in messages if message.cwd), None)
    session.model = next((message.model for message in reversed(messages) if message.model), None)
    if whole:
        _count(session, sum_totals(messages))


def _count(session: Session, totals: SessionTotals) -> None:
    session.messages, session.tool_calls, session.turns = totals.messages, totals.tool_calls, totals.turns
    session.usage = totals.usage or None


def counted(session: Session, totals: SessionTotals) -> Session:
    """Add the sums over all messages to a session."""
    _count(session, totals)
    return session


def sum_totals(messages: Iterable[Message]) -> SessionTotals:
    totals = SessionTotals()
    for message in messages:
        totals.add(message)
    return totals


def snippet(text: str, words: str = "") -> str | None:
    """Return the part of a text that a list shows: its beginning, or the text around the words."""
    flat = " ".join(text.split())
    at = flat.lower().find(words.lower()) if words else 0
    start = max(0, at - SNIPPET // 4)
    part = flat[start : start + SNIPPET]
    if not part:
        return None
    return ("…" if start else "") + part + ("…" if start + SNIPPET < len(flat) else "")


def matching(name: LogName, messages: Iterable[Message], words: str, scope: Scope) -> Iterator[MessageMatch]:
    """Yield the messages that contain the words, without regard to case."""
    wanted = words.lower()
    for message in messages:
        if not _in_scope(message, scope) or wanted not in message.text.lower():
            continue
        yield MessageMatch(
            session_id=name.session_id,
            project=name.project,
            role=message.role,
            text=snippet(message.text, words) or "",
            time=message.time,
            position=message.position,
        )


def _in_scope(message: Message, scope: Scope) -> bool:
    if scope == "errors":
        return message.is_error
    return scope == "all" or message.role != "event"
