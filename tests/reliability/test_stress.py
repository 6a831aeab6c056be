"""Stores that come and go leave nothing behind: no thread, task, socket or open file."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest
from tests.kernel.support import until, until_true

from perdure import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreThreaded,
    PostgresLightningStore,
    SqliteLightningStore,
)

ROUNDS = 2
STORES = 10
CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = 'perdure' AND datname = current_database()
"""
OPEN_FILES = next((path for path in map(Path, ("/proc/self/fd", "/dev/fd")) if path.exists()), None)


class Lease(NamedTuple):
    """What this process holds."""

    threads: frozenset[str]
    tasks: int
    files: int


def held() -> Lease:
    gc.collect()
    threads = frozenset(f"{thread.name} {thread.ident}" for thread in threading.enumerate())
    return Lease(threads, len(asyncio.all_tasks()), len(os.listdir(OPEN_FILES)) if OPEN_FILES else 0)


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    before = held()
    yield
    # A thread that was told to end may need a moment more to be gone.
    await until(lambda: held().threads <= before.threads)
    after = held()
    assert after.tasks <= before.tasks
    assert after.files <= before.files


async def use(store: LightningStore, *, close: bool = True) -> None:
    """A little of everything that makes a store start threads, connections and watchers."""
    rollout = await store.enqueue_rollout("task")
    claimed = await store.dequeue_rollout("worker")
    assert claimed is not None
    waiting = asyncio.ensure_future(store.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    assert [each.status for each in await waiting] == ["succeeded"]
    assert len(await store.query_rollouts(limit=5)) == 1
    if close:
        await store.close()


async def come_and_go(make: Callable[[str], LightningStore], *, rounds: int, at_once: int) -> None:
    for round_ in range(rounds):
        stores = [make(f"{round_}-{number}") for number in range(at_once)]
        await asyncio.gather(*map(use, stores))


def run(rounds: int, folder: Path, url: str) -> None:
    """The long run, on every engine; stores on PostgreSQL are slow to make their connections."""

    async def main() -> None:
        makers: tuple[tuple[Callable[[str], LightningStore], int], ...] = (
            (lambda _: InMemoryLightningStore(), 50),
            (lambda _: LightningStoreThreaded(InMemoryLightningStore()), 50),
            (lambda name: SqliteLightningStore(folder / name, synchronous="NORMAL"), 25),
            (lambda name: PostgresLightningStore(url, namespace=name), 10),
        )
        for make, at_once in makers:
            async with nothing_left():
                await come_and_go(make, rounds=rounds, at_once=at_once)

    asyncio.run(main())


async def test_stores_in_memory() -> None:
    async with nothing_left():
        await come_and_go(lambda _: InMemoryLightningStore(), rounds=ROUNDS, at_once=STORES)


async def test_stores_on_files(tmp_path: Path) -> None:
    def make(name: str) -> LightningStore:
        return SqliteLightningStore(tmp_path / name, synchronous="NORMAL")

    async with nothing_left():
        await come_and_go(make, rounds=ROUNDS, at_once=STORES // 2)


async def test_threaded_stores() -> None:
    async with nothing_left():
        await come_and_go(
            lambda _: LightningStoreThreaded(InMemoryLightningStore()), rounds=ROUNDS, at_once=STORES
        )


async def test_stores_on_postgres(postgres_url: str) -> None:
    """Each has its own namespace; ten at once, since each keeps connections and is slow to make them."""
    connection = await asyncpg.connect(postgres_url)
    async with nothing_left():
        await come_and_go(
            lambda name: PostgresLightningStore(postgres_url, namespace=name),
            rounds=ROUNDS,
            at_once=STORES // 2,
        )
        await until_true(lambda: _none_left(connection))
    await connection.close()


async def _none_left(connection: asyncpg.Connection) -> bool:
    return int(await connection.fetchval(CONNECTIONS)) == 0


async def test_stores_that_are_opened_and_closed_unused(tmp_path: Path, postgres_url: str) -> None:
    async with nothing_left():
        for number in range(STORES):
            for store in (
                InMemoryLightningStore(),
                SqliteLightningStore(tmp_path / str(number)),
                PostgresLightningStore(postgres_url),
                LightningStoreThreaded(InMemoryLightningStore()),
            ):
                await store.close()


async def test_one_file_opened_again_and_again(tmp_path: Path) -> None:
    async with nothing_left():
        for number in range(STORES):
            async with SqliteLightningStore(tmp_path / "one") as store:
                await store.enqueue_rollout(number)
    async with SqliteLightningStore(tmp_path / "one") as store:
        assert len(await store.query_rollouts()) == STORES


async def test_siblings_in_many_namespaces_close_with_their_store(tmp_path: Path) -> None:
    async with nothing_left():
        store = SqliteLightningStore(tmp_path / "one")
        siblings = [store.in_namespace(f"team-{number}") for number in range(STORES)]
        await asyncio.gather(*(use(each, close=False) for each in siblings))
        await store.close()


@pytest.mark.parametrize("bad", ["missing/file", "folder"])
async def test_stores_that_could_not_be_opened_leave_nothing(tmp_path: Path, bad: str) -> None:
    (tmp_path / "folder").mkdir()
    async with nothing_left():
        for _ in range(STORES):
            with pytest.raises(Exception, match=bad.partition("/")[0]):
                SqliteLightningStore(tmp_path / bad)


async def test_servers_that_could_not_be_reached_leave_nothing() -> None:
    async with nothing_left():
        for _ in range(3):
            store = PostgresLightningStore("postgresql://nobody:x@127.0.0.1:9/nothing")
            with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
                await store.enqueue_rollout("task")
            await store.close()
