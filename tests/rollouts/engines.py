"""A store on each engine, shared by all tests of a process; each test has its own namespace."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any, cast

from perdure import (
    InMemoryLightningStore,
    LightningStoreThreaded,
    PostgresLightningStore,
    SqliteLightningStore,
)
from perdure.kernel.clock import to_micros
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Storage, Tx
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.store import DatabaseLightningStore
from perdure.testing.clock import ManualClock
from perdure.testing.contract import Harness

OPTIONS: Any = {"watchdog_interval": 0.25}
NEWEST = statement("SELECT coalesce(max(id), 0) FROM namespaces")
AGE = (
    statement(
        "UPDATE rollouts SET start_time = start_time - :age, end_time = end_time - :age,"
        " due_at = due_at - :age, position = position - :age, ready = ready - :age WHERE ns > :after"
    ),
    statement(
        "UPDATE attempts SET start_time = start_time - :age, end_time = end_time - :age,"
        " check_at = check_at - :age, last_heartbeat_time = last_heartbeat_time - :age, born = born - :age"
        " WHERE ns > :after"
    ),
    statement("UPDATE spans SET born = born - :age WHERE ns > :after"),
)


class ClockHarness:
    """Moves the clock of stores with an injected clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    async def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)


class AgingHarness:
    """Ages stored rows of stores on the server's clock, in namespaces created from now on."""

    def __init__(self, storage: Storage, newest: int) -> None:
        self._storage = storage
        self._newest = newest

    @classmethod
    async def begin(cls, storage: Storage) -> AgingHarness:
        return cls(storage, await storage.read(_newest))

    async def advance(self, seconds: float) -> None:
        await self._storage.run(_age, to_micros(seconds), self._newest)


async def _newest(tx: Tx) -> int:
    row = await tx.one(NEWEST)
    assert row is not None
    return int(row[0])


async def _age(tx: Tx, age: int, newest: int) -> None:
    for each in AGE:
        await tx.execute(each, age=age, after=newest)


class Engine:
    """An open store, shared by tests."""

    def __init__(self, store: LightningStore, clock: ManualClock | None = None) -> None:
        self.store = store
        self._clock = clock

    def in_new_namespace(self) -> LightningStore:
        found: LightningStore = cast(Any, self.store).in_namespace(f"test {uuid.uuid4().hex}")
        return found

    async def harness(self) -> Harness:
        """Create the harness that moves the time for one test."""
        if self._clock is not None:
            return ClockHarness(self._clock)
        assert isinstance(self.store, DatabaseLightningStore)
        return await AgingHarness.begin(self.store.storage)


class Engines:
    """The requested stores, each opened once, because stores work with any event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[str, Engine] = {}

    def get(self, where: str) -> Engine:
        """Return the store of `memory` (with the wrapper for threads), `sqlite`, or a PostgreSQL URL."""
        if where not in self._opened:
            self._opened[where] = self._open(where)
        return self._opened[where]

    def _open(self, where: str) -> Engine:
        clock = ManualClock()
        if where == "memory":
            return Engine(LightningStoreThreaded(InMemoryLightningStore(clock=clock, **OPTIONS)), clock)
        if where == "sqlite":
            path = self._folder / "contract.db"
            return Engine(SqliteLightningStore(path, clock=clock, **OPTIONS), clock)
        return Engine(PostgresLightningStore(where, **OPTIONS))

    def close(self) -> None:
        for engine in self._opened.values():
            asyncio.run(engine.store.close())
