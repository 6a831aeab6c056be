"""Tables of messaging sessions and their messages."""

from perdure.kernel.storage.schema import ForeignKey, Index, Table, integer, text

SESSIONS = Table(
    "messaging_sessions",
    (
        integer("ns"),
        text("id"),
        text("platform"),
        text("channel_id"),
        text("thread_id", null=True),
        text("user_id"),
        text("agent_session_id", null=True),
        integer("created_at"),
        integer("last_activity_at"),
        integer("message_count", null=True, default=0),
        integer("active", null=True, default=1),
        text("thread_key"),
        text("assistant", null=True),
        text("line"),
        text("pending_turn", null=True),
        integer("pending_size", null=True),
        text("latest_turn", null=True),
        text("question", null=True),
        integer("last_message_id"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("idx_msg_sessions_lookup", ("ns", "platform", "channel_id", "thread_id", "user_id")),
        Index(
            "idx_msg_sessions_unique_active",
            ("ns", "platform", "channel_id", "thread_key", "user_id"),
            where="active = 1",
            unique=True,
        ),
        Index("messaging_sessions_recent", ("ns", "last_activity_at", "id")),
        Index("messaging_sessions_active", ("ns", "active", "last_activity_at", "id")),
        Index("messaging_sessions_line", ("ns", "line"), unique=True),
    ),
)
"""Each session: a person's conversation in a channel or thread. `thread_key` is the thread, or an empty text.

`line` is the thread of perdure in which its turns run, one after another. `pending_turn` is the turn that has
not started, which takes all new messages; `question` is the question of the last turn.
"""

MESSAGES = Table(
    "messaging_messages",
    (
        integer("ns"),
        integer("id"),
        text("session_id"),
        text("role"),
        integer("timestamp"),
        text("platform_message_id", null=True),
        integer("sent_at", null=True),
        text("turn", null=True),
        text("content"),
    ),
    key=("ns", "id"),
    indexes=(
        Index("idx_msg_messages_session", ("ns", "session_id", "timestamp")),
        Index("messaging_messages_turn", ("ns", "session_id", "turn", "id")),
    ),
    foreign_keys=(ForeignKey(("ns", "session_id"), "messaging_sessions"),),
)
"""Each message. `turn` is the turn that answers or wrote it; `sent_at` is the platform's own time."""

TABLES = (SESSIONS, MESSAGES)
