"""The three engines, each with a hand on its clock and a fresh, empty store for every example."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg
from tests.support.invariants import broken_rules

from perdure import InMemoryLightningStore, PostgresLightningStore, SqliteLightningStore
from perdure.kernel.clock import MICROS
from perdure.rollouts.store import DatabaseLightningStore
from perdure.testing.clock import ManualClock, SeededIds

T = TypeVar("T")

START = 1_800_000_000.0
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
AGE = (
    "UPDATE rollouts SET start_time = start_time - $1, end_time = end_time - $1, due_at = due_at - $1,"
    " position = position - $1, ready = ready - $1 WHERE ns = $2",
    "UPDATE attempts SET start_time = start_time - $1, end_time = end_time - $1, check_at = check_at - $1,"
    " last_heartbeat_time = last_heartbeat_time - $1, born = born - $1 WHERE ns = $2",
    "UPDATE workers SET last_heartbeat_time = last_heartbeat_time - $1, last_idle_time = last_idle_time - $1,"
    " last_dequeue_time = last_dequeue_time - $1, last_busy_time = last_busy_time - $1 WHERE ns = $2",
    "UPDATE spans SET born = born - $1 WHERE ns = $2",
    "UPDATE resources SET create_time = create_time - $1, update_time = update_time - $1 WHERE ns = $2",
)


async def check_rules(store: DatabaseLightningStore) -> None:
    """The stored rows keep every rule."""
    rollouts = store.rollouts
    wrong = await rollouts.storage.read(broken_rules, ns=await rollouts.ns())
    assert not wrong, wrong


class Bench(Protocol):
    """An engine that gives out empty stores, and moves the time of the last one."""

    def open(self) -> DatabaseLightningStore: ...

    def advance(self, seconds: float) -> None: ...

    def epoch(self) -> float:
        """What the model calls 0, as the store sees it now."""
        ...

    def do(self, work: Coroutine[Any, Any, T]) -> T: ...

    def close(self) -> None: ...


class TickingClock(ManualClock):
    """Moves on between two calls by more than the microseconds that a batch spreads its rollouts over."""

    def now(self) -> int:
        self.advance(0.0001)
        return super().now()


class EmbeddedBench:
    """SQLite, in memory or in a file."""

    def __init__(self, *, file: bool) -> None:
        self._folder = tempfile.TemporaryDirectory() if file else None
        self._numbers = itertools.count()
        self._runner = asyncio.Runner()
        self._store: DatabaseLightningStore | None = None

    def open(self) -> DatabaseLightningStore:
        self._end()
        self._clock = TickingClock(START)
        ids = SeededIds(0)
        if self._folder is None:
            self._store = InMemoryLightningStore(clock=self._clock, ids=ids, watchdog_interval=None)
        else:
            path = Path(self._folder.name) / f"{next(self._numbers)}.db"
            self._store = SqliteLightningStore(path, clock=self._clock, ids=ids, watchdog_interval=None)
        return self._store

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def epoch(self) -> float:
        return START

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _end(self) -> None:
        if self._store is not None:
            self.do(self._store.close())
            self._store = None

    def close(self) -> None:
        self._end()
        self._runner.close()
        if self._folder is not None:
            self._folder.cleanup()


class PostgresBench:
    """PostgreSQL: a namespace for each example, which ages instead of the clock moving on."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._root = PostgresLightningStore(url, watchdog_interval=None)
        self._connection = self.do(asyncpg.connect(url))
        self._numbers = itertools.count()

    def open(self) -> DatabaseLightningStore:
        self._store = self._root.in_namespace(f"example {next(self._numbers)}")
        self._ns = self.do(self._store.rollouts.ns("write"))
        self._start = self.do(self._connection.fetchval(NOW))
        return self._store

    def advance(self, seconds: float) -> None:
        self.do(self._age(seconds))
        self._start -= seconds

    async def _age(self, seconds: float) -> None:
        async with self._connection.transaction():
            for statement in AGE:
                await self._connection.execute(statement, round(seconds * MICROS), self._ns)

    def epoch(self) -> float:
        return float(self._start)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self.do(self._connection.close())
        self.do(self._root.close())
        self._runner.close()
