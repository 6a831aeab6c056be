"""Operations on messaging sessions and their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel import changes, ids
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Tx
from perdure.messaging import sql
from perdure.messaging.model import (
    ConversationKey,
    MessageRow,
    MessagingSessionRow,
    NewMessage,
    SessionCursor,
)
from perdure.service.audit import audit
from perdure.service.idempotency import keyed_as

KIND = "messaging_session"


# --- sessions ---------------------------------------------------------------------------------------------


class OpenedSession(NamedTuple):
    """A session, and whether it is new."""

    row: MessagingSessionRow
    created: bool


async def get_or_create(tx: Tx, key: ConversationKey, assistant: str | None, idle: int) -> OpenedSession:
    """Return the active session of a key; create one if none was used within `idle`.

    Concurrent calls with the same key get the same session. Another assistant gets a new session.
    """
    where = {"platform": key.platform, "channel_id": key.channel_id, "user_id": key.user_id}
    row = await tx.one(sql.LOCK_ACTIVE, thread_key=key.thread_key, **where)
    if row is not None:
        if row.last_activity_at >= tx.now - idle and assistant in (None, row.assistant):
            return OpenedSession(row, False)
        row.active = 0
        await _save(tx, row, "ended")
    added = await tx.execute(
        sql.ADD_SESSION,
        id=(session_id := ids.uuid(tx.now, tx.ids)),
        thread_id=key.thread_id,
        thread_key=key.thread_key,
        assistant=assistant,
        line=ids.uuid(tx.now, tx.ids),
        **where,
    )
    if not added:
        winner = await tx.one(sql.LOCK_ACTIVE, thread_key=key.thread_key, **where)
        if winner is None:
            raise Conflict("the session was created and ended by another caller meanwhile; try again")
        return OpenedSession(winner, False)
    changes.tell(tx, KIND, [(session_id, "active")])
    await audit(tx, "create_messaging_session", [session_id])
    return OpenedSession(await get(tx, session_id), True)


async def deactivate(tx: Tx, session_id: str) -> MessagingSessionRow:
    """End a session; the next message of its key begins another. An ended session does not change."""
    row = await lock(tx, session_id)
    if row.active:
        row.active = 0
        await _save(tx, row, "ended")
        await audit(tx, "end_messaging_session", [session_id])
    return row


async def set_agent_session_id(tx: Tx, session_id: str, agent_session_id: str | None) -> MessagingSessionRow:
    """Record the session to which the agent logs its messages and tool calls."""
    row = await lock(tx, session_id)
    row.agent_session_id = agent_session_id
    await _save(tx, row, "updated")
    await audit(tx, "update_messaging_session", [session_id])
    return row


async def _save(tx: Tx, row: MessagingSessionRow, status: str) -> None:
    await tx.update_many(sql.SAVE, [row])
    changes.tell(tx, KIND, [(row.id, status)])


async def lock(tx: Tx, session_id: str) -> MessagingSessionRow:
    """Lock a session. Raise NotFound if there is none."""
    row = await tx.one(sql.LOCK_SESSION, id=session_id)
    if row is None:
        raise not_found(session_id)
    return row


# --- messages ---------------------------------------------------------------------------------------------


@keyed_as("add_message")
async def add(tx: Tx, additions: Sequence[tuple[str, NewMessage]]) -> list[int | NotFound]:
    """Add messages to sessions. Return the id of each.

    The rows of sessions are locked in the order of their ids, not of the messages.
    """
    rows: dict[str, MessagingSessionRow | NotFound] = {}
    for session_id in sorted({session_id for session_id, _ in additions}):
        row = await tx.one(sql.LOCK_SESSION, id=session_id)
        rows[session_id] = not_found(session_id) if row is None else row
    answers: list[int | NotFound] = []
    for session_id, message in additions:
        session = rows[session_id]
        if isinstance(session, NotFound):
            answers.append(session)
        else:
            (added,) = await append(tx, session, [message])
            answers.append(added.id)
    changed = [row for row in rows.values() if isinstance(row, MessagingSessionRow)]
    if changed:
        await save(tx, changed)
        await audit(tx, "add_message", [row.id for row in changed])
    return answers


async def append(tx: Tx, session: MessagingSessionRow, messages: Sequence[NewMessage]) -> list[MessageRow]:
    """Add messages to a locked session, and count them; `save` writes the session.

    The id of a message is its time, or the next free id if another message has the same time.
    """
    added: list[MessageRow] = []
    for message in messages:
        at = max(tx.now, session.last_activity_at)
        id = max(at, session.last_message_id + 1)
        row = MessageRow(
            id=id,
            session_id=session.id,
            role=message.role,
            timestamp=at,
            platform_message_id=message.platform_message_id,
            sent_at=message.sent_at,
            turn=message.turn,
            content=message.content,
        )
        while not sum(await tx.write(sql.ADD_MESSAGES.of([row]))):
            row = row._replace(id=row.id + 1)
        session.last_message_id, session.last_activity_at = row.id, at
        session.message_count = (session.message_count or 0) + 1
        added.append(row)
    return added


async def save(tx: Tx, sessions: Sequence[MessagingSessionRow]) -> None:
    """Write sessions to which messages were added."""
    await tx.update_many(sql.SAVE, list(sessions))
    changes.tell(tx, KIND, [(row.id, "active" if row.active else "ended") for row in sessions])


# --- reading ----------------------------------------------------------------------------------------------


async def get(tx: Tx, session_id: str) -> MessagingSessionRow:
    """Return a session by its id, or by the first digits of its id if they match no other session."""
    row = await tx.one(sql.GET_SESSION, id=session_id)
    if row is not None:
        return row
    # Ids consist of hexadecimal digits and dashes, which sort before "g".
    rows = await tx.all(sql.BY_PREFIX, first=session_id, last=session_id + "g")
    if len(rows) > 1:
        raise NotFound(f"more than one session has an id that begins with {session_id}")
    if not rows or not session_id:
        raise not_found(session_id)
    return rows[-1]


async def search(tx: Tx, active: bool | None, place: SessionCursor, limit: int) -> list[MessagingSessionRow]:
    """List a page of sessions, the most recently used first."""
    page = {"limit": limit, **place._asdict()}
    if active is None:
        return await tx.all(sql.LIST_SESSIONS, **page)
    return await tx.all(sql.LIST_BY_ACTIVE, active=int(active), **page)


async def find_by_thread(
    tx: Tx, platform: str, channel_id: str, thread_id: str, idle: int | None
) -> MessagingSessionRow | None:
    """Return the most recently used active session of a thread; with `idle`, only if used within it."""
    since = 0 if idle is None else tx.now - idle
    where = {"platform": platform, "channel_id": channel_id, "thread_key": thread_id}
    return await tx.one(sql.OF_THREAD, since=since, **where)


async def get_message(tx: Tx, message_id: int) -> MessageRow:
    """Return a message by its id."""
    row = await tx.one(sql.GET_MESSAGE, id=message_id)
    if row is None:
        raise NotFound(f"Message {message_id} not found")
    return row


async def history(tx: Tx, session_id: str, at: int, before: int, limit: int) -> list[MessageRow]:
    """List the newest messages of a session before a cursor, the newest first."""
    session = await get(tx, session_id)
    return await tx.all(sql.LIST_MESSAGES, session_id=session.id, at=at, id=before, limit=limit)


def not_found(session_id: str) -> NotFound:
    return NotFound(f"Messaging session {session_id} not found")
