"""Helpers for the tests of the outbox: databases, effects, consumers, and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from perdure.access.tables import TABLES as ACCESS_TABLES
from perdure.kernel.clock import Clock, to_micros
from perdure.kernel.ids import Ids
from perdure.kernel.pages import PaginatedResult
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Row, Storage, Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.outbox.delivery import POLL_SECONDS, Deliveries
from perdure.outbox.model import BatchConsumer, Consumer, DeliveryPolicy, Effect
from perdure.outbox.operations import NewEffect, put
from perdure.outbox.service import Outbox
from perdure.outbox.tables import TABLES as OUTBOX_TABLES
from perdure.service.callers import Caller
from perdure.service.namespaces import ensure_namespace

TABLES = (*ACCESS_TABLES, *OUTBOX_TABLES)
PATIENCE = 20.0

_AGE = statement(
    "UPDATE outbox SET created_at = created_at - :age, since = since - :age, due_at = due_at - :age,"
    " ended_at = ended_at - :age"
)
_ROWS = statement("SELECT * FROM outbox ORDER BY ns, id")
_BODIES = statement("SELECT ns, id FROM outbox_bodies ORDER BY ns, id")
_AUDIT = statement("SELECT actor, action, object FROM audit ORDER BY id")


def open_storage(url: str, *, clock: Clock | None = None, ids: Ids | None = None) -> Storage:
    if url.startswith("postgres"):
        return PostgresStorage(url, TABLES, timeout=PATIENCE)
    return SqliteStorage(url, TABLES, clock=clock, ids=ids)


async def _age(tx: Tx, seconds: float) -> None:
    await tx.execute(_AGE, age=to_micros(seconds))


async def age(storage: Storage, seconds: float) -> None:
    """Make every effect `seconds` older."""
    await storage.run(_age, seconds)


async def _all(tx: Tx, sql: Any) -> Sequence[Row]:
    return [tuple(row) for row in await tx.all(sql)]


async def rows_of(storage: Storage) -> Sequence[Row]:
    return await storage.read(_all, _ROWS)


async def bodies_of(storage: Storage) -> Sequence[Row]:
    return await storage.read(_all, _BODIES)


async def audit_of(storage: Storage) -> Sequence[Row]:
    return await storage.read(_all, _AUDIT)


async def add(
    storage: Storage,
    *bodies: str,
    consumer: str = "recorder",
    subject: str = "run-1",
    namespace: str = "default",
    target: str | None = None,
) -> list[str]:
    """Put effects into the outbox, one for each body."""
    ns = await storage.run(ensure_namespace, namespace)
    effects = [NewEffect(consumer, subject, body, target) for body in bodies]
    return await storage.run(put, effects, ns=ns)


class Recorder:
    """A consumer that keeps its effects, after running the test's function."""

    policy: DeliveryPolicy | None = None

    def __init__(
        self, does: Callable[[Effect], Awaitable[None]] | None = None, name: str = "recorder"
    ) -> None:
        self.name = name
        self.got: list[Effect] = []
        self._does = does
        self._news = asyncio.Event()

    async def deliver(self, effect: Effect) -> None:
        self.got.append(effect)
        self._news.set()
        if self._does is not None:
            await self._does(effect)

    @property
    def bodies(self) -> list[str | None]:
        return [effect.body for effect in self.got]

    async def has(self, count: int) -> None:
        """Wait until it has `count` effects."""
        async with asyncio.timeout(PATIENCE):
            while len(self.got) < count:
                self._news.clear()
                await self._news.wait()


class BatchRecorder:
    """A batch consumer that keeps its batches, and returns the answers of the test's function."""

    def __init__(
        self,
        does: Callable[[Sequence[Effect]], Awaitable[Mapping[str, Exception]]] | None = None,
        policy: DeliveryPolicy | None = None,
        name: str = "recorder",
    ) -> None:
        self.name, self.policy = name, policy
        self.got: list[tuple[int, list[Effect]]] = []
        self._does = does

    async def deliver_batch(self, ns: int, effects: Sequence[Effect]) -> Mapping[str, Exception]:
        self.got.append((ns, list(effects)))
        return {} if self._does is None else await self._does(effects)

    @property
    def sizes(self) -> list[int]:
        return [len(effects) for _, effects in self.got]


def failing(*errors: BaseException | None) -> Callable[[Effect], Awaitable[None]]:
    """Raise these errors in turn, with None as a success, then succeed."""
    left = list(errors)

    async def does(effect: Effect) -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return does


class OutboxWithDeliveries(Deliveries):
    """Deliveries with their outbox."""

    def __init__(
        self,
        storage: Storage,
        consumers: Sequence[Consumer | BatchConsumer] = (),
        *,
        poll: float = POLL_SECONDS,
        lease: float | None = None,
        **policy: Any,
    ) -> None:
        super().__init__(storage, consumers, policy=DeliveryPolicy(**policy), poll=poll, lease=lease)

    async def get(self, effect_id: str, namespace: str = "default") -> Effect:
        return await Outbox(self.storage, namespace=namespace).get(effect_id)

    async def list(self, namespace: str = "default", **asked: Any) -> PaginatedResult[Effect]:
        return await Outbox(self.storage, namespace=namespace).list(**asked)

    async def retry(self, effect_id: str, namespace: str = "default", actor: str | None = None) -> Effect:
        caller = None if actor is None else Caller.trusted(actor, namespace)
        return await Outbox(self.storage, namespace=namespace, caller=caller).retry(effect_id)

    async def retry_dead(self, consumer: str | None = None) -> int:
        return (await Outbox(self.storage).retry_dead(consumer=consumer)).retried
