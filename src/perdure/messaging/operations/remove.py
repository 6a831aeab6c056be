"""Delete conversations whose last message is old."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel import changes
from perdure.kernel.storage.port import Tx
from perdure.messaging import sql
from perdure.messaging.model import MessagingSessionRow, OldSession
from perdure.messaging.operations.sessions import KIND

FOUND_SESSIONS = 100
"""Number of old sessions per page."""
MESSAGE_ROWS = 500


async def old_sessions(tx: Tx, before: int, after: OldSession) -> list[OldSession]:
    """List the next sessions without an open turn whose last message is older than a time."""
    return await tx.all(sql.OLD_SESSIONS, before=before, **after._asdict(), n=FOUND_SESSIONS)


async def is_open(tx: Tx, session: MessagingSessionRow, before: int) -> bool:
    """Return whether a session has an open turn, or a message since a time."""
    busy = await tx.one(sql.LIVE_TURN, line=session.line)
    return session.last_activity_at >= before or session.pending_turn is not None or busy is not None


async def end_quietly(tx: Tx, session: MessagingSessionRow) -> None:
    """End a locked session, so that it gets no more messages while it is deleted."""
    if session.active:
        session.active = 0
        await tx.update_many(sql.SAVE, [session])


async def delete_executions(tx: Tx, turn_ids: Sequence[str]) -> None:
    """Delete the executions of turns."""
    await tx.execute(sql.DROP_EXECUTIONS, ids=list(turn_ids))


async def delete_session(tx: Tx, session: MessagingSessionRow) -> bool:
    """Delete some messages of a session, and finally the session itself. Return whether it is gone.

    The session is locked and has no turns. The sums of its chat are deleted with the last of its executions.
    """
    if await tx.execute(sql.DROP_MESSAGES, session_id=session.id, n=MESSAGE_ROWS) == MESSAGE_ROWS:
        return False
    await tx.execute(sql.DROP_CHAT, trigger_id=session.key.trigger_id)
    await tx.execute(sql.DROP_SESSION, id=session.id)
    changes.tell(tx, KIND, [(session.id, "deleted")])
    return True
