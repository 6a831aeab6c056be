"""What callers see of messaging sessions. Times are ISO 8601."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import msgspec

from perdure.kernel.record import Record

Role = Literal["user", "assistant"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


class MessagingSession(Record, kw_only=True):
    """A person's conversation in a channel or thread of a platform."""

    session_id: str
    platform: str
    """Where it takes place, such as `slack` or `cli`."""
    channel_id: str
    thread_id: str | None = None
    user_id: str
    assistant_id: str | None = None
    """The assistant that answers, if one does."""
    agent_session_id: str | None = None
    """The session in which the agent's messages and tool calls are logged."""
    created_at: str
    last_activity_at: str
    message_count: int
    active: bool
    """Whether messages go on in it; one that was idle for too long, or was reset, is not active."""
    question: Any = None
    """What the assistant has asked: the next message answers it."""


class SessionPage(msgspec.Struct, kw_only=True):
    """Sessions, the most recently used first. `next` is the cursor of the next page."""

    items: list[MessagingSession]
    next: str | None = None


class ChatMessage(Record, kw_only=True):
    """A message of a session."""

    message_id: int
    """Larger for later messages of a session."""
    session_id: str
    role: Role
    content: str
    timestamp: str
    platform_message_id: str | None = None
    turn_id: str | None = None
    """The turn that answers it, or that wrote it."""


class ChatMessagePage(msgspec.Struct, kw_only=True):
    """The newest messages before a place, the oldest of them first. `next` is the cursor of those before."""

    items: list[ChatMessage]
    next: str | None = None


class SentMessage(Record, kw_only=True):
    """A message that was sent to an assistant. The turn that answers it is a run: it can be streamed."""

    message: ChatMessage
    turn_id: str


class TurnEnd(Record, kw_only=True):
    """How a turn ended."""

    turn_id: str
    session_id: str
    status: str
    """`success`, `error`, `timeout` or `interrupted`."""
    message: ChatMessage | None = None
    """What the assistant answered."""
    question: Any = None
    """What the assistant asks: the next message answers it."""
    error: str | None = None
