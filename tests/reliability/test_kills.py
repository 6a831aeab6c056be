"""Processes and servers are killed under load; nothing acknowledged is lost, and nothing is done twice."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.chaos.births import kill_at_birth
from tests.chaos.postgres_crashes import PostgresCrashes
from tests.chaos.scenario import run_clean
from tests.chaos.sqlite_kills import kill_on_sqlite
from tests.kernel.proxy import Proxy, Trouble

from perdure import PostgresLightningStore
from perdure.kernel.errors import DeadlineExceeded, OutcomeUnknown, StorageUnavailable
from perdure.kernel.storage.dialect import statement
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.schema import Table, integer, text
from perdure.testing.servers import PostgresServer

KILLS = 12
BIRTHS = 6
CRASHES = 1

KEPT = Table("kept", (integer("id"), text("what")), key=("id",))
KEPT_IDS = statement("SELECT id FROM kept ORDER BY id")
TAKE_NUMBERS = "INSERT INTO kept (id, what) SELECT coalesce(max(id), 100) + 1, 'other' FROM kept"


def test_a_process_killed_on_a_sqlite_file_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    run = run_clean(kill_on_sqlite, KILLS, tmp_path)
    assert run.facts["ok"] > KILLS
    assert run.facts["quick checks"] >= KILLS // 10


def test_a_process_killed_while_it_makes_or_upgrades_a_file_leaves_a_sound_one(tmp_path: Path) -> None:
    run = run_clean(kill_at_birth, BIRTHS, tmp_path)
    assert run.facts["killed before it was open"] > 0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of our own, which writes to the disk what it has acknowledged, and nothing before it must."""
    with PostgresServer(fsync=True, settings={"wal_writer_delay": "10s"}) as started:
        yield started


def test_postgres_crashed_under_load_loses_nothing_that_was_acknowledged(
    server: PostgresServer, tmp_path: Path
) -> None:
    run = run_clean(lambda run: PostgresCrashes(run, server).crash_all(), CRASHES, tmp_path)
    assert run.facts["ok"] > 0


async def test_a_number_given_out_again_after_a_crash_is_not_taken_for_our_commit(
    server: PostgresServer,
) -> None:
    url = server.create_database("recycled")
    storage = PostgresStorage(url, [KEPT], timeout=20)
    tries = 0

    async def write(tx: Tx) -> None:
        nonlocal tries
        tries += 1
        await tx.insert_many(KEPT, [(1, "ours")])
        if tries == 1:
            _lose_everything(server, url)

    try:
        assert await storage.read(_kept) == []
        with pytest.raises(OutcomeUnknown):
            await storage.run(write)
        assert 1 not in await storage.read(_kept)
    finally:
        await storage.close()


async def _kept(tx: Tx) -> list[int]:
    return [row[0] for row in await tx.all(KEPT_IDS)]


def _lose_everything(server: PostgresServer, url: str) -> None:
    """Crash before the commit is sent, and let others have the numbers of what was lost."""
    server.kill()
    server.start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, _take_numbers(url)).result()


async def _take_numbers(url: str) -> None:
    connection = await asyncpg.connect(url)
    for _ in range(5):
        await connection.execute(TAKE_NUMBERS)
    await connection.close()


async def _with_tables(server: PostgresServer, name: str) -> str:
    """A database with all tables, which take longer than the deadlines of a test."""
    url = server.create_database(name)
    async with PostgresLightningStore(url, timeout=60.0, watchdog_interval=None) as store:
        await store.statistics()
    return url


@pytest.mark.parametrize("loss", ["cut before commit", "lose answer"])
async def test_a_call_whose_commit_or_answer_is_lost_is_done_once(
    server: PostgresServer, loss: Trouble
) -> None:
    url = await _with_tables(server, loss)
    async with (
        Proxy.before(url) as proxy,
        PostgresLightningStore(proxy.url, timeout=10.0, watchdog_interval=None) as store,
    ):
        first = await store.enqueue_rollout("first")
        proxy.trouble = loss
        second = await store.enqueue_rollout("second")
        assert proxy.trouble == "none"
        rollouts = await store.query_rollouts()
        assert [rollout.rollout_id for rollout in rollouts] == [first.rollout_id, second.rollout_id]
        proxy.trouble = loss
        claimed = await store.dequeue_rollout("worker")
        assert claimed is not None
        assert (claimed.rollout_id, claimed.attempt.sequence_id) == (first.rollout_id, 1)


async def test_every_call_ends_within_its_deadline_when_the_server_is_silent(server: PostgresServer) -> None:
    url = await _with_tables(server, "silent")
    async with (
        Proxy.before(url) as proxy,
        PostgresLightningStore(proxy.url, timeout=1.5, watchdog_interval=None) as store,
    ):
        await store.enqueue_rollout("before")
        proxy.trouble = "silence"
        started = time.monotonic()
        calls: list[Any] = [store.enqueue_rollout(number) for number in range(8)]
        calls += [store.query_rollouts() for _ in range(8)]
        ends: list[float] = []
        answers = await asyncio.gather(*(_timed(call, ends) for call in calls), return_exceptions=True)
        assert {type(answer) for answer in answers} <= {DeadlineExceeded, OutcomeUnknown, StorageUnavailable}
        # A busy machine is late; without a deadline nobody would ever answer.
        assert max(ends) - started < 1.5 + 10.0
        proxy.trouble = "none"


async def _timed(call: Any, ends: list[float]) -> Any:
    try:
        return await call
    finally:
        ends.append(time.monotonic())
