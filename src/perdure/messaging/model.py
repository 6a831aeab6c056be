"""Rules and rows of messaging sessions. Everything here is pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import msgspec

from perdure.kernel.checks import MAX_ROWS, check_name, check_text
from perdure.kernel.clock import to_iso, to_micros
from perdure.kernel.codec import decode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.pages import Keyset
from perdure.messaging.records import ChatMessage, MessagingSession, Role

MAX_CONTENT: Final = 256 << 10
"""Maximum length of a message, in UTF-8 bytes."""
MAX_HISTORY: Final = 50
"""Default number of earlier messages in a history."""
IDLE_SECONDS: Final = 1800.0
"""Default time without a message after which a session ends."""
MAX_TURN: Final = 512 << 10
"""Maximum total length of the messages of one turn; each counts with 1,000 additional characters."""
LATEST: Final = 2**62
LAST_SECOND: Final = 250_000_000_000.0
CUT: Final = "\n…[truncated]".encode()


class ConversationKey(msgspec.Struct, frozen=True):
    """Key of a conversation: platform, channel, thread, user."""

    platform: str
    channel_id: str
    thread_id: str | None
    user_id: str

    @property
    def thread_key(self) -> str:
        """Return the thread as stored in the unique index, which has no null."""
        return self.thread_id or ""

    @property
    def trigger_id(self) -> str:
        """Return the trigger of the executions of its turns."""
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
    """A session, and the time of its last message."""

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
    """A checked message to add."""

    role: Role
    content: str
    platform_message_id: str | None = None
    sent_at: int | None = None
    turn: str | None = None


class SessionCursor(NamedTuple):
    """Position in a list of sessions: last activity and id."""

    at: int
    id: str


SESSIONS: Final = Keyset[MessagingSessionRow, SessionCursor](
    "messaging sessions", SessionCursor(LATEST, ""), lambda row: (row.last_activity_at, row.id)
)
MESSAGES: Final = Keyset[MessageRow, tuple[int, int]](
    "messages", (LATEST, MAX_ROWS), lambda row: (row.timestamp, row.id)
)
"""The messages of a session, the newest first."""


def check_key(platform: object, channel_id: object, thread_id: object, user_id: object) -> ConversationKey:
    """Check the key of a session. An empty thread counts as none."""
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
    """Check the platform's time of a message in epoch seconds. Return it in microseconds."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LAST_SECOND:
        raise InvalidInput(f"sent_at is {value!r}; it must be a time in seconds since 1970")
    return to_micros(value)


def storable(text: str) -> str:
    """Return an agent's text as the content of a message: of limited length, accepted by every database."""
    plain = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(plain) <= MAX_CONTENT:
        return plain.decode()
    return plain[: MAX_CONTENT - len(CUT)].decode("utf-8", "ignore") + CUT.decode()


def row_to_session(row: MessagingSessionRow) -> MessagingSession:
    """Convert a row to the record of a session."""
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
    """Return the question of an agent from the interrupts of its thread: the value of a single one."""
    if interrupts is None:
        return None
    values = [item.get("value") if isinstance(item, dict) else item for item in decode_json(interrupts)]
    return values.pop() if len(values) == 1 else values


def row_to_message(row: MessageRow) -> ChatMessage:
    """Convert a row to the record of a message."""
    return ChatMessage(
        message_id=row.id,
        session_id=row.session_id,
        role=cast(Role, row.role),
        content=row.content,
        timestamp=to_iso(row.timestamp),
        platform_message_id=row.platform_message_id,
        turn_id=row.turn,
    )
