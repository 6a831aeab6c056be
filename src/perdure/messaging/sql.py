"""SQL of messaging sessions, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate, name_statements, statement
from perdure.messaging.model import MessageRow, MessagingSessionRow, OldSession
from perdure.messaging.tables import MESSAGES, SESSIONS

# Add a session, unless its key has an active one.
ADD_SESSION = statement(
    """
    INSERT INTO messaging_sessions (ns, id, platform, channel_id, thread_id, user_id, created_at,
      last_activity_at, message_count, active, thread_key, assistant, line, last_message_id)
    VALUES (:ns, :id, :platform, :channel_id, :thread_id, :user_id, :now, :now, 0, 1, :thread_key,
      :assistant, :line, 0)
    ON CONFLICT DO NOTHING
    """
)
# A session.
GET_SESSION = statement(
    "SELECT {columns} FROM messaging_sessions WHERE ns = :ns AND id = :id", row=MessagingSessionRow
)
# Sessions by the first digits of their ids; 2 rows show that several match.
BY_PREFIX = statement(
    """
    SELECT {columns} FROM messaging_sessions
    WHERE ns = :ns AND id >= :first AND id < :last ORDER BY id LIMIT 2
    """,
    row=MessagingSessionRow,
)
# Lock a session.
LOCK_SESSION = statement(
    "SELECT {columns} FROM messaging_sessions WHERE ns = :ns AND id = :id {lock}", row=MessagingSessionRow
)
# Lock the active session of a key.
LOCK_ACTIVE = statement(
    """
    SELECT {columns} FROM messaging_sessions
    WHERE ns = :ns AND platform = :platform AND channel_id = :channel_id AND thread_key = :thread_key
      AND user_id = :user_id AND active = 1 {lock}
    """,
    row=MessagingSessionRow,
)
# Lock the sessions of some lines, in the order of their ids.
LOCK_LINES = statement(
    "SELECT {columns} FROM messaging_sessions WHERE ns = :ns AND line {among:lines} ORDER BY id {lock}",
    row=MessagingSessionRow,
)
# Write back sessions.
SAVE = BulkUpdate(
    SESSIONS,
    MessagingSessionRow,
    sets=(
        "agent_session_id",
        "last_activity_at",
        "message_count",
        "active",
        "assistant",
        "pending_turn",
        "pending_size",
        "latest_turn",
        "question",
        "last_message_id",
    ),
    keys=("ns", "id"),
)
# A page of all sessions, the most recently used first.
LIST_SESSIONS = statement(
    """
    SELECT {columns} FROM messaging_sessions
    WHERE ns = :ns AND (last_activity_at, id) < (:at, :id)
    ORDER BY last_activity_at DESC, id DESC LIMIT :limit
    """,
    row=MessagingSessionRow,
)
# A page of the active or ended sessions, the most recently used first.
LIST_BY_ACTIVE = statement(
    """
    SELECT {columns} FROM messaging_sessions
    WHERE ns = :ns AND active = :active AND (last_activity_at, id) < (:at, :id)
    ORDER BY last_activity_at DESC, id DESC LIMIT :limit
    """,
    row=MessagingSessionRow,
)
# The most recently used active session of a thread, of any person.
OF_THREAD = statement(
    """
    SELECT {columns} FROM messaging_sessions
    WHERE ns = :ns AND platform = :platform AND channel_id = :channel_id AND thread_key = :thread_key
      AND active = 1 AND last_activity_at >= :since
    ORDER BY last_activity_at DESC, id DESC LIMIT 1
    """,
    row=MessagingSessionRow,
)

# Sessions without an open turn whose last message is older than a time, after a cursor.
OLD_SESSIONS = statement(
    """
    SELECT s.last_activity_at, s.id FROM messaging_sessions AS s
    WHERE s.ns = :ns AND s.last_activity_at < :before
      AND (s.last_activity_at, s.id) > (:last_activity_at, :id) AND s.pending_turn IS NULL
      AND NOT EXISTS (SELECT 1 FROM rollouts AS r
        WHERE r.ns = s.ns AND r.line = s.line AND r.line IS NOT NULL
          AND (r.end_time IS NULL OR r.end_time >= :before))
      AND NOT EXISTS (SELECT 1 FROM lines AS l WHERE l.ns = s.ns AND l.line = s.line AND l.holder IS NOT NULL)
    ORDER BY s.last_activity_at, s.id LIMIT :n
    """,
    row=OldSession,
)
# A turn that has not ended.
LIVE_TURN = statement(
    "SELECT id FROM rollouts WHERE ns = :ns AND line = :line AND end_time IS NULL LIMIT 1", row=str
)
# Delete some messages of a session.
DROP_MESSAGES = statement(
    """
    DELETE FROM messaging_messages WHERE ns = :ns AND id {listed:SELECT m.id FROM messaging_messages AS m
      WHERE m.ns = :ns AND m.session_id = :session_id LIMIT :n}
    """
)
# Delete the executions of turns.
DROP_EXECUTIONS = statement("DELETE FROM executions WHERE ns = :ns AND rollout_id {among:ids}")
# Delete the sums of a chat that has no more executions.
DROP_CHAT = statement(
    """
    DELETE FROM chat_threads WHERE ns = :ns AND trigger_id = :trigger_id
      AND NOT EXISTS (SELECT 1 FROM executions AS e WHERE e.ns = :ns AND e.trigger_id = :trigger_id)
    """
)
# Delete a session.
DROP_SESSION = statement("DELETE FROM messaging_sessions WHERE ns = :ns AND id = :id")

# Add a message, unless its id is taken.
ADD_MESSAGES = BulkInsert(MESSAGES, MessageRow, on_conflict="NOTHING")
# A message.
GET_MESSAGE = statement(
    "SELECT {columns} FROM messaging_messages WHERE ns = :ns AND id = :id", row=MessageRow
)
# The newest messages of a session before a cursor.
LIST_MESSAGES = statement(
    """
    SELECT {columns} FROM messaging_messages
    WHERE ns = :ns AND session_id = :session_id AND (timestamp, id) < (:at, :id)
    ORDER BY timestamp DESC, id DESC LIMIT :limit
    """,
    row=MessageRow,
)
# The messages that a turn answers or has written, in the order of their ids.
OF_TURN = statement(
    """
    SELECT {columns} FROM messaging_messages
    WHERE ns = :ns AND session_id = :session_id AND turn = :turn ORDER BY id
    """,
    row=MessageRow,
)

name_statements(globals())
