"""What the tests of messaging share."""

from __future__ import annotations

from typing import Any

from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.messaging.records import MessagingSession
from perdure.messaging.service import Messaging
from perdure.testing.clock import ManualClock

AGE = statement(
    "UPDATE messaging_sessions SET created_at = created_at - :age, last_activity_at = last_activity_at - :age"
    " WHERE ns = :ns"
)
ACTIVE = statement("SELECT count(*) FROM messaging_sessions WHERE ns = :ns AND active = 1", row=int)


async def _age(tx: Tx, seconds: float) -> None:
    await tx.execute(AGE, age=to_micros(seconds))


async def _active(tx: Tx) -> int:
    return await tx.one(ACTIVE) or 0


class MessagingWorld:
    """The sessions of one namespace."""

    def __init__(self, storage: Storage, clock: ManualClock, namespace: str) -> None:
        self.storage, self.clock = storage, clock
        self.messaging = Messaging(storage, namespace=namespace)

    async def session(self, user: str = "ann", **fields: Any) -> MessagingSession:
        return await self.messaging.get_or_create("slack", "general", user, **fields)

    async def active(self) -> int:
        return await self.storage.read(_active, ns=await self.messaging.ns())

    async def pass_(self, seconds: float) -> None:
        """Let time pass."""
        if self.storage.engine == "postgres":
            await self.storage.run(_age, seconds, ns=await self.messaging.ns())
        else:
            self.clock.advance(seconds)
