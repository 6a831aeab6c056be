"""Cancelled callers, threads and event loops that start and end, and the close of a storage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from tests.kernel.support import (
    NS,
    THINGS,
    Database,
    Gate,
    get_ids,
    in_thread,
    put,
    record_hints,
    soon,
    stored,
    until,
    until_true,
)

from perdure.kernel.errors import OutcomeUnknown, StorageClosed, StorageError
from perdure.kernel.storage.port import Storage, Tx
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.kernel.storage.sqlite_engine import WriterJob

OPEN_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'perdure'
"""


async def _open_connections(database: Database) -> int:
    connection = await asyncpg.connect(database.where)
    try:
        return int(await connection.fetchval(OPEN_CONNECTIONS))
    finally:
        await connection.close()


# --- callers that go away ---------------------------------------------------------------------------------


async def test_cancelling_the_caller_does_not_stop_work_that_has_started(
    storage: Storage, gate: Gate
) -> None:
    published = record_hints(storage)
    call = asyncio.ensure_future(storage.run(gate.pass_through, "held", ns=NS))
    await gate.entered()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await gate.open()
    await until(lambda: published == [[("things", "held")]])
    assert await stored(storage) == ["held"]


async def test_cancelling_the_caller_drops_work_that_is_queued(database: Database, gate: Gate) -> None:
    storage = database.open(**({"pool_size": 1} if database.kind == "postgres" else {}))
    await storage.run(put, "first", ns=NS)
    holding = asyncio.ensure_future(storage.run(gate.pass_through, "held", ns=NS))
    await gate.entered()
    queued = [asyncio.ensure_future(storage.run(put, f"queued{n}", ns=NS)) for n in range(3)]
    await _let_tasks_run()
    queued[0].cancel()
    queued[2].cancel()
    await _let_tasks_run()
    await gate.open()
    assert await soon(holding) == "held"
    assert await soon(queued[1]) == "queued1"
    assert await storage.run(put, "last", ns=NS) == "last"
    assert await stored(storage) == ["first", "held", "last", "queued1"]
    await storage.close()


async def _let_tasks_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_cancelling_at_once_leaves_nothing_behind(storage: Storage) -> None:
    await storage.run(put, "first", ns=NS)
    calls = [asyncio.ensure_future(storage.run(put, f"n{n}", ns=NS)) for n in range(50)]
    for call in calls[::2]:
        call.cancel()
    results = await soon(asyncio.gather(*calls, return_exceptions=True))
    done = [result for result in results if isinstance(result, str)]
    assert set(done) <= set(await stored(storage))
    assert len(done) == 25


# --- threads and event loops ------------------------------------------------------------------------------


async def test_many_threads_and_loops_use_one_storage(storage: Storage) -> None:
    async def work(thread: int) -> list[str]:
        calls = [storage.run(put, f"t{thread}-{n:02}", ns=NS) for n in range(20)]
        names = await asyncio.gather(*calls)
        assert set(names) <= set(await stored(storage))
        return names

    names = await soon(asyncio.gather(*(in_thread(work, t) for t in range(4))))
    assert await stored(storage) == sorted(name for part in names for name in part)


async def test_a_loop_that_closed_harms_nobody(storage: Storage) -> None:
    for number in range(5):
        await in_thread(storage.run, put, f"n{number}", ns=NS)
    await storage.run(put, "later", ns=NS)
    assert await stored(storage) == ["later", "n0", "n1", "n2", "n3", "n4"]


async def test_a_loop_that_closed_before_the_answer_harms_nobody(storage: Storage, gate: Gate) -> None:
    """The work had started: it finishes without its caller."""

    async def ask_and_leave() -> None:
        call = asyncio.ensure_future(storage.run(gate.pass_through, "held", ns=NS))
        await gate.entered()
        call.cancel()

    await in_thread(ask_and_leave)
    await gate.open()
    await soon(storage.run(put, "later", ns=NS))
    await until_true(lambda: _is_stored(storage, "held"))


async def _is_stored(storage: Storage, name: str) -> bool:
    return name in await stored(storage)


async def test_loops_that_closed_hold_no_connections(database: Database) -> None:
    """Repeated calls of `asyncio.run` must not exhaust the server's connections."""
    storage = database.open()
    for number in range(12):
        await in_thread(storage.run, put, f"n{number}", ns=NS)
    await storage.run(put, "later", ns=NS)
    if database.kind == "postgres":
        assert await _open_connections(database) <= 4
    await storage.close()
    if database.kind == "postgres":
        await until_true(lambda: _none_open(database))


async def _none_open(database: Database) -> bool:
    return await _open_connections(database) == 0


async def test_closing_ends_the_connections_of_other_loops(database: Database) -> None:
    storage = database.open()
    used, leave = threading.Event(), threading.Event()

    async def use_and_stay() -> None:
        await storage.run(put, "other", ns=NS)
        used.set()
        await asyncio.to_thread(leave.wait)

    other = asyncio.ensure_future(in_thread(use_and_stay))
    await until(used.is_set)
    await soon(storage.close())
    if database.kind == "postgres":
        await until_true(lambda: _none_open(database))
    leave.set()
    await soon(other)


# --- the end ----------------------------------------------------------------------------------------------


async def test_a_closed_storage_says_so_at_once(database: Database) -> None:
    storage = database.open()
    await storage.run(put, "a", ns=NS)
    await stored(storage)
    await storage.close()
    for lane in (storage.run, storage.read, storage.background):
        with pytest.raises(StorageClosed):
            await soon(lane(get_ids, ns=NS))
    await soon(storage.close())


async def test_a_storage_that_was_never_used_closes(database: Database) -> None:
    storage = database.open()
    await soon(storage.close())
    with pytest.raises(StorageClosed):
        await soon(storage.run(get_ids, ns=NS))


async def test_no_call_hangs_that_is_under_way_at_the_close(database: Database) -> None:
    storage = database.open()
    await storage.run(put, "first", ns=NS)
    calls: list[asyncio.Future[Any]] = []
    calls += [asyncio.ensure_future(storage.run(put, f"n{n:03}", ns=NS)) for n in range(100)]
    calls += [asyncio.ensure_future(storage.read(get_ids, ns=NS)) for _ in range(20)]
    await _let_tasks_run()
    await soon(storage.close())
    results = await soon(asyncio.gather(*calls, return_exceptions=True))
    answered = {result for result in results if isinstance(result, str)}
    failed = {type(result) for result in results if isinstance(result, BaseException)}
    assert failed <= {StorageClosed, OutcomeUnknown}
    if database.kind != "memory":
        again = database.open()
        kept = set(await stored(again)) - {"first"}
        assert answered <= kept
        assert kept == answered or OutcomeUnknown in failed
        await again.close()


async def test_calls_from_other_loops_do_not_hang_at_the_close(database: Database) -> None:
    storage = database.open()
    await storage.run(put, "first", ns=NS)
    begun = threading.Barrier(4)

    async def work(thread: int) -> set[type]:
        begun.wait()
        calls = [storage.run(put, f"t{thread}-{n}", ns=NS) for n in range(50)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        return {type(result) for result in results if isinstance(result, BaseException)}

    working = [asyncio.ensure_future(in_thread(work, t)) for t in range(3)]
    await asyncio.to_thread(begun.wait)
    await soon(storage.close())
    failures: set[type] = set().union(*await soon(asyncio.gather(*working)))
    # The close may come between a commit and its answer; then the outcome is unknown.
    assert failures <= {StorageClosed, OutcomeUnknown}


async def test_whoever_watches_is_woken_by_the_close(database: Database) -> None:
    storage = database.open()
    watch = storage.signals.watch("things", ["a"])
    waiting = asyncio.ensure_future(watch.changed())
    await _let_tasks_run()
    await storage.close()
    await soon(waiting)


# --- the writer of SQLite ---------------------------------------------------------------------------------


class Broken(BaseException):
    """An error that no code expects."""


@pytest.fixture(params=[":memory:", "things.db"])
async def sqlite(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    path = request.param if request.param == ":memory:" else tmp_path / request.param
    storage = SqliteStorage(path, [THINGS])
    yield storage
    await storage.close()


async def _hold_writer(sqlite: SqliteStorage) -> tuple[asyncio.Future[Any], threading.Event]:
    """Keep the writer busy, so that the next calls are queued."""
    entered, leave = threading.Event(), threading.Event()

    async def hold(tx: Tx) -> None:
        entered.set()
        leave.wait()

    held = asyncio.ensure_future(sqlite.run(hold, ns=NS))
    await until(entered.is_set)
    return held, leave


async def test_calls_fail_at_once_when_the_writer_dies(
    sqlite: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, leave = await _hold_writer(sqlite)
    queued = [asyncio.ensure_future(sqlite.run(put, f"n{n}", ns=NS)) for n in range(3)]
    queued.append(asyncio.ensure_future(sqlite.background(put, "background", ns=NS)))
    await _let_tasks_run()

    def die(jobs: Sequence[WriterJob]) -> None:
        raise Broken("the thread is gone")

    monkeypatch.setattr(sqlite._engine, "commit_group", die)
    leave.set()
    await soon(held)
    results = await soon(asyncio.gather(*queued, return_exceptions=True))
    assert [type(result) for result in results] == [StorageClosed] * 4
    with pytest.raises(StorageClosed, match="the thread is gone"):
        await soon(sqlite.run(put, "later", ns=NS))


async def test_calls_of_the_group_fail_when_the_writer_dies_after_the_commit(
    sqlite: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(hints: Any) -> None:
        raise Broken("nobody may hang on this")

    async def hinting(tx: Tx) -> None:
        tx.hint("things", "a")

    monkeypatch.setattr(sqlite.signals, "publish", die)
    with pytest.raises(StorageError):
        await soon(sqlite.run(hinting, ns=NS))


async def test_the_background_lane_yields_to_callers(sqlite: SqliteStorage) -> None:
    held, leave = await _hold_writer(sqlite)
    order: list[str] = []

    async def note(tx: Tx, name: str) -> None:
        order.append(name)

    slow = [asyncio.ensure_future(sqlite.background(note, "background", ns=NS)) for _ in range(2)]
    await _let_tasks_run()
    quick = [asyncio.ensure_future(sqlite.run(note, "caller", ns=NS)) for _ in range(2)]
    await _let_tasks_run()
    leave.set()
    await soon(asyncio.gather(held, *slow, *quick))
    assert order == ["caller", "caller", "background", "background"]


async def test_time_never_stands_still(sqlite: SqliteStorage) -> None:
    async def look(tx: Tx) -> int:
        return tx.now

    times = await asyncio.gather(*(sqlite.run(look) for _ in range(200)))
    assert times == sorted(set(times))
