"""Hints: the woken watchers, across threads, event loops and processes, and polling after a lost hint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.kernel.redis_hubs import redis_hub
from tests.kernel.support import NS, THINGS, in_thread, put_and_hint, soon, until, until_true

from perdure import PostgresLightningStore
from perdure.kernel.signals.local import LocalSignals
from perdure.kernel.signals.port import Signals, Watch
from perdure.kernel.signals.postgres import PAYLOAD_BYTES, _build_payloads
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.rollouts.store import DatabaseLightningStore

LISTENERS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'perdure'
AND state = 'idle' AND (query LIKE 'LISTEN%' OR query LIKE '%pg_notify%')
"""


# --- inside one process -----------------------------------------------------------------------------------


@pytest.fixture(params=["local", "redis"])
async def hub(request: pytest.FixtureRequest, redis_url: str, redis_prefix: str) -> AsyncIterator[Signals]:
    """A hub with no other in its process, also with a carrier to other processes."""
    if request.param == "local":
        yield LocalSignals()
        return
    async with redis_hub(redis_url, redis_prefix) as signals:
        yield signals


async def test_only_who_watches_a_key_is_woken(hub: Signals) -> None:
    mine, others = hub.watch("things", ["a", "b"]), hub.watch("things", ["c"])
    elsewhere = hub.watch("workers", ["a"])
    hub.publish([("things", "a"), ("things", "x")])
    assert await soon(mine.changed()) == {"a"}
    assert await others.changed(timeout=0) == frozenset()
    assert await elsewhere.changed(timeout=0) == frozenset()


async def test_hints_are_collected_until_they_are_taken(hub: Signals) -> None:
    watch = hub.watch("things", ["a", "b", "c"])
    hub.publish([("things", "a")])
    hub.publish([("things", "b"), ("things", "a")])
    await asyncio.sleep(0)
    assert await soon(watch.changed()) == {"a", "b"}
    assert await watch.changed(timeout=0) == frozenset()


async def _waits(*watches: Watch) -> list[asyncio.Task[frozenset[str]]]:
    """Start tasks in which these watchers wait."""
    waits = [asyncio.create_task(watch.changed(20)) for watch in watches]
    await asyncio.sleep(0)
    return waits


async def test_of_a_group_each_hint_wakes_one_in_turn(hub: Signals) -> None:
    watches = [hub.watch("things", ["a", "b"], "group") for _ in range(3)]
    elsewhere, alone = hub.watch("things", ["a"], "other group"), hub.watch("things", ["a"])
    waits = await _waits(*watches)
    for wait in waits:
        hub.publish([("things", "a")])
        await until(wait.done)
    assert [await wait for wait in waits] == [{"a"}] * 3
    assert await soon(elsewhere.changed()) == await soon(alone.changed()) == {"a"}


async def test_of_a_group_as_many_are_woken_as_there_are_hints(hub: Signals) -> None:
    watches = [hub.watch("things", ["a", "b"], "group") for _ in range(4)]
    waits = await _waits(*watches)
    hub.publish({("things", "a"): 2, ("things", "b"): 1})
    await until(lambda: sum(wait.done() for wait in waits) == 2)
    assert [wait.result() for wait in waits if wait.done()] == [{"a", "b"}, {"a"}]
    for wait in waits:
        wait.cancel()


async def test_who_is_busy_gets_a_hint_only_if_nobody_waits(hub: Signals) -> None:
    busy, waiting = (hub.watch("things", ["a"], "group") for _ in range(2))
    (wait,) = await _waits(waiting)
    hub.publish([("things", "a")])
    assert await soon(wait) == {"a"}
    hub.publish([("things", "a")])
    assert await soon(busy.changed()) == {"a"}


async def test_a_hint_that_was_not_taken_or_not_handled_goes_to_another(hub: Signals) -> None:
    first, second, third = (hub.watch("things", ["a"], "group") for _ in range(3))
    hub.publish([("things", "a")])
    first.close()
    assert await soon(second.changed()) == {"a"}, "it was not taken"
    second.pass_on()
    assert await soon(third.changed()) == {"a"}, "it was not handled"
    with pytest.raises(ZeroDivisionError), third:
        raise ZeroDivisionError
    assert await soon(second.changed()) == {"a"}, "an error came in between"
    with second:
        pass
    fourth = hub.watch("things", ["a"], "group")
    assert await fourth.changed(timeout=0) == frozenset(), "it was handled"


async def test_who_is_cancelled_leaves_its_hint_to_another(hub: Signals) -> None:
    first, second = (hub.watch("things", ["a"], "group") for _ in range(2))
    (wait,) = await _waits(first)
    hub.publish([("things", "a")])
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    first.close()
    assert await soon(second.changed()) == {"a"}


async def test_a_wait_can_be_ended_without_a_hint(hub: Signals) -> None:
    watch = hub.watch("things", ["a"], "group")
    (wait,) = await _waits(watch)
    watch.wake()
    assert await soon(wait) == frozenset()


async def test_a_wait_that_was_cancelled_can_be_begun_again(hub: Signals) -> None:
    watch = hub.watch("things", ["a"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await watch.changed()
    hub.publish([("things", "a")])
    assert await soon(watch.changed()) == {"a"}


async def test_a_hint_crosses_threads_and_loops(hub: Signals) -> None:
    watching: list[Watch] = []

    async def wait() -> frozenset[str]:
        watch = hub.watch("things", ["a"])
        watching.append(watch)
        try:
            return await watch.changed()
        finally:
            watch.close()

    waiting = [asyncio.ensure_future(in_thread(wait)) for _ in range(3)]
    await until(lambda: len(watching) == 3)
    await asyncio.to_thread(hub.publish, [("things", "a")])
    assert await soon(asyncio.gather(*waiting)) == [{"a"}] * 3
    assert hub.watched("things") == frozenset()


async def test_a_watcher_whose_loop_closed_is_forgotten(hub: Signals) -> None:

    async def watch_and_leave() -> None:
        hub.watch("things", ["a"])

    await in_thread(watch_and_leave)
    assert hub.watched("things") == {"a"}
    hub.publish([("things", "a")])
    assert hub.watched("things") == frozenset()


async def test_what_is_watched(hub: Signals) -> None:
    first, second = hub.watch("things", ["a", "b"]), hub.watch("things", ["b", "c"])
    assert hub.watched("things") == {"a", "b", "c"}
    first.close()
    first.close()
    assert hub.watched("things") == {"b", "c"}
    second.close()
    assert hub.watched("things") == frozenset()


# --- between processes ------------------------------------------------------------------------------------


def test_payloads_stay_below_the_servers_limit() -> None:
    hints = [("things", f"{number:050}") for number in range(1000)]
    payloads = list(_build_payloads("origin", hints))
    assert max(len(payload.encode()) for payload in payloads) < 8000
    assert len(payloads) < 15
    assert list(_build_payloads("origin", [])) == []
    wide = [("things", "ü😀" * 100) for _ in range(100)]
    assert max(len(payload.encode()) for payload in _build_payloads("origin", wide)) < 8000
    assert PAYLOAD_BYTES < 8000


@pytest.fixture
async def pair(postgres_url: str) -> AsyncIterator[tuple[PostgresStorage, PostgresStorage]]:
    """Two storages on one database, as in two processes."""
    storages = PostgresStorage(postgres_url, [THINGS]), PostgresStorage(postgres_url, [THINGS])
    yield storages
    for storage in storages:
        await storage.close()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def _listeners(connection: asyncpg.Connection) -> list[int]:
    return [row[0] for row in await connection.fetch(LISTENERS)]


async def test_a_hint_reaches_other_processes_and_again_after_its_connection_was_cut(
    pair: tuple[PostgresStorage, PostgresStorage], connection: asyncpg.Connection
) -> None:
    here, there = pair
    watch = here.signals.watch("things", ["a", "b"])
    await until_true(lambda: _listeners(connection))
    await soon(there.run(put_and_hint, "a", ns=NS))
    async with asyncio.timeout(2):
        assert await watch.changed() == {"a"}
    await until_true(lambda: _both_listen(connection))
    before = await _listeners(connection)
    await connection.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", before)
    await until_true(lambda: _replaced(connection, before))
    await soon(there.run(put_and_hint, "b", ns=NS))
    assert await soon(watch.changed()) == {"b"}
    watch.close()


async def _both_listen(connection: asyncpg.Connection) -> bool:
    return len(await _listeners(connection)) == 2


async def _replaced(connection: asyncpg.Connection, before: list[int]) -> bool:
    now = await _listeners(connection)
    return len(now) == 2 and not set(now) & set(before)


async def test_a_hint_of_ones_own_comes_once(
    pair: tuple[PostgresStorage, PostgresStorage], connection: asyncpg.Connection
) -> None:
    here, there = pair
    mine, theirs = here.signals.watch("things", ["a"]), there.signals.watch("things", ["a"])
    await until_true(lambda: _both_listen(connection))
    await soon(here.run(put_and_hint, "a", ns=NS))
    assert await soon(mine.changed()) == {"a"}
    assert await soon(theirs.changed(timeout=20)) == {"a"}
    assert await mine.changed(timeout=0) == frozenset()
    mine.close()
    theirs.close()


async def test_a_burst_of_hints_arrives_whole(
    pair: tuple[PostgresStorage, PostgresStorage], connection: asyncpg.Connection
) -> None:
    here, there = pair
    names = {f"n{number:04}" * 8 for number in range(1500)}
    watch = here.signals.watch("things", names)
    await until_true(lambda: _listeners(connection))
    there.signals.publish([("things", name) for name in sorted(names)])
    seen: set[str] = set()
    while seen != names:
        seen |= await soon(watch.changed())
    watch.close()


async def test_a_lost_hint_is_made_up_for_by_polling(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = PostgresLightningStore(postgres_url, watchdog_interval=None)
    there = PostgresLightningStore(postgres_url, watchdog_interval=None)
    monkeypatch.setattr(there.rollouts.storage.signals, "publish", _lose)
    rollout = await here.enqueue_rollout("task")
    waiting = asyncio.ensure_future(here.wait_for_rollouts(rollout_ids=[rollout.rollout_id]))
    await until(lambda: _is_watched(here, rollout.rollout_id))
    claimed = await there.dequeue_rollout()
    assert claimed is not None
    await there.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
    await here.rollouts.watchdog.poll_ends()
    assert [rollout.status for rollout in await soon(waiting)] == ["succeeded"]
    await here.close()
    await there.close()


def _lose(hints: Any) -> None:
    """Simulate a lost connection."""


def _is_watched(store: DatabaseLightningStore, rollout_id: str) -> bool:
    return any(rollout_id in key for key in store.rollouts.storage.signals.watched("rollouts.ended"))
