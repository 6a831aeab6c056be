"""A real PgBouncer in transaction mode in front of PostgreSQL, without its setting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import asyncpg
import pytest
from tests.kernel.support import until_true
from tests.support.pgbouncer import PgBouncer

from perdure import PostgresLightningStore
from perdure.kernel.storage.postgres_connection import POOLER
from perdure.rollouts.records import RolloutConfig

NOTICE = POOLER.partition("%s")[0]


@pytest.fixture(params=["transaction", "session"])
def pooled_url(request: pytest.FixtureRequest, database_url: str) -> Iterator[str]:
    # In session mode each connection keeps a session of the server.
    size = 5 if request.param == "transaction" else 20
    with PgBouncer(database_url, pool_mode=request.param, pool_size=size) as bouncer:
        yield bouncer.url


def notices(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.getMessage().startswith(NOTICE)]


async def use(store: PostgresLightningStore, times: int = 15) -> None:
    """Call the store from many tasks, so that their transactions use all sessions of the pooler."""

    async def work(number: int) -> None:
        for time in range(times):
            await store.enqueue_rollout(f"{number} {time}")
            claimed = await store.dequeue_rollout(f"worker-{number}")
            assert claimed is not None
            await store.query_rollouts(limit=3)
            attempt_id = claimed.attempt.attempt_id
            await store.update_attempt(claimed.rollout_id, attempt_id, status="succeeded")

    await asyncio.gather(*map(work, range(10)))


async def test_a_pooler_is_noticed_and_nothing_fails(
    pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with PostgresLightningStore(pooled_url, pool_size=6) as store:
        await use(store)
    async with PostgresLightningStore(pooled_url, pool_size=6) as store:
        await use(store, 3)
    assert len(notices(caplog)) == 2
    assert "pgbouncer=true" in notices(caplog)[0]
    assert [
        record.getMessage() for record in caplog.records if "prepared statement" in record.getMessage()
    ] == []


async def test_the_watchdog_recovers_dead_workers_behind_a_pooler(pooled_url: str) -> None:
    config = RolloutConfig(unresponsive_seconds=0.5, max_attempts=2, retry_condition=["unresponsive"])
    async with PostgresLightningStore(pooled_url, pool_size=6, watchdog_interval=0.1) as store:
        await use(store, 5)
        rollout = await store.enqueue_rollout("to be recovered", config=config)
        assert await store.dequeue_rollout("dies") is not None

        async def is_queued_again() -> bool:
            current = await store.get_rollout_by_id(rollout.rollout_id)
            return current is not None and current.status == "requeuing"

        await until_true(is_queued_again)


async def test_no_setting_of_ours_stays_with_a_session_of_others(pooled_url: str) -> None:
    """Hints need no durable commit; other writes on the session that carried a hint do."""
    async with PostgresLightningStore(pooled_url, pool_size=6) as store:
        await use(store)
    connections = [await asyncpg.connect(pooled_url, statement_cache_size=0) for _ in range(5)]
    try:
        for name, value in (("synchronous_commit", "on"), ("enable_seqscan", "on"), ("jit", "on")):
            # Concurrent transactions, so that each has a separate session.
            for connection in connections:
                await connection.execute("BEGIN")
            shown = [
                await connection.fetchval("SELECT current_setting($1)", name) for connection in connections
            ]
            for connection in connections:
                await connection.execute("COMMIT")
            assert set(shown) == {value}, name
    finally:
        for connection in connections:
            await connection.close()


async def test_a_server_without_a_pooler_is_none(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with PostgresLightningStore(database_url) as store:
        await store.enqueue_rollout("direct")
    assert notices(caplog) == []


async def test_whoever_says_it_reads_no_notice(pooled_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with PostgresLightningStore(pooled_url, pgbouncer=True) as store:
        await use(store, 3)
    assert notices(caplog) == []
