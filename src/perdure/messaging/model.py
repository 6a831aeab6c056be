"""The rules of messaging sessions and their rows. Everything here is pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import msgspec

from perdure.kernel.checks import MAX_ROWS, check_name, check_text
from perdure.kernel.clock import to_iso, to_micros
from perdure.kernel.codec import decode_json
from perdure.kernel.cursors import read_cursor
from perdure.kernel.errors import InvalidInput
from perdure.messaging.records import ChatMessage, MessagingSession, Role

MAX_CONTENT: Final = 256 << 10
"""How long a message is, in UTF-8 bytes."""
MAX_HISTORY: Final = 50
"""How many messages are looked back at, where nobody says otherwise."""
IDLE_SECONDS: Final = 1800.0
"""After how long without a message a session is over, where nobody says otherwise."""
MAX_TURN: Final = 512 << 10
"""How long the messages of one turn are together, each with a thousand characters more than it has."""
LATEST: Final = 2**62
LAST_SECOND: Final = 250_000_000_000.0
CUT: Final = "\n…[truncated]".encode()

SESSIONS, MESSAGES = "messaging sessions", "messages"
"""The lists that cursors name."""


class ConversationKey(msgspec.Struct, frozen=True):
    """Whose conversation, and where."""

    platform: str
    channel_id: str
    thread_id: str | None
    user_id: str

    @property
    def thread_key(self) -> str:
        """The thread as it stands in the unique index, which knows no null."""
        return self.thread_id or ""

    @property
    def trigger_id(self) -> str:
        """What the executions of its turns say that they were triggered by."""
        return ":".join((self.platform, self.channel_id, self.thread_id or self.user_id))


class MessagingSessionRow(msgspec.Struct):
    """A row of `messaging_sessions`."""

    id: str
    platform: str
    channel_id: str
    thread_id: str | None
    user_id: str
    agent_session_id: str | None
    created_at: int
    last_activity_at: int
    message_count: int
    active: int
    thread_key: str
    assistant: str | None
    line: str
    pending_turn: str | None
    pending_size: int | None
    latest_turn: str | None
    question: str | None
    last_message_id: int

    @property
    def key(self) -> ConversationKey:
        return ConversationKey(self.platform, self.channel_id, self.thread_id, self.user_id)


class OldSession(NamedTuple):
    """A session, and when its last message came."""

    last_activity_at: int
    id: str


class MessageRow(NamedTuple):
    """A row of `messaging_messages`."""

    id: int
    session_id: str
    role: str
    timestamp: int
    platform_message_id: str | None
    sent_at: int | None
    turn: str | None
    content: str


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be added, checked."""

    role: Role
    content: str
    platform_message_id: str | None = None
    sent_at: int | None = None
    turn: str | None = None


class SessionCursor(NamedTuple):
    """A place in a list by time: before what has this time and id."""

    at: int
    id: str


FIRST: Final = SessionCursor(LATEST, "")


def check_key(platform: object, channel_id: object, thread_id: object, user_id: object) -> ConversationKey:
    """The key of a session. An empty thread is none."""
    thread = None if thread_id is None or thread_id == "" else check_name(thread_id, "thread_id")
    return ConversationKey(
        check_name(platform, "platform"),
        check_name(channel_id, "channel_id"),
        thread,
        check_name(user_id, "user_id"),
    )


def check_content(value: object) -> str:
    content = check_text(value, "content", max_length=MAX_CONTENT)
    if not content.strip():
        raise InvalidInput("content must not be empty")
    return content


def check_sent_at(value: object) -> int | None:
    """The platform's time of a message, in epoch seconds, as microseconds."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LAST_SECOND:
        raise InvalidInput(f"sent_at is {value!r}; it must be a time in seconds since 1970")
    return to_micros(value)


def storable(text: str) -> str:
    """What an agent said as the content of a message: bounded, in characters that every database takes."""
    plain = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(plain) <= MAX_CONTENT:
        return plain.decode()
    return plain[: MAX_CONTENT - len(CUT)].decode("utf-8", "ignore") + CUT.decode()


def decode_session_cursor(cursor: str | None) -> SessionCursor:
    """The place that a cursor names; the newest end without one."""
    found = read_cursor(cursor, SESSIONS, int, str)
    return FIRST if found is None else SessionCursor(*found)


def decode_message_cursor(cursor: str | None) -> tuple[int, int]:
    """The time and the id of the message that a cursor names."""
    at, id = read_cursor(cursor, MESSAGES, int, int) or (LATEST, MAX_ROWS)
    return at, id


def row_to_session(row: MessagingSessionRow) -> MessagingSession:
    """The record of a session."""
    return MessagingSession(
        session_id=row.id,
        platform=row.platform,
        channel_id=row.channel_id,
        thread_id=row.thread_id,
        user_id=row.user_id,
        assistant_id=row.assistant,
        agent_session_id=row.agent_session_id,
        created_at=to_iso(row.created_at),
        last_activity_at=to_iso(row.last_activity_at),
        message_count=row.message_count or 0,
        active=bool(row.active),
        question=extract_question(row.question),
    )


def extract_question(interrupts: str | None) -> Any:
    """What an agent asks, from the interrupts of its thread: of one, its value."""
    if interrupts is None:
        return None
    found = decode_json(interrupts)
    asked = [each.get("value") if isinstance(each, dict) else each for each in found]
    return asked.pop() if len(asked) == 1 else asked


def row_to_message(row: MessageRow) -> ChatMessage:
    """The record of a message."""
    return ChatMessage(
        message_id=row.id,
        session_id=row.session_id,
        role=cast(Role, row.role),
        content=row.content,
        timestamp=to_iso(row.timestamp),
        platform_message_id=row.platform_message_id,
        turn_id=row.turn,
    )
