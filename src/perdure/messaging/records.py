"""Records of messaging sessions, as callers get them. Times are ISO 8601."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from perdure.kernel.record import Record

Role = Literal["user", "assistant"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


class MessagingSession(Record, kw_only=True):
    """A person's conversation in a channel or thread of a platform."""

    session_id: str
    platform: str
    """Platform of the conversation, such as `slack` or `cli`."""
    channel_id: str
    thread_id: str | None = None
    user_id: str
    assistant_id: str | None = None
    """Assistant that answers, if there is one."""
    agent_session_id: str | None = None
    """Session to which the agent's messages and tool calls are logged."""
    created_at: str
    last_activity_at: str
    message_count: int
    active: bool
    """Whether it takes more messages; it ends after a long idle time or a reset."""
    question: Any = None
    """Question of the assistant, which the next message answers."""


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
    """Turn that answers it, or that wrote it."""


class SentMessage(Record, kw_only=True):
    """A message sent to an assistant. The turn that answers it is a run and can be streamed."""

    message: ChatMessage
    turn_id: str


class TurnEnd(Record, kw_only=True):
    """Result of a turn."""

    turn_id: str
    session_id: str
    status: str
    """`success`, `error`, `timeout` or `interrupted`."""
    message: ChatMessage | None = None
    """Answer of the assistant."""
    question: Any = None
    """Question of the assistant, which the next message answers."""
    error: str | None = None
