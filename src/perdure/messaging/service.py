"""The messaging sessions of one namespace."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from perdure.access.base import Service
from perdure.access.endpoints import GET, POST, PUT, call
from perdure.access.model import Caller
from perdure.kernel.checks import (
    Id,
    Limit,
    check_choice,
    check_flag,
    check_id,
    check_name,
    check_page,
    optional_id,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.errors import NotFound
from perdure.kernel.storage.port import Storage
from perdure.messaging import model, operations
from perdure.messaging.model import IDLE_SECONDS, MAX_HISTORY, NewMessage
from perdure.messaging.records import (
    ROLES,
    ChatMessage,
    MessagePage,
    MessagingSession,
    Role,
    SessionPage,
)

Name = Annotated[str, Meta(min_length=1, max_length=255)]


class Messaging(Service):
    """Conversations with people: one active session for each person in each channel or thread."""

    def __init__(
        self,
        storage: Storage,
        *,
        idle: float = IDLE_SECONDS,
        namespace: str = "default",
        caller: Caller | None = None,
    ) -> None:
        super().__init__(storage, namespace=namespace, caller=caller)
        self.idle = to_micros(idle)

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
        """Get the active session of a person in a channel or thread, or begin one.

        A session that was idle for too long (the setting `chat_idle_timeout`) is ended, and another begins.
        So it is when another assistant is named.
        """
        key = model.check_key(platform, channel_id, thread_id, user_id)
        assistant = optional_id(assistant_id, "assistant_id")
        opened = await self.write(operations.get_or_create, key, assistant, self.idle)
        return model.session_of(opened.row)

    @call(GET("/messaging/sessions"), scope="read")
    async def list(
        self, *, active: bool | None = None, limit: Limit = 100, cursor: str | None = None
    ) -> SessionPage:
        """List sessions, the most recently used first; `next` of a page is the cursor of the next one."""
        check_page(limit)
        if active is not None:
            check_flag(active, "active")
        place = model.place_of(cursor)
        if not limit:
            return SessionPage(items=[])
        rows = await self.read(operations.search, active, place, limit)
        last = rows[-1] if len(rows) == limit else None
        after = None if last is None else f"{last.last_activity_at}-{last.id}"
        return SessionPage(items=[model.session_of(row) for row in rows], next=after)

    @call(GET("/messaging/threads"), scope="read", errors=(NotFound,))
    async def find_thread(
        self, platform: str, channel_id: str, thread_id: str, *, include_stale: bool = False
    ) -> MessagingSession:
        """Find the most recently used active session of a thread, whoever it is with.

        With `include_stale` also one that was idle for too long.
        """
        row = await self._of_thread(platform, channel_id, thread_id, include_stale)
        if row is None:
            raise NotFound(f"thread {thread_id} of channel {channel_id} has no active session")
        return model.session_of(row)

    async def has_active_thread(self, platform: str, channel_id: str, thread_id: str) -> bool:
        """Whether somebody has an active session in a thread."""
        return await self._of_thread(platform, channel_id, thread_id, include_stale=False) is not None

    async def _of_thread(
        self, platform: object, channel_id: object, thread_id: object, include_stale: object
    ) -> model.SessionRow | None:
        stale = check_flag(include_stale, "include_stale")
        return await self.read(
            operations.of_thread,
            check_name(platform, "platform"),
            check_name(channel_id, "channel_id"),
            check_name(thread_id, "thread_id"),
            None if stale else self.idle,
        )

    @call(GET("/messaging/sessions/{session_id}"), scope="read", errors=(NotFound,))
    async def get(self, session_id: Id) -> MessagingSession:
        """Get a session by its id, or by the first digits of its id if no other session has them."""
        return model.session_of(await self.read(operations.get, check_id(session_id, "session_id")))

    @call(POST("/messaging/sessions/{session_id}/end"), scope="write", errors=(NotFound,), repeatable=True)
    async def deactivate(self, session_id: Id) -> MessagingSession:
        """End a session: the person's next message begins another, without a memory of this one."""
        row = await self.write(operations.deactivate, check_id(session_id, "session_id"))
        return model.session_of(row)

    @call(PUT("/messaging/sessions/{session_id}/agent-session"), scope="write", errors=(NotFound,))
    async def set_agent_session_id(self, session_id: Id, agent_session_id: str | None) -> MessagingSession:
        """Note in which session the agent logs what it says and does."""
        row = await self.write(
            operations.set_agent_session_id,
            check_id(session_id, "session_id"),
            optional_id(agent_session_id, "agent_session_id"),
        )
        return model.session_of(row)

    # --- messages ---------------------------------------------------------------------------------------

    @call(GET("/messaging/sessions/{session_id}/messages"), scope="read", errors=(NotFound,))
    async def history(
        self, session_id: Id, *, limit: Limit = MAX_HISTORY, cursor: str | None = None
    ) -> MessagePage:
        """List the newest messages of a session, the oldest of them first.

        `next` of a page is the cursor of the messages before it.
        """
        check_page(limit)
        at, before = model.message_place_of(cursor)
        checked = check_id(session_id, "session_id")
        rows = await self.read(operations.history, checked, at, before, limit)
        first = next(iter(rows), None) if limit and len(rows) == limit else None
        before_these = None if first is None else f"{first.timestamp}-{first.id}"
        return MessagePage(items=[model.message_of(row) for row in rows], next=before_these)

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
        """Record a message that was said elsewhere, without an answer to it."""
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
        return model.message_of(await self.read(operations.get_message, message_id))
