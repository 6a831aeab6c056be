"""Operations on turns: messages that are sent to an assistant, and its answers.

A turn is a phase without a workflow run, in the line of its session, so that the turns of a session run one
after another. A turn that has not started takes every new message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perdure.eventlog.port import default_session_id
from perdure.executions.model import ExecutionSeed, NewPhase, PhaseStarter
from perdure.executions.operations import EndedPhase
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.storage.port import Tx
from perdure.messaging import sql
from perdure.messaging.model import LATEST, MAX_TURN, MessageRow, MessagingSessionRow, NewMessage, storable
from perdure.messaging.operations.sessions import append, get, lock, save
from perdure.rollouts.model import SUCCEEDED, AttemptStart, Listener
from perdure.rollouts.operations.lines import lock_lines
from perdure.service.audit import audit
from perdure.service.idempotency import keyed_as

SKILL = "chat"
STREAM_MODE = '["messages-tuple","custom"]'
"""Chunks of messages, and events that the agent emits."""
LOST_WORKERS = 3
"""Number of workers that a turn may lose before it fails, because a person rarely asks again."""
LATER = 100
"""Number of messages of later turns that are skipped."""


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the assistant of a session, encoded for a new turn and for an answer to a question."""

    session_id: str
    message: NewMessage
    pointer: str
    """Stored input of a turn, as JSON: the session whose messages it answers."""
    reply: str
    """The message as JSON, for a turn that asked a question."""
    delay: int = 0
    """Microseconds that a turn waits for more messages before it starts."""


class Sent(msgspec.Struct, frozen=True):
    """A message that was sent, and the turn that answers it."""

    message_id: int
    turn_id: str


@keyed_as("send_message", Sent)
async def send(tx: Tx, turns: Sequence[NewTurn], phases: PhaseStarter) -> list[Sent]:
    """Add a message to a session, and assign it to the turn that has not started, or to a new one.

    It is called with one message at a time. The line is locked first: concurrent senders wait, and no turn of
    the session starts or ends meanwhile, so the session's fields about its turns stay valid.
    """
    (turn,) = turns
    before = await get(tx, turn.session_id)
    await lock_lines(tx, [before.line])
    before = await get(tx, before.id)
    if not before.active:
        raise Conflict(f"session {before.id} has ended; begin another one")
    size = len(turn.message.content) + 1000
    full = (before.pending_size or 0) + size > MAX_TURN
    turn_id = None if full or before.question is not None else before.pending_turn
    begins = turn_id is None
    if turn_id is None:
        turn_id = await _begin(tx, before, turn, phases)
    session = await lock(tx, before.id)
    if before.question is not None:
        session.question = None
    elif begins:
        session.pending_turn, session.pending_size = turn_id, size
    else:
        session.pending_size = (session.pending_size or 0) + size
    message = msgspec.structs.replace(turn.message, turn=turn_id)
    (added,) = await append(tx, session, [message])
    session.latest_turn = turn_id
    await save(tx, [session])
    await audit(tx, "send_message", [session.id])
    return [Sent(added.id, turn_id)]


async def _begin(tx: Tx, session: MessagingSessionRow, turn: NewTurn, phases: PhaseStarter) -> str:
    """Enqueue a turn. A turn that answers a question continues where the agent asked it."""
    if session.assistant is None:
        raise Conflict(f"session {session.id} has no assistant")
    asked = session.question is not None
    phase = NewPhase(
        input=turn.pointer,
        execution=ExecutionSeed(trigger_type="chat", trigger_id=session.key.trigger_id, skill=SKILL),
        assistant=session.assistant,
        delay=0 if asked else turn.delay,
        thread_id=session.line,
        keeps_thread=True,
        free_lapses=LOST_WORKERS,
        stream_mode=STREAM_MODE,
        resume=turn.reply if asked else None,
    )
    (answer,) = await phases.enter(tx, [phase])
    if isinstance(answer, NotFound):
        raise answer
    return answer


async def cancel(tx: Tx, session_id: str, turn_id: str, phases: PhaseStarter) -> None:
    """Cancel a turn of a session. Raise Conflict if it has ended."""
    session = await get(tx, session_id)
    if not await tx.all(sql.OF_TURN, session_id=session.id, turn=turn_id):
        raise NotFound(f"Turn {turn_id} of session {session.id} not found")
    loaded = await phases.load(tx, [turn_id])
    if not loaded.live:
        raise Conflict(f"turn {turn_id} has ended")
    await phases.cancel(tx, loaded)
    await audit(tx, "cancel_turn", [turn_id])


# --- listener ---------------------------------------------------------------------------------------------


async def on_claimed(tx: Tx, starts: Sequence[AttemptStart]) -> None:
    """Mark turns as started: later messages go to the next turn."""
    turns = {start.line: start.rollout_id for start in starts if start.parent is None and start.line}
    sessions = await _locked(tx, list(turns))
    started = [session for session in sessions if session.pending_turn == turns[session.line]]
    for session in started:
        session.pending_turn = session.pending_size = None
        session.agent_session_id = session.agent_session_id or default_session_id(session.line)
    if started:
        await tx.update_many(sql.SAVE, started)


async def end_turns(tx: Tx, ended: Sequence[EndedPhase]) -> None:
    """Store the output of ended turns as messages, and their interrupts as the sessions' questions."""
    turns = {turn.end.line: turn for turn in ended if turn.end.parent is None and turn.end.line}
    sessions = await _locked(tx, list(turns))
    for session in sessions:
        turn = turns[session.line]
        turn_id, output = turn.end.rollout_id, turn.report.output
        if session.pending_turn == turn_id:
            session.pending_turn = session.pending_size = None
        _keep_agent_session(session, None if turn.execution is None else turn.execution.session_id)
        if turn.end.status != SUCCEEDED:
            continue
        session.question = turn.interrupts
        if output and output.strip():
            message = NewMessage(role="assistant", content=storable(output), turn=turn_id)
            await append(tx, session, [message])
    if sessions:
        await save(tx, sessions)


def _keep_agent_session(session: MessagingSessionRow, named: str | None) -> None:
    """Record the session to which the agent logs, if it is another than that of the line."""
    if named is not None and named != default_session_id(session.line):
        session.agent_session_id = named


async def _locked(tx: Tx, lines: Sequence[str]) -> list[MessagingSessionRow]:
    return await tx.all(sql.LOCK_LINES, lines=list(lines)) if lines else []


CHAT = Listener(on_claimed=on_claimed)
"""Listener that marks turns as started."""


# --- reading ----------------------------------------------------------------------------------------------


class TurnMessages(NamedTuple):
    """Messages that a turn answers, and the messages before them, both in order."""

    sent: list[MessageRow]
    before: list[MessageRow]


async def get_turn_messages(tx: Tx, session_id: str, turn_id: str, history: int) -> TurnMessages:
    """Return the messages that a turn answers, in sending order, and the messages before them.

    The latter include answers of earlier turns that came later; messages for later turns are left out.
    """
    session = await get(tx, session_id)
    rows = await tx.all(sql.OF_TURN, session_id=session.id, turn=turn_id)
    sent = [row for row in rows if row.role == "user"]
    last = max((row.id for row in sent), default=0)
    wanted = history + len(rows) + LATER
    newest = await tx.all(sql.LIST_MESSAGES, session_id=session.id, at=LATEST, id=0, limit=wanted)
    before = [row for row in newest if row.turn != turn_id and (row.role == "assistant" or row.id < last)]
    return TurnMessages(sorted(sent, key=_send_order), before[:history][::-1])


def _send_order(row: MessageRow) -> tuple[int, int]:
    return (row.timestamp if row.sent_at is None else row.sent_at, row.id)


async def get_turn_answer(tx: Tx, session_id: str, turn_id: str) -> list[MessageRow]:
    """Return the messages that a turn has written."""
    session = await get(tx, session_id)
    rows = await tx.all(sql.OF_TURN, session_id=session.id, turn=turn_id)
    return [row for row in rows if row.role == "assistant"]
