"""The PostgreSQL driver with conflicting transactions, without write access, and after a fork."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import asyncpg
import pytest
from tests.kernel.postgres_support import opened, refusal, sql
from tests.kernel.support import (
    ADD,
    FIND,
    NS,
    RESIZE,
    THINGS,
    put,
    soon,
    stored,
    until_true,
)

from perdure.kernel.errors import (
    DeadlineExceeded,
    InvalidInput,
    NewerSchema,
    NotFound,
    PerdureError,
    ReadOnlyDatabase,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from perdure.kernel.storage.port import Tx
from perdure.kernel.storage.postgres import PostgresStorage
from perdure.kernel.storage.postgres_connection import translate


@pytest.fixture
async def storage(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    storage = opened(postgres_url)
    yield storage
    await storage.close()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of another program to the same database."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


# --- two transactions that meet ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def closing(connection: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    try:
        yield connection
    finally:
        await connection.close()


async def test_the_victim_of_a_deadlock_runs_again(
    storage: PostgresStorage, connection: asyncpg.Connection, postgres_url: str
) -> None:
    await storage.run(put, "a", ns=NS)
    await storage.run(put, "b", ns=NS)
    runs: list[int] = []

    async def first_a_then_b(tx: Tx) -> None:
        runs.append(1)
        await tx.execute(RESIZE, ids=["a"], size=10)
        await tx.execute(RESIZE, ids=["b"], size=10)

    async with closing(await asyncpg.connect(postgres_url)) as watcher:
        # The transaction that detects the deadlock is its victim; on a slow machine it may be the other.
        while len(runs) < 2:
            runs.clear()
            with contextlib.suppress(asyncpg.DeadlockDetectedError):
                async with connection.transaction():
                    await connection.execute("UPDATE things SET size = 1 WHERE id = 'b'")
                    call = asyncio.ensure_future(storage.run(first_a_then_b, ns=NS))
                    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
                    await until_true(partial(watcher.fetchval, waiting))
                    await connection.execute("UPDATE things SET size = 2 WHERE id = 'a'")
            await soon(call)
    rows = await connection.fetch("SELECT id, size FROM things ORDER BY id")
    assert [tuple(row) for row in rows] == [("a", 10), ("b", 10)]


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_what_the_server_wants_tried_again_is_tried_again(storage: PostgresStorage, state: str) -> None:
    runs: list[int] = []
    fail = sql(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    async def write(tx: Tx) -> int:
        runs.append(1)
        await put(tx, f"n{len(runs)}")
        tx.hint("things", f"n{len(runs)}")
        if len(runs) < 4:
            await tx.execute(fail)
        return len(runs)

    assert await soon(storage.run(write, ns=NS)) == 4
    assert await stored(storage) == ["n4"]


async def test_a_race_for_a_key_is_decided_by_running_again(
    storage: PostgresStorage, connection: asyncpg.Connection
) -> None:
    """As two processes do that create the same namespace."""
    await storage.run(put, "first", ns=NS)

    async def ensure(tx: Tx, name: str) -> str:
        if await tx.one(FIND, id=name) is None:
            await tx.execute(ADD, id=name, size=1)
        return name

    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO things (ns, id) VALUES ($1, 'a')", NS)
    call = asyncio.ensure_future(storage.run(ensure, "a", ns=NS))
    await until_true(lambda: _waits_for_lock(connection))
    await transaction.commit()
    assert await soon(call) == "a"


async def _waits_for_lock(connection: asyncpg.Connection) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))


async def test_rows_are_locked_so_that_nothing_is_decided_twice(storage: PostgresStorage) -> None:
    await storage.run(put, "counter", 0, ns=NS)

    async def count(tx: Tx) -> None:
        await tx.lock(THINGS, [(NS, "counter")])
        row = await tx.one(FIND, id="counter")
        assert row is not None
        await tx.execute(RESIZE, ids=["counter"], size=row[0] + 1)

    await asyncio.gather(*(storage.run(count, ns=NS) for _ in range(50)))

    async def look(tx: Tx) -> Any:
        row = await tx.one(FIND, id="counter")
        return row and row[0]

    assert await storage.read(look, ns=NS) == 50


async def test_locks_in_any_order_make_no_deadlock(storage: PostgresStorage) -> None:
    names = [f"n{n}" for n in range(20)]
    for name in names:
        await storage.run(put, name, 0, ns=NS)
    runs: list[int] = []

    async def count(tx: Tx, shift: int) -> None:
        runs.append(1)
        turned = names[shift:] + names[:shift]
        await tx.lock(THINGS, [(NS, name) for name in turned])
        await tx.execute(RESIZE, ids=turned, size=shift)

    await soon(asyncio.gather(*(storage.run(count, shift, ns=NS) for shift in range(20))))
    assert len(runs) == 20


# --- what may not be written ------------------------------------------------------------------------------


async def test_a_role_that_may_not_write_is_told(
    storage: PostgresStorage, connection: asyncpg.Connection
) -> None:
    await storage.run(put, "a", ns=NS)
    await connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'permission denied for table things' USING ERRCODE = '42501'; END $$"
    )
    await connection.execute("CREATE TRIGGER refuse BEFORE INSERT ON things EXECUTE FUNCTION refuse()")
    with pytest.raises(ReadOnlyDatabase, match="permission denied"):
        await soon(storage.run(put, "b", ns=NS))
    assert await stored(storage) == ["a"]


async def test_a_newer_generation_is_refused_and_left_alone(
    postgres_url: str, connection: asyncpg.Connection
) -> None:
    storage = opened(postgres_url)
    await storage.run(put, "a", ns=NS)
    await storage.close()
    await connection.execute("UPDATE perdure_meta SET value = '999' WHERE name = 'schema'")
    await connection.execute("DROP TABLE things; CREATE VIEW things AS SELECT 1 AS one")
    error = await refusal(postgres_url)
    assert isinstance(error, NewerSchema)
    assert "999" in str(error)


async def test_many_processes_may_open_an_empty_database_at_once(postgres_url: str) -> None:
    storages = [opened(postgres_url) for _ in range(6)]
    calls = [storage.run(put, f"n{number}", ns=NS) for number, storage in enumerate(storages)]
    await soon(asyncio.gather(*calls))
    assert await stored(storages[0]) == [f"n{number}" for number in range(6)]
    await asyncio.gather(*(storage.close() for storage in storages))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (asyncpg.DiskFullError("x"), StorageFull),
        (asyncpg.OutOfMemoryError("x"), StorageUnavailable),
        (asyncpg.TooManyConnectionsError("x"), StorageUnavailable),
        (asyncpg.ReadOnlySQLTransactionError("x"), ReadOnlyDatabase),
        (asyncpg.InsufficientPrivilegeError("x"), ReadOnlyDatabase),
        (asyncpg.QueryCanceledError("x"), DeadlineExceeded),
        (asyncpg.LockNotAvailableError("x"), DeadlineExceeded),
        (asyncpg.InvalidPasswordError("x"), StorageUnavailable),
        (asyncpg.InvalidCatalogNameError("x"), StorageUnavailable),
        (asyncpg.AdminShutdownError("x"), StorageUnavailable),
        (asyncpg.CannotConnectNowError("x"), StorageUnavailable),
        (asyncpg.ConnectionDoesNotExistError("x"), StorageUnavailable),
        (asyncpg.DeadlockDetectedError("x"), StorageError),
        (asyncpg.UndefinedTableError("x"), StorageError),
        (asyncpg.ClientConfigurationError("x"), InvalidInput),
        (TimeoutError("x"), DeadlineExceeded),
        (ConnectionResetError("x"), StorageUnavailable),
        (OSError("x"), StorageUnavailable),
        (NotFound("x"), NotFound),
    ],
)
def test_each_error_of_the_server_is_one_of_ours(theirs: Exception, ours: type[PerdureError]) -> None:
    assert type(translate(theirs, "db.example:5432/things")) is ours


# --- a fork -----------------------------------------------------------------------------------------------

FORK = """
import asyncio, os, signal, sys, warnings

warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(60)

from perdure import PostgresLightningStore
from perdure.kernel.errors import StorageClosed

store = PostgresLightningStore(sys.argv[1])
asyncio.run(store.enqueue_rollout("before"))
from_child, to_parent = os.pipe()

if os.fork() == 0:
    signal.alarm(15)
    try:
        asyncio.run(store.enqueue_rollout("in the child"))
        os.write(to_parent, b"answered")
    except StorageClosed:
        os.write(to_parent, b"answered")
    os._exit(0)

os.close(to_parent)
os.wait()
print(os.read(from_child, 100).decode())
asyncio.run(store.enqueue_rollout("after"))
print("after")
asyncio.run(store.close())
"""


def test_a_fork_is_answered_and_harms_nobody(postgres_url: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FORK), postgres_url]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert answer.stdout.split("\n") == ["answered", "after", ""], answer.stderr
