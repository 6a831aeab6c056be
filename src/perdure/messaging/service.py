"""Service of the messaging sessions of one namespace."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Protocol, Self

from msgspec import Meta

from perdure.executions.model import PhaseStarter
from perdure.kernel.checks import (
    Id,
    Limit,
    check_choice,
    check_flag,
    check_id,
    check_name,
    optional_id,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import Conflict, InvalidInput, NotFound
from perdure.kernel.merge import BATCH_ROWS
from perdure.kernel.pages import Part
from perdure.kernel.storage.port import Storage
from perdure.messaging import model
from perdure.messaging.inputs import SESSION
from perdure.messaging.model import IDLE_SECONDS, MAX_HISTORY, NewMessage
from perdure.messaging.operations import sessions as operations
from perdure.messaging.operations import turns
from perdure.messaging.operations.turns import NewTurn, Sent
from perdure.messaging.records import (
    ROLES,
    ChatMessage,
    MessagingSession,
    Role,
    SentMessage,
    TurnEnd,
)
from perdure.service.base import Service
from perdure.service.callers import Caller
from perdure.service.endpoints import GET, POST, PUT, call
from perdure.streams.model import Burst

Name = Annotated[str, Meta(min_length=1, max_length=255)]
MAX_SETTLE = 60.0
Settle = Annotated[float, Meta(ge=0, le=MAX_SETTLE)]


class TurnRuns(Protocol):
    """Access to the runs of turns: waiting for them and reading their streams."""

    async def join_run(self, run_id: str, timeout: float | None = None) -> Any: ...
    def stream_run(self, run_id: str) -> AsyncGenerator[Burst, None]: ...
    def acting_as(self, caller: Caller) -> TurnRuns: ...
    def in_namespace(self, namespace: str) -> TurnRuns: ...


class Messaging(Service):
    """Conversations with people: one active session per person and channel or thread.

    A sent message is answered by a turn of the session's assistant. The turns of a session run one after
    another; messages that arrive during a turn are answered together by the next one.
    """

    def __init__(
        self,
        storage: Storage,
        phases: PhaseStarter,
        runs: TurnRuns,
        *,
        idle: float = IDLE_SECONDS,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.phases = phases
        self.runs = runs
        self.idle = to_micros(idle)

    def acting_as(self, caller: Caller) -> Self:
        """Return the same service for a caller, with the caller's runs."""
        sibling = super().acting_as(caller)
        sibling.runs = self.runs.acting_as(caller)
        return sibling

    def in_namespace(self, namespace: str) -> Self:
        """Return the same service in another namespace."""
        sibling = super().in_namespace(namespace)
        sibling.runs = self.runs.in_namespace(namespace)
        return sibling

    @call(POST("/messaging/sessions"), scope="write", repeatable=True)
    async def get_or_create(
        self,
        platform: Name,
        channel_id: Name,
        user_id: Name,
        *,
        thread_id: str | None = None,
        assistant_id: str | None = None,
    ) -> MessagingSession:
        """Get the active session of a person in a channel or thread, or create one.

        A session that was idle for too long (the setting `chat_idle_timeout`) is ended, and a new one
        created. The same happens if another assistant is named.
        """
        key = model.check_key(platform, channel_id, thread_id, user_id)
        assistant = optional_id(assistant_id, "assistant_id")
        opened = await self.write(operations.get_or_create, key, assistant, self.idle)
        return model.row_to_session(opened.row)

    @call(GET("/messaging/sessions"), scope="read")
    async def list(
        self, *, active: bool | None = None, limit: Limit = 100, cursor: str | None = None
    ) -> Part[MessagingSession]:
        """List sessions, the most recently used first; `next` of a page is the cursor of the next one."""
        request = model.SESSIONS.open_part(limit, cursor)
        if active is not None:
            check_flag(active, "active")
        rows = await self.read(operations.search, active, request.place, request.rows)
        return request.build_part(rows, model.row_to_session)

    @call(GET("/messaging/threads"), scope="read", errors=(NotFound,))
    async def find_thread(
        self, platform: str, channel_id: str, thread_id: str, *, include_stale: bool = False
    ) -> MessagingSession:
        """Find the most recently used active session of a thread, of any person.

        With `include_stale`, also find a session that was idle for too long.
        """
        row = await self._find_by_thread(platform, channel_id, thread_id, include_stale)
        if row is None:
            raise NotFound(f"thread {thread_id} of channel {channel_id} has no active session")
        return model.row_to_session(row)

    async def has_active_thread(self, platform: str, channel_id: str, thread_id: str) -> bool:
        """Return whether a thread has an active session."""
        return await self._find_by_thread(platform, channel_id, thread_id, include_stale=False) is not None

    async def _find_by_thread(
        self, platform: object, channel_id: object, thread_id: object, include_stale: object
    ) -> model.MessagingSessionRow | None:
        stale = check_flag(include_stale, "include_stale")
        return await self.read(
            operations.find_by_thread,
            check_name(platform, "platform"),
            check_name(channel_id, "channel_id"),
            check_name(thread_id, "thread_id"),
            None if stale else self.idle,
        )

    @call(GET("/messaging/sessions/{session_id}"), scope="read", errors=(NotFound,))
    async def get(self, session_id: Id) -> MessagingSession:
        """Get a session by its id, or by the first digits of its id if they match no other session."""
        return model.row_to_session(await self.read(operations.get, check_id(session_id, "session_id")))

    @call(POST("/messaging/sessions/{session_id}/end"), scope="write", errors=(NotFound,), repeatable=True)
    async def deactivate(self, session_id: Id) -> MessagingSession:
        """End a session: the person's next message begins another one without a memory of this one."""
        row = await self.write(operations.deactivate, check_id(session_id, "session_id"))
        return model.row_to_session(row)

    @call(PUT("/messaging/sessions/{session_id}/agent-session"), scope="write", errors=(NotFound,))
    async def set_agent_session_id(self, session_id: Id, agent_session_id: str | None) -> MessagingSession:
        """Record the session to which the agent logs its messages and tool calls."""
        row = await self.write(
            operations.set_agent_session_id,
            check_id(session_id, "session_id"),
            optional_id(agent_session_id, "agent_session_id"),
        )
        return model.row_to_session(row)

    # --- messages ---------------------------------------------------------------------------------------

    @call(GET("/messaging/sessions/{session_id}/messages"), scope="read", errors=(NotFound,))
    async def history(
        self, session_id: Id, *, limit: Limit = MAX_HISTORY, cursor: str | None = None
    ) -> Part[ChatMessage]:
        """List the newest messages of a session, in ascending order.

        `next` of a page is the cursor of earlier messages.
        """
        request = model.MESSAGES.open_part(limit, cursor)
        checked = check_id(session_id, "session_id")
        newest = request.build_part(
            await self.read(operations.history, checked, *request.place, request.rows), model.row_to_message
        )
        return Part(items=newest[::-1], next=newest.next)

    @call(POST("/messaging/sessions/{session_id}/transcript"), scope="write", status=201, errors=(NotFound,))
    async def add_message(
        self,
        session_id: Id,
        role: Role,
        content: str,
        *,
        platform_message_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> ChatMessage:
        """Record a message of another system, without an answer to it."""
        message = NewMessage(
            role=check_choice(role, ROLES, "role"),
            content=model.check_content(content),
            platform_message_id=optional_id(platform_message_id, "platform_message_id"),
        )
        checked = check_id(session_id, "session_id")
        item = (checked, message)
        message_id: int = await self.write_once(
            idempotency_key, operations.add, item, size=len(message.content)
        )
        return model.row_to_message(await self.read(operations.get_message, message_id))

    # --- turns ------------------------------------------------------------------------------------------

    @call(
        POST("/messaging/sessions/{session_id}/messages"),
        scope="write",
        status=201,
        errors=(NotFound, Conflict),
    )
    async def send(
        self,
        session_id: Id,
        content: str,
        *,
        platform_message_id: str | None = None,
        sent_at: float | None = None,
        settle_seconds: Settle = 0.0,
        idempotency_key: str | None = None,
    ) -> SentMessage:
        """Send a message to the assistant of a session, without waiting for its answer.

        Messages sent before its turn starts are answered together, in the order of `sent_at`, the platform's
        time in epoch seconds. `settle_seconds` lets a turn wait for more messages.
        """
        message = NewMessage(
            role="user",
            content=model.check_content(content),
            platform_message_id=optional_id(platform_message_id, "platform_message_id"),
            sent_at=model.check_sent_at(sent_at),
        )
        if isinstance(settle_seconds, bool) or not 0 <= settle_seconds <= MAX_SETTLE:
            raise InvalidInput(f"settle_seconds is {settle_seconds!r}; it must be from 0 to {MAX_SETTLE:g}")
        session = await self.get(session_id)
        turn = NewTurn(
            session_id=session.session_id,
            message=message,
            pointer=encode_json({SESSION: session.session_id}),
            reply=encode_json(message.content),
            delay=to_micros(settle_seconds),
        )
        sent: Sent = await self.write_once(idempotency_key, turns.send, turn, self.phases, rows=BATCH_ROWS)
        row = await self.read(operations.get_message, sent.message_id)
        return SentMessage(message=model.row_to_message(row), turn_id=sent.turn_id)

    @call(
        POST("/messaging/sessions/{session_id}/messages/wait"),
        scope="write",
        errors=(NotFound, Conflict),
        by_hand=True,
    )
    async def ask(self, session_id: Id, content: str, *, idempotency_key: str | None = None) -> TurnEnd:
        """Send a message and wait for the end of its turn."""
        sent = await self.send(session_id, content, idempotency_key=idempotency_key)
        return await self.join_turn(sent)

    async def join_turn(self, sent: SentMessage) -> TurnEnd:
        """Wait for the end of the turn that answers a message."""
        end = await self.runs.join_run(sent.turn_id)
        session = await self.get(sent.message.session_id)
        rows = await self.read(turns.get_turn_answer, session.session_id, sent.turn_id)
        return TurnEnd(
            turn_id=sent.turn_id,
            session_id=session.session_id,
            status=end.run.status,
            message=model.row_to_message(rows[-1]) if rows else None,
            question=session.question,
            error=None if end.run.error is None else end.run.error.message,
        )

    @call(
        POST("/messaging/sessions/{session_id}/messages/stream"),
        scope="write",
        errors=(NotFound, Conflict),
        by_hand=True,
    )
    async def stream(
        self, session_id: Id, content: str, *, idempotency_key: str | None = None
    ) -> AsyncGenerator[Burst, None]:
        """Send a message and stream the events of its turn, in bursts, until it ends."""
        sent = await self.send(session_id, content, idempotency_key=idempotency_key)
        async for burst in self.runs.stream_run(sent.turn_id):
            yield burst

    @call(
        POST("/messaging/sessions/{session_id}/turns/{turn_id}/cancel"),
        scope="write",
        errors=(NotFound, Conflict),
    )
    async def cancel_turn(self, session_id: Id, turn_id: Id) -> MessagingSession:
        """Cancel a turn. Raise Conflict if it has ended."""
        session = await self.get(session_id)
        await self.write(turns.cancel, session.session_id, check_id(turn_id, "turn_id"), self.phases)
        return await self.get(session.session_id)
