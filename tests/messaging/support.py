"""Shared by tests of messaging: sessions, and a worker that executes their turns on command."""

from __future__ import annotations

from typing import Any

from tests.support.kinds import KINDS
from tests.threads.support import AGENT_NAMES, POLICY, World

from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.messaging.inputs import TurnInputs
from perdure.messaging.records import MessagingSession
from perdure.messaging.service import Messaging
from perdure.runs.queue import RunQueue
from perdure.runtime.stores import ThreadPhases
from perdure.testing.clock import ManualClock
from perdure.threads.work import Assignment

AGE_SESSIONS = statement(
    "UPDATE messaging_sessions SET created_at = created_at - :age, last_activity_at = last_activity_at - :age"
    " WHERE ns = :ns"
)
ACTIVE = statement("SELECT count(*) FROM messaging_sessions WHERE ns = :ns AND active = 1", row=int)


async def _age(tx: Tx, seconds: float) -> None:
    await tx.execute(AGE_SESSIONS, age=to_micros(seconds))


async def _active(tx: Tx) -> int:
    return await tx.one(ACTIVE) or 0


class MessagingWorld(World):
    """The sessions of one namespace."""

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str) -> None:
        super().__init__(storage, clock, namespace=namespace)
        self.queue = RunQueue.beside(self.threads, inputs=TurnInputs(storage))
        self.messaging = Messaging(storage, ThreadPhases(KINDS, POLICY), self.threads, namespace=namespace)

    async def begin(self) -> MessagingWorld:
        await super().begin()
        return self

    async def session(self, user: str = "ann", **fields: Any) -> MessagingSession:
        return await self.messaging.get_or_create("slack", "general", user, **fields)

    async def chat(self, user: str = "ann") -> str:
        """Create a session with an assistant. Return its id."""
        return (await self.session(user, assistant_id="echo")).session_id

    async def active(self) -> int:
        return await self.storage.read(_active, ns=await self.messaging.ns())

    async def advance(self, seconds: float) -> None:
        if self.storage.engine == "postgres":
            await self.storage.run(_age, seconds, ns=await self.messaging.ns())
        await super().advance(seconds)

    async def claim(self, limit: int = 10, worker_id: str = "w1") -> list[Assignment]:
        return await self.queue.claim(worker_id, AGENT_NAMES, limit, 0, queues=["workflows"])

    async def said(self, session_id: str) -> list[tuple[str, str]]:
        """Return all messages of a session."""
        page = await self.messaging.history(session_id)
        return [(message.role, message.content) for message in page.items]
